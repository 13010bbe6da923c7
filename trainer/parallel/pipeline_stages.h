/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_stages.h: which decoder layers each stage of a pipeline has, and in which order a stage
 * passes the micro-batches of a step. Pure arithmetic.
 *
 * The first stage also has what comes before the layers (vision tower and embedding) and must have
 * the layers after which deepstack features are added. The last stage also has the final norm, the
 * head and the loss.
 *
 * The order is 1F1B (Narayanan et al. 2021, arXiv:2104.04473): forwards until the later stages have
 * work, then a forward and a backward in turn, then the backwards that are left. A stage therefore
 * holds the activations of at most as many micro-batches as there are stages from it to the last
 * one. With 3 stages and 4 micro-batches:
 *
 *   stage 0   F0 F1 F2 B0 F3 B1 B2 B3
 *   stage 1   F0 F1 B0 F2 B1 F3 B2 B3
 *   stage 2   FB0 FB1 FB2 FB3          (the last one goes straight from forward to backward)
 */
#ifndef TESSERA_TRAINER_PARALLEL_PIPELINE_STAGES_H
#define TESSERA_TRAINER_PARALLEL_PIPELINE_STAGES_H

#include "trainer/parallel/layout.h"

/* The predicted times of a micro-batch, in any unit. */
typedef struct stage_costs {
    const double *layer;  /* [layers] */
    int64_t layers;       /* of the model */
    double before, after; /* what comes before the first layer, and after the last one */
    int64_t first_layers; /* layers that the first stage must have */
} stage_costs;

/* Fills in stage_end so that the slowest stage is as fast as it can be, then the slowest of the
 * stages after the first, and so on. Every stage gets at least one layer; layout_check has made
 * sure that there are enough. */
void stages_balance(const stage_costs *costs, layout *inout);
/* How many split points a list names. */
int64_t stages_listed(const char *text);
/* Fills in stage_end from a list of the layers with which the stages after the first begin, such as
 * "layers.12, layers.30". ST_CONFIG if their number is wrong, they do not rise, or they leave
 * the first stage fewer than first_layers; it then shows a list that fits. layout_check has made
 * sure that the model has enough layers. */
WARN_UNUSED status stages_read(const char *text, int64_t layers, int64_t first_layers,
                               layout *inout);

typedef enum pass_kind {
    PASS_NONE,
    PASS_FORWARD,
    PASS_BACKWARD,
    PASS_BOTH /* forward, loss and backward of one micro-batch: the last stage's */
} pass_kind;

typedef struct stage_pass {
    pass_kind kind;
    int64_t micro_batch; /* from 0 */
} stage_pass;

/* How many passes stage `stage` of `stages` makes in a step of `batches` micro-batches, and which
 * one is the pass number `index`, from 0. */
int64_t stage_passes(int stage, int stages, int64_t batches);
stage_pass stage_pass_at(int stage, int stages, int64_t batches, int64_t index);
/* The most micro-batches that are between their forward and their backward at once. */
int64_t stage_flights(int stage, int stages, int64_t batches);

#endif
