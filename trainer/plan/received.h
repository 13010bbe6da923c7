/* received.h: bytes that a rank receives from others in a step, by name: the formula of
 * parallel/layouts.md, in one place for plan and for the tests that hold the ledger against it. */
#ifndef TESSERA_TRAINER_PLAN_RECEIVED_H
#define TESSERA_TRAINER_PLAN_RECEIVED_H

#include "trainer/model/dims.h"
#include "trainer/model/params.h"
#include "trainer/model/recompute.h"

/* Of a layer, in one direction: slots that come to a rank's experts from other ranks, and of those
 * it offers that go to others' (T x top_k; with expert-tensor those of all tensor ranks). */
typedef struct received_slots {
    int64_t come, go;
} received_slots;

/* What a rank works on in a step: sums over its micro-steps. */
typedef struct received_work {
    int64_t micro_steps;
    int64_t tokens;              /* T: its own, with the padding that ops run on */
    int64_t feature_rows;        /* F: device_batch.feature_rows */
    const received_slots *slots; /* [layers]; NULL: no experts that ranks share */
    recompute recomputed;        /* of activation checkpointing, in the decoder */
    size_t act, acc;             /* bytes of an element */
    double aux;                  /* loss.router_aux_coef */
} received_work;

typedef struct received_line {
    const char *what; /* as in the ledger */
    mesh_group group; /* of the weights' lines: MESH_WHOLE, though each span has its own */
    int64_t bytes;
} received_line;

enum { RECEIVED_LINES = 40 };

/* Numbers that the ranks of a step add up beside its loss (run/step_totals.h). */
enum { STEP_COUNTS = 9, STEP_TOTALS = STEP_COUNTS + sizeof(flops) / sizeof(int64_t) };

/* Bytes of weights, and of their gradients, by the group that stores them together. */
typedef struct received_weights {
    int64_t gather[MESH_GROUPS], reduce[MESH_GROUPS];
} received_weights;

/* p: cut and shared over m (which may be a sketch), its spans made (params_size). Returns how many
 * lines; a group of one receives nothing, and its lines are 0. */
int received_lines(const params *p, const model_dims *d, const mesh *m, const received_work *w,
                   received_line out[RECEIVED_LINES]);

/* p as above. vision: those of the tower and its mergers, else the others. */
received_weights received_weights_of(const params *p, const model_dims *d, const mesh *m,
                                     const received_work *w, bool vision);

#endif
