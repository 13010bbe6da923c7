/* pipeline_stages.h: which decoder layers each stage of a pipeline has, and in which order a stage
 * passes the micro-batches of a step. Pure arithmetic.
 *
 * The first stage has what comes before the layers too (vision tower, embedding) and the layers
 * that deepstack features are added behind; the last one final norm, head and loss.
 *
 * The order is 1F1B: forwards until the stages behind have work, then a forward and a backward in
 * turn, then the backwards that are left. A stage holds the activations of as many micro-batches as
 * there are stages from it on, itself included. */
#ifndef TESSERA_TRAINER_PARALLEL_PIPELINE_STAGES_H
#define TESSERA_TRAINER_PARALLEL_PIPELINE_STAGES_H

#include "trainer/parallel/layout.h"

/* Predicted time of a micro-batch, in any unit. */
typedef struct stage_costs {
    const double *layer; /* [layers] */
    int64_t layers;
    double before, behind; /* of what the first stage, and the last, has besides */
    int64_t first_layers;  /* that the first stage must have */
} stage_costs;

/* Fills l->stage_end so that the slowest stage is as fast as it can be, then the slowest behind the
 * first one, and so on. Every stage gets a layer:
 * layout_check has seen that there are enough. */
void stages_balance(const stage_costs *c, layout *l);
/* Words in a list of split points. */
int64_t stages_listed(const char *text);
/* Fills it from a list of the layers that stages begin with, "layers.12, layers.30", one for each
 * but the first; layout_check has seen that there are layers enough. ST_CONFIG where their
 * number is wrong, they do not rise, or they leave the first stage less than first_layers: then
 * with a list that fits. */
WARN_UNUSED status stages_read(const char *text, int64_t layers, int64_t first_layers, layout *l);

typedef enum pass_kind {
    PASS_NONE,
    PASS_FORWARD,
    PASS_BACKWARD,
    PASS_BOTH /* forward, loss, backward at once: the last stage's */
} pass_kind;

typedef struct stage_pass {
    pass_kind kind;
    int64_t micro_batch;
} stage_pass;

/* Passes of a stage in a step of n micro-batches, and the i-th of them. */
int64_t stage_passes(int stage, int stages, int64_t n);
stage_pass stage_pass_at(int stage, int stages, int64_t n, int64_t i);
/* Micro-batches between their forward and their backward, at most. */
int64_t stage_flights(int stage, int stages, int64_t n);

#endif
