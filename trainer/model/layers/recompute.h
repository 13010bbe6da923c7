/* SPDX-License-Identifier: Apache-2.0 */
/* recompute.h: activation checkpointing: which arrays of a layer's forward are kept for its
 * backward. The others are computed again there.
 *
 * A layer's input is always kept. Every other array belongs to the kind of operation that makes it.
 * The table counts elements, for a decoder layer per token (H hidden, Q query and C key-value heads
 * of width d, E experts, K chosen, of width I; F width of a dense MLP) and for a vision block per
 * patch (D hidden, F MLP width):
 *
 *   kind             decoder layer                                      vision block
 *   RECOMPUTE_CHEAP      2 H + (Q + C) d + Q + C + 2; F of a dense MLP      2 D + F + 4
 *   RECOMPUTE_QKV        (Q + 2 C) d                                        3 D
 *   RECOMPUTE_ATTENTION  Q d + Q                                            D + heads
 *   RECOMPUTE_PROJ       H                                                  D
 *   RECOMPUTE_ROUTE      E + 4 K; none of a dense MLP
 *   RECOMPUTE_FC1        2 K I, or 2 F                                      F
 *   RECOMPUTE_FC2        K H, none of a dense MLP
 *
 * A merger keeps, per merged row, 8 D elements of RECOMPUTE_CHEAP and 4 D of RECOMPUTE_FC1. If
 * tensor ranks cut experts, the K I and K H elements count the tokens of all of them. Experts that
 * ranks share (exchange.h) keep nothing of RECOMPUTE_FC1. */
#ifndef TESSERA_TRAINER_MODEL_LAYERS_RECOMPUTE_H
#define TESSERA_TRAINER_MODEL_LAYERS_RECOMPUTE_H

#include <stdint.h>

enum {
    RECOMPUTE_CHEAP = 1 << 0, /* norms, rotations, activation functions: little arithmetic */
    RECOMPUTE_QKV = 1 << 1,   /* the projections to q, k and v */
    RECOMPUTE_ATTENTION = 1 << 2,
    RECOMPUTE_PROJ = 1 << 3,  /* attention's output projection and the residual sum */
    RECOMPUTE_ROUTE = 1 << 4, /* the router: choices, weights, order of token copies */
    RECOMPUTE_FC1 = 1 << 5,   /* the first product of experts, MLP or merger */
    RECOMPUTE_FC2 = 1 << 6,   /* the experts' second product */
    RECOMPUTE_ALL = (1 << 7) - 1
};

/* Which kinds are computed again in which layers. All zero: nothing is computed again. */
typedef struct recompute {
    unsigned what; /* 0, RECOMPUTE_ALL, or RECOMPUTE_CHEAP with others but RECOMPUTE_ROUTE */
    int64_t every; /* n above 1: only layers n, 2n, .. (counted from 1); the others keep all */
    /* The first `layers` layers keep the kinds in `partly` even though `what` names them; never
     * RECOMPUTE_CHEAP or RECOMPUTE_ROUTE. Memory that is left over buys back their time. */
    unsigned partly;
    int64_t layers;
} recompute;

typedef struct recomputes {
    recompute text, vision;
} recomputes;

/* The kinds that this layer (from 0) computes again. */
static inline unsigned recompute_of(const recompute *again, int64_t layer)
{
    if (again->every > 1 && (layer + 1) % again->every != 0)
        return 0;
    return layer < again->layers ? again->what & ~again->partly : again->what;
}

#endif
