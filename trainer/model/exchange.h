/* exchange.h: experts on other ranks: slots to the owners of their experts, and results back.
 *
 * H hidden, E experts, P ranks that share them (E / P each), I expert width, S slots of this rank:
 * (token, choice) pairs sorted by expert, so that what goes to one owner stands side by side.
 *
 * No slot is dropped, however uneven the routing: slots travel in as many rounds as the owner with
 * the most needs, at most R rows to an owner in each. Nothing that a round receives is kept:
 * backward sends the slots again and computes their activations again, so memory is what lay_out
 * takes, whatever the routing. Two ways, to the same bits:
 *
 *   on the device (exchange_device.c): ranks that reach each other's memory put rows there and get
 *     them back; all rounds that there may ever be are queued, and the device finds which are
 *     needed. The host reads nothing, so a step can be captured.
 *   by the host (exchange.c): counts of all ranks are gathered and read, once per layer and pass,
 *     and rounds are exchanges of the engine's. */
#ifndef TESSERA_TRAINER_MODEL_EXCHANGE_H
#define TESSERA_TRAINER_MODEL_EXCHANGE_H

#include "trainer/device/space.h"
#include "trainer/model/layers.h"

/* What ranks leave with each other, one of a model; offsets in bytes of the window
 * (ops/peers.h). */
typedef struct exchange_window {
    const comm *group;
    comm_window memory;
    size_t arrived, met, borders;
    size_t moved;      /* [4] int64: rows that came and went forward; backward */
    size_t x, o, back; /* [R, H] act each: inputs, output gradients; what goes back */
    size_t bytes;
} exchange_window;

/* Shared by all layers. */
typedef struct exchange {
    int64_t rows;  /* R */
    int64_t slots; /* the most that a rank has */
    bool on_device;
    const exchange_window *window; /* on_device: where it lies, once it is known */
    /* device */
    void *came;       /* [R, H] by the host: as ranks sent it, rank by rank; or is sent back */
    void *x;          /* [R, H] inputs by expert; their gradient in backward */
    void *o;          /* [R, H] outputs by expert; their gradient in backward */
    void *gu;         /* [R, 2I] gate | up; their gradient in backward */
    void *a;          /* [R, I]; its gradient in backward */
    int32_t *borders; /* [P, E + 1] of every rank's slots */
    int32_t *offset;  /* [E / P + 1] of the round's rows by expert */
    int32_t *from;    /* [R] row of came, by expert */
    int32_t *to;      /* [R] the inverse */
    int32_t *place, *order, *rounds; /* on_device: exchange_plan's (ops/peers.h) */
    /* host, heap: the same of a round */
    int32_t *host_borders, *host_offset, *host_from, *host_to;
    int64_t *send_first, *send_count, *came_first, *came_count, *next; /* [P] */
} exchange;

/* For at most `slots` slots of a rank; by the host, until on_device is set. */
WARN_UNUSED status exchange_open(exchange *e, const text_dims *d, const layout *l, int64_t slots);
void exchange_close(exchange *e); /* accepts a half-opened one */
void exchange_layout(exchange *e, space *sp, const shape *z);

/* Rows of a round. */
int64_t exchange_rows(const shape *z);

/* Weights of this rank's experts: gate_up [E / P, H, 2I], down [E / P, I, H]. */
typedef struct exchange_weights {
    int64_t layer;
    const param *gate_up, *down;
    lora gate_up_adapter, down_adapter;
} exchange_weights;

/* Bytes of a window for an exchange of that many slots. */
int64_t exchange_window_bytes(const text_dims *d, const layout *l, int64_t slots, size_t act);
/* Collective over all ranks of the mesh. out_open false, on all of them, where ranks do not reach
 * each other's memory: the reason is in the log; UNAVAILABLE where they must. Waits. */
WARN_UNUSED status exchange_window_open(stream *s, const mesh *m, const text_dims *d, int64_t slots,
                                        bool must, exchange_window *out, bool *out_open);
void exchange_window_close(stream *s, exchange_window *w); /* accepts an empty one */
/* Rows moved since the last clear, [4] as above. fetch queues; told takes them into the ledger. */
enum { EXCHANGE_MOVED = 4 };
WARN_UNUSED status exchange_clear_moved(stream *s, const exchange_window *w);
WARN_UNUSED status exchange_fetch_moved(stream *s, const exchange_window *w, int64_t *out_pinned);
void exchange_told_moved(const exchange_window *w, const int64_t *moved, int64_t slot_bytes);

/* o [S, H] = experts of x [S, H]; offset [E + 1] on the device: first slot of each expert. By the
 * host it waits. */
WARN_UNUSED status exchange_fwd(const pass_context *r, const exchange *e, const exchange_weights *w,
                                const int32_t *offset, const void *x, void *o);
/* x becomes its gradient from do_ [S, H]; weights' gradients are added. */
WARN_UNUSED status exchange_bwd(const pass_context *r, const exchange *e, const exchange_weights *w,
                                const int32_t *offset, void *x, const void *do_);

#endif
