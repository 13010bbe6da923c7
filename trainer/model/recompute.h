/* recompute.h: what a layer keeps of its forward for its backward; the rest is computed again
 * there.
 *
 * A layer's input is always kept. Every other array has the kind of what makes it. Elements a token
 * of a decoder layer (H hidden, Q and C heads of d, E experts, K chosen of width I, F of a dense
 * MLP) or a patch of a vision block (D hidden, F MLP width):
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
 * A merger keeps as a block without attention does: 8 D cheap ones and W = 4 D of RECOMPUTE_FC1 a
 * merged row. Slots are of all tensor ranks where those cut experts; shared experts keep nothing of
 * FC1. */
#ifndef TESSERA_TRAINER_MODEL_RECOMPUTE_H
#define TESSERA_TRAINER_MODEL_RECOMPUTE_H

#include <stdint.h>

enum {
    RECOMPUTE_CHEAP = 1 << 0, /* norms, rotations, activations: bytes moved and little else */
    RECOMPUTE_QKV = 1 << 1,   /* projections of attention */
    RECOMPUTE_ATTENTION = 1 << 2,
    RECOMPUTE_PROJ = 1 << 3,  /* the output projection, with the residual */
    RECOMPUTE_ROUTE = 1 << 4, /* router: choices, weights, the order of slots */
    RECOMPUTE_FC1 = 1 << 5,   /* first product of experts, MLP or merger */
    RECOMPUTE_FC2 = 1 << 6,   /* the experts' second product */
    RECOMPUTE_ALL = (1 << 7) - 1
};

/* All zero: nothing is computed again. */
typedef struct recompute {
    unsigned what; /* 0; RECOMPUTE_ALL; or RECOMPUTE_CHEAP with others, without RECOMPUTE_ROUTE */
    int64_t every; /* n above 1: of layers n, 2n, .. alone (from 1); the others keep all */
    /* the first layers keep these kinds all the same; neither RECOMPUTE_CHEAP nor RECOMPUTE_ROUTE
     */
    unsigned partly;
    int64_t layers;
} recompute;

typedef struct recomputes {
    recompute text, vision;
} recomputes;

static inline unsigned recompute_of(const recompute *r, int64_t layer)
{
    if (r->every > 1 && (layer + 1) % r->every != 0)
        return 0;
    return layer < r->layers ? r->what & ~r->partly : r->what;
}

#endif
