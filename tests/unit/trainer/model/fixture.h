/* fixture.h: a small model on the CPU backend with lively weights, and rows made by hand: the test
 * batch of spec 1.5. In float or double, whichever ops library the program links. */
#ifndef TESSERA_TESTS_UNIT_TRAINER_MODEL_FIXTURE_H
#define TESSERA_TESTS_UNIT_TRAINER_MODEL_FIXTURE_H

#include "tests/harness.h"
#include "trainer/batch/stager.h"
#include "trainer/model/qwen3vl.h"

typedef struct fixture {
    const mesh *mesh; /* NULL: one rank */
    device *dev;
    stream *s;
    model_dims d;
    params *p;
    model *m;
    model_options o;
    stager *g;
    loss_sums sums;
    arena rows;
} fixture;

/* Parameters only. Weights are functions of (seed, name, element), large enough that every
 * mechanism matters: linear 1/sqrt(fan in), norms 1 +- 0.2, biases 0.2. */
void fixture_open(fixture *f, const model_dims *d);
/* As a rank of m: what it holds of every parameter, and of rows. */
void fixture_open_rank(fixture *f, const model_dims *d, const mesh *m);
void fixture_close(fixture *f);
/* The parameters' memory anew, with the same values, after rows of the registry were frozen. */
void fixture_alloc_anew(fixture *f);
/* The model (and stager) for these capacities; again to change them. */
void fixture_model(fixture *f, const model_options *o, bool fixed_shapes);

/* One document: text runs and visual items in turn, "4 1x4x6 3 1x6x4 2" (a run of n tokens, or a
 * grid; a grid of more than one frame is a video, its frames as separate runs of pads, given as
 * "v2x4x4" then "+" for each further frame). Ids, labels, pixels from the seed. */
typedef struct document {
    const char *text;
    uint64_t seed;
} document;
row fixture_row(fixture *f, const document *docs, int n, bool weights);
/* Documents A, B, C of spec 1.5. */
extern const document spec_documents[3];

/* Activation checkpointing of both towers: full, or none. */
static inline recomputes fixture_full(bool on)
{
    const recompute one = {.what = on ? RECOMPUTE_ALL : 0};
    return (recomputes){.text = one, .vision = one};
}

/* Gradients are cleared first. Loss with the auxiliary term (coefficient * weight * aux). */
double fixture_forward_backward(fixture *f, const row *rows, int64_t n_rows);
double fixture_forward(fixture *f, const row *rows, int64_t n_rows);
/* Gradient of what is held of a parameter, heap. */
double *fixture_grad(fixture *f, const param *p);
double fixture_aux(fixture *f);

#endif
