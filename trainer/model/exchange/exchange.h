/* SPDX-License-Identifier: Apache-2.0 */
/* exchange.h: experts that live on other ranks: sends slots to the owners of their experts, runs
 * the experts, and sends the results back.
 *
 * H hidden, E experts, P ranks that share them (E / P experts each), I expert width, S slots of
 * this rank. Slots are (token, choice) pairs sorted by expert (decoder.h), so the slots for one owner
 * are consecutive.
 *
 * No slot is dropped, however uneven the routing is. Slots travel in rounds, in each of which an
 * owner receives at most R rows, and there are as many rounds as the owner with the most slots
 * needs. What a round receives is not kept: backward sends the slots again and computes their
 * activations again, so that memory does not depend on the routing. There are two ways, which give
 * the same bits:
 *
 *   on the device (exchange_device.c): ranks that reach each other's memory store rows there and
 *     read them back. Every round that could be needed is queued, and the device finds out which
 *     ones are. The host reads nothing, so a step can be captured as a graph.
 *   by the host (exchange.c): the host gathers and reads the counts of all ranks, once per layer
 *     and pass, and each round is an all-to-all of the collectives' engine. */
#ifndef TESSERA_TRAINER_MODEL_EXCHANGE_H
#define TESSERA_TRAINER_MODEL_EXCHANGE_H

#include "trainer/device/space.h"
#include "trainer/model/layers/layers.h"

/* The memory that each rank opens to the others; a model has one. The members from arrived to back
 * are offsets in bytes from its start (ops/peers.h). */
typedef struct exchange_window {
    const comm *group; /* the P ranks; NULL: not open */
    comm_window memory;
    size_t arrived, met, borders; /* arrival counters of meetings; [P, E + 1] int32 */
    size_t moved;      /* [4] int64: rows from and to others in forward, then in backward */
    size_t x, o, back; /* [R, H] act each: inputs, output gradients, and what goes back */
    size_t bytes;      /* of the whole window */
} exchange_window;

/* True if experts are divided among several ranks. */
static inline bool exchange_is_needed(const layout *degrees)
{
    return degrees->expert * degrees->expert_tensor > 1;
}

/* State and scratch of the exchange, used by all layers in turn. */
typedef struct exchange {
    int64_t rows;  /* R */
    int64_t slots; /* the most slots that a rank can have */
    bool on_device;
    const exchange_window *window; /* on_device: the window, NULL until it is open */
    /* device memory */
    void *came;       /* [R, H], by the host only: rows ordered by the rank they came from */
    void *x;          /* [R, H] inputs by expert; their gradient in backward */
    void *o;          /* [R, H] outputs by expert; their gradient in backward */
    void *gu;         /* [R, 2I] gate | up; their gradient in backward */
    void *a;          /* [R, I]; its gradient in backward */
    int32_t *borders; /* [P, E + 1] of every rank's slots */
    int32_t *offset;  /* [E / P + 1] first row of each expert in the round */
    int32_t *from;    /* [R] which row of `came` each row by expert is */
    int32_t *to;      /* [R] the inverse of `from` */
    int32_t *place, *order, *rounds; /* on_device: what exchange_plan writes (ops/peers.h) */
    /* heap memory of the host: the lists of a round */
    int32_t *host_borders, *host_offset, *host_from, *host_to;
    int64_t *send_first, *send_count, *came_first, *came_count, *next; /* [P] */
} exchange;

/* Prepares an exchange by the host of at most `slots` slots per rank; the caller sets on_device for
 * the other way. */
WARN_UNUSED status exchange_open(exchange *state, const text_dims *dims, const layout *degrees,
                                 int64_t slots);
void exchange_close(exchange *state); /* accepts a half-opened one */
/* Takes the device arrays from sp. */
void exchange_layout(exchange *state, space *sp, const shape *sizes);

/* R, the rows that an owner can receive in a round. */
int64_t exchange_rows(const shape *sizes);
/* The most rounds that any routing needs of `ranks` ranks with so many slots each, all of which are
 * queued on the device: those of all tokens of all ranks choosing as many experts of one owner as
 * they can. A token's choices are different experts. */
int64_t exchange_rounds_most(const text_dims *dims, int64_t ranks, int64_t slots);

/* The weights of this rank's experts in one layer: gate_up [E / P, H, 2I], down [E / P, I, H]. */
typedef struct exchange_weights {
    int64_t layer;
    const param *gate_up, *down;
    lora gate_up_adapter, down_adapter;
} exchange_weights;

/* Bytes of a window for an exchange of that many slots per rank. act: bytes of an element. */
int64_t exchange_window_bytes(const text_dims *dims, const layout *degrees, int64_t slots,
                              size_t act);
/* Opens the window. All ranks of the mesh call it together, and it waits for the device. If
 * ranks do not reach each other's memory, *out_open is false on all of them and rank 0 logs the
 * reason; with `must` that is ST_UNAVAILABLE instead. */
WARN_UNUSED status exchange_window_open(stream *queue, const mesh *groups, const text_dims *dims,
                                        int64_t slots, bool must, exchange_window *out,
                                        bool *out_open);
void exchange_window_close(stream *queue, exchange_window *window); /* accepts an empty one */
/* Counts of the rows moved since they were last cleared, [EXCHANGE_MOVED] as in the window.
 * exchange_fetch_moved queues a copy of them to pinned memory of the host; exchange_enter_moved,
 * once it has arrived, enters them into the ledger of traffic. slot_bytes: the bytes of a row. */
enum { EXCHANGE_MOVED = 4 };
WARN_UNUSED status exchange_clear_moved(stream *queue, const exchange_window *window);
WARN_UNUSED status exchange_fetch_moved(stream *queue, const exchange_window *window,
                                        int64_t *out_pinned);
void exchange_enter_moved(const exchange_window *window, const int64_t *moved, int64_t slot_bytes);

/* o [S, H] = the experts' outputs for x [S, H]. offset [E + 1], on the device: the first slot of
 * each expert. By the host, the call waits for the device. */
WARN_UNUSED status exchange_fwd(const pass_context *ctx, const exchange *state,
                                const exchange_weights *weights, const int32_t *offset,
                                const void *x, void *o);
/* Replaces x by its gradient, computed from do_ [S, H], the gradient of o, and adds the gradients
 * of the weights. */
WARN_UNUSED status exchange_bwd(const pass_context *ctx, const exchange *state,
                                const exchange_weights *weights, const int32_t *offset, void *x,
                                const void *do_);

/* ---- what both ways do with the rows of a round, and the way on the device; for exchange*.c ---- */

/* R, the rows of a round, for so many slots of a rank. */
int64_t exchange_rows_for(int64_t slots);

/* o [R, H] = the experts' outputs for the rows in state->x, which state->offset divides among
 * experts. */
WARN_UNUSED status exchange_experts_fwd(const pass_context *ctx, const exchange *state,
                                        const exchange_weights *weights, void *o);
/* dx [R, H] = the gradient of state->x, from the gradient of the outputs in state->o; adds the
 * weights' gradients. dx may be state->x. */
WARN_UNUSED status exchange_experts_bwd(const pass_context *ctx, const exchange *state,
                                        const exchange_weights *weights, void *dx);

/* exchange_fwd and exchange_bwd on the device. */
WARN_UNUSED status exchange_device_fwd(const pass_context *ctx, const exchange *state,
                                       const exchange_weights *weights, const int32_t *offset,
                                       const void *x, void *o);
WARN_UNUSED status exchange_device_bwd(const pass_context *ctx, const exchange *state,
                                       const exchange_weights *weights, const int32_t *offset,
                                       void *x, const void *do_);

#endif
