/* SPDX-License-Identifier: Apache-2.0 */
/* received.h: predicts the bytes that a rank receives from other ranks in a step, by the names that
 * the ledger of collectives uses. The plan uses it, and tests compare the ledger with it.
 * trainer/parallel/layouts.md explains the formula. */
#ifndef TESSERA_TRAINER_PLAN_RECEIVED_H
#define TESSERA_TRAINER_PLAN_RECEIVED_H

#include "trainer/model/dims/dims.h"
#include "trainer/model/params/params.h"
#include "trainer/model/layers/recompute.h"

/* Expert slots of a layer in one direction: those that come to this rank's experts from other
 * ranks, and those of its own T x top_k slots that go to experts of other ranks. Where experts are
 * cut over tensor ranks, its own are those of all tensor ranks. */
typedef struct received_slots {
    int64_t come, go;
} received_slots;

/* What a rank works on in a step: sums over its micro-steps. */
typedef struct received_work {
    int64_t micro_steps;
    int64_t tokens;              /* T: its own, with the padding that ops run on */
    int64_t feature_rows;        /* F: device_batch.feature_rows */
    const received_slots *slots; /* [layers]; NULL: ranks share no experts */
    recompute recomputed;        /* what activation checkpointing recomputes in the decoder */
    size_t act, acc;             /* bytes of an element, of activations and of sums */
    double aux;                  /* loss.router_aux_coef */
} received_work;

typedef struct received_line {
    const char *what; /* the name in the ledger */
    mesh_group group; /* MESH_WHOLE for lines of weights, though each span has a group of its own */
    int64_t bytes;
} received_line;

enum { RECEIVED_LINES = 40 };

/* How many numbers the ranks add up in a step besides its loss: the counts that run/step_rows.c
 * lists, how many ranks were asked to stop, and the FLOPs. */
enum { STEP_COUNTS = 10, STEP_TOTALS = STEP_COUNTS + sizeof(flops) / sizeof(int64_t) };

/* Bytes of weights that are gathered, and of gradients that are reduced, by the group of ranks that
 * stores them together. */
typedef struct received_weights {
    int64_t gather[MESH_GROUPS], reduce[MESH_GROUPS];
} received_weights;

/* Fills `out` with all lines of the formula and returns how many there are. params: a registry that
 * is cut and shared over the mesh, which may be a sketch, and whose spans were made by params_size.
 * A group of one rank receives nothing, and its lines are 0. */
int received_lines(const params *params, const model_dims *dims, const mesh *mesh,
                   const received_work *work, received_line out[RECEIVED_LINES]);

/* The bytes of weights and gradients alone. vision: those of the vision tower and its mergers,
 * otherwise all others. */
received_weights received_weights_of(const params *params, const model_dims *dims, const mesh *mesh,
                                     const received_work *work, bool vision);

#endif
