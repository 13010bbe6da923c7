/* SPDX-License-Identifier: Apache-2.0 */
/* fixture.h: a small model on the CPU backend, with weights large enough that every mechanism
 * matters, and rows made by hand, among them the test row of trainer/model/equations.md ("Debug
 * model and worked examples"). It computes in float or in double, whichever ops library a program
 * links. */
#ifndef TESSERA_TESTS_UNIT_TRAINER_MODEL_FIXTURE_H
#define TESSERA_TESTS_UNIT_TRAINER_MODEL_FIXTURE_H

#include "tests/harness.h"
#include "trainer/batch/stager.h"
#include "trainer/model/qwen3vl.h"

typedef struct fixture {
    const mesh *mesh; /* NULL: one rank */
    device *dev;
    stream *queue;
    model_dims dims;
    params *registry;
    model *net;
    model_options options;
    stager *staging;
    loss_sums sums;
    arena rows;
} fixture;

/* Makes the parameters, without a model. A weight is a function of (seed, name, element) and large
 * enough that every mechanism changes the result: linear weights have the spread 1/sqrt(fan in),
 * norms 1 +- 0.2, biases 0.2. */
void fixture_open(fixture *setup, const model_dims *dims);
/* The same for the rank of mesh ranks, which holds only its part of every parameter and of the
 * rows. */
void fixture_open_rank(fixture *setup, const model_dims *dims, const mesh *ranks);
void fixture_close(fixture *setup);
/* Allocates the parameters again with the same values; needed after the test has frozen some of
 * them. */
void fixture_alloc_anew(fixture *setup);
/* Makes the model and the stager for the capacities in options; a second call replaces them. */
void fixture_model(fixture *setup, const model_options *options, bool fixed_shapes);

/* One document, described by runs of text and visual items in turn: in "4 1x4x6 3 1x6x4 2", 4 is a
 * run of four text tokens and 1x4x6 a grid. A grid of several frames is a video, each frame a run
 * of pads of its own: "v2x4x4", then "+" for each further frame. The seed decides token ids, labels
 * and pixels. */
typedef struct document {
    const char *text;
    uint64_t seed;
} document;
row fixture_row(fixture *setup, const document *docs, int total, bool weights);
/* Documents A, B and C of the test row in trainer/model/equations.md. */
extern const document debug_documents[3];

/* Full activation checkpointing in both towers, or none. */
static inline recomputes fixture_full(bool on)
{
    const recompute one = {.what = on ? RECOMPUTE_ALL : 0};
    return (recomputes){.text = one, .vision = one};
}

/* Clears the gradients, runs forward and backward, and returns the loss including the auxiliary
 * term (coefficient * weight * aux). */
double fixture_forward_backward(fixture *setup, const row *rows, int64_t n_rows);
double fixture_forward(fixture *setup, const row *rows, int64_t n_rows);
/* The gradient of the part of a parameter that this rank holds; the caller frees it. */
double *fixture_grad(fixture *setup, const param *weight);
double fixture_aux(fixture *setup);

#endif
