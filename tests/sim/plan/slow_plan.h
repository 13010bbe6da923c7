/* SPDX-License-Identifier: Apache-2.0 */
/* slow_plan.h: the stream computed a second time, to judge the daemon's rows by.
 *
 * It follows prepd/plan/packing.md and the headers of prepd/plan, and calls nothing of prepd or
 * proto: no planning code of the daemon, not its arithmetic of pictures, not its permutation and
 * not its assignment of rows to ranks. So a defect in one of them shows as a difference. Speed and
 * memory count for nothing: whole epochs are planned at once and every row is kept, searches go
 * over all candidates, and no memory ends the process. What no simulated data set uses is missing:
 * the limits of a model folder. */
#ifndef TESSERA_TESTS_SIM_PLAN_SLOW_PLAN_H
#define TESSERA_TESTS_SIM_PLAN_SLOW_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/conf/conf.h"

/* What the index says of a picture, or of a clip of `frames` frames. */
typedef struct slow_picture {
    bool refused;
    int64_t height, width, frames;
    double fps;
} slow_picture;

/* What the adapter and the index say of a sample. The last six are of data.group shared_prefix and
 * of mixtures, as in index_beginning and sample_place. */
typedef struct slow_sample {
    bool refused, plain;
    int64_t text_tokens, targets;
    const int32_t *shows; /* [n_shown] borrowed */
    int32_t n_shown;
    int64_t back, agrees, head, first_label; /* back: how far back its predecessor is; 0: none */
    int64_t source, piece;
} slow_sample;

/* Borrowed by the plan, which may outlive none of it. */
typedef struct slow_data {
    const slow_picture *pictures;
    const slow_sample *samples; /* [n_samples] in the order of the data set */
    int64_t n_samples;
    const double *weights; /* [n_sources] */
    int n_sources;
} slow_data;

typedef struct slow_grid {
    int64_t rows, columns, pairs; /* pairs: of a clip; 0: a still picture */
} slow_grid;

/* The members of planned_doc (prepd/plan/plan.h) that say what a document is. */
typedef struct slow_doc {
    int64_t sample, part, tokens, from, whole, patches;
    const int32_t *shows;   /* [n_shown] */
    const slow_grid *grids; /* [n_shown] */
    int32_t n_shown;
    bool shared;
    int64_t prefix, before;
} slow_doc;

typedef struct slow_row {
    uint64_t epoch, window;
    slow_doc *docs; /* [n_docs] owned */
    int64_t n_docs, tokens, patches;
    int64_t cost; /* as assign_cost predicts it */
} slow_row;

typedef enum slow_kind { SLOW_PACKED, SLOW_SAMPLES } slow_kind; /* as plan_kind */

typedef struct slow_plan slow_plan;

/* NULL if a source has no sample that can be used. */
slow_plan *slow_plan_new(const slow_data *data, const conf *options, slow_kind kind);
void slow_plan_free(slow_plan **plan);
/* Row `number`, until the plan is freed; NULL past the end. */
const slow_row *slow_plan_row(slow_plan *plan, uint64_t number);
/* Rows of the whole stream; UINT64_MAX for one without end. */
uint64_t slow_plan_rows(const slow_plan *plan);
bool slow_plan_refuses(const slow_plan *plan, int64_t sample);

/* slow_assign.c: which rank gets each of a step's rows. */
void slow_assign(const int64_t *cost, int64_t n_rows, int ranks, int *rank_of);

/* slow_grids.c: the grid that a picture becomes with at most `room` patches; false if it cannot. */
bool slow_grid_of(const slow_picture *picture, const conf *options, int64_t room, slow_grid *out);
int64_t slow_patches(slow_grid grid);
/* Writes which frames of a clip are taken to out [frames], and returns how many. */
int64_t slow_frames(const slow_picture *clip, const conf *options, int64_t *out);

#endif
