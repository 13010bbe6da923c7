/* exchange.h: experts on other ranks: slots to the owners of their experts, and results back.
 *
 * H hidden, E experts, P ranks that share them (E / P each), I expert width, S slots of this rank:
 * (token, choice) pairs sorted by expert, so that what goes to one owner stands side by side.
 *
 * No slot is dropped, however uneven the routing. Counts of all ranks are gathered and read by the
 * host, once per layer and pass; then slots travel in as many rounds as the owner with the most
 * needs, at most R rows to an owner in each. Nothing that a round receives is kept: backward
 * sends the slots again and computes their activations again, so memory is what lay_out takes,
 * whatever the routing. */
#ifndef TESSERA_MODEL_EXCHANGE_H
#define TESSERA_MODEL_EXCHANGE_H

#include "trainer/device/space.h"
#include "trainer/model/layers.h"

/* Shared by all layers. */
typedef struct exchange {
    int64_t rows; /* R */
    /* device */
    void *came;       /* [R, H] as ranks sent it, rank by rank; or is sent back */
    void *x;          /* [R, H] inputs by expert; their gradient in backward */
    void *o;          /* [R, H] outputs by expert; their gradient in backward */
    void *gu;         /* [R, 2I] gate | up; their gradient in backward */
    void *a;          /* [R, I]; its gradient in backward */
    int32_t *borders; /* [P, E + 1] of every rank's slots */
    int32_t *offset;  /* [E / P + 1] of the round's rows by expert */
    int32_t *from;    /* [R] row of came, by expert */
    int32_t *to;      /* [R] the inverse */
    /* host, heap: the same of a round */
    int32_t *host_borders, *host_offset, *host_from, *host_to;
    int64_t *send_first, *send_count, *came_first, *came_count, *next; /* [P] */
} exchange;

/* Are experts shared among ranks? Then slots are exchanged. */
static inline bool exchange_wanted(const layout *l)
{
    return l->expert > 1;
}

/* Host memory for at most `slots` slots of a rank. */
WARN_UNUSED status exchange_open(exchange *e, const text_dims *d, const layout *l, int64_t slots);
void exchange_close(exchange *e); /* accepts a half-opened one */
void exchange_layout(exchange *e, space *sp, const shape *z);

/* Weights of this rank's experts: gate_up [E / P, H, 2I], down [E / P, I, H]. */
typedef struct exchange_weights {
    int64_t layer;
    const param *gate_up, *down;
} exchange_weights;

/* o [S, H] = experts of x [S, H]; offset [E + 1] on the device: first slot of each expert. Waits.
 */
WARN_UNUSED status exchange_fwd(const run *r, const exchange *e, const exchange_weights *w,
                                const int32_t *offset, const void *x, void *o);
/* x becomes its gradient from do_ [S, H]; weights' gradients are added. Waits. */
WARN_UNUSED status exchange_bwd(const run *r, const exchange *e, const exchange_weights *w,
                                const int32_t *offset, void *x, const void *do_);

#endif
