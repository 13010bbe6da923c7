/* stage_plan.c: predicts the time of each layer, of what comes before the layers (the vision tower)
 * and after them (the head), and balances the stages by these times. */
#include "trainer/plan/stage_plan.h"

#include <stdlib.h>

#include "trainer/model/unit_order.h"
#include "trainer/parallel/pipeline_stages.h"
#include "trainer/optim/groups.h"
#include "trainer/plan/rates.h"
#include "trainer/plan/row_work.h"

/* Predicted seconds of a row in each part of the model, forward and backward. */
typedef struct row_time {
    double *layer;         /* [layers], heap */
    double before, behind; /* the vision tower, before the layers; the head, after them */
} row_time;

/* Forward FLOPs of the decoder layers [0, n): out[0] dense products, out[1] experts, out[2]
 * attention. */
static void layers_flops(const row_kind *row, const model_dims *d, int64_t n, double out[3])
{
    model_dims cut = *d;
    flops f;
    cut.text.layers = n;
    cut.vision.depth = 0;
    row_kind_flops(row, &cut, &f);
    out[0] = (double)(f.text_linear - f.text_experts);
    out[1] = (double)f.text_experts;
    out[2] = (double)f.text_attention;
}

/* The lowest layer that a gradient passes through. */
static int64_t lowest_layer(const training_share *share, int64_t layers)
{
    return (int64_t)((1.0 - share->text_dgrad) * (double)layers + 0.5);
}

static void time_layers(const conf *c, const model_dims *d, const training_share *share,
                        const rates *r, row_time *out)
{
    const row_kind row = row_kind_of(c, d);
    const double recomputed = c->activation_checkpoint_mode == AC_FULL ? 1 : 0;
    const double bytes = (double)row.seq_len * cost_layer_bytes(&d->text) / 3;
    double before[3] = {0}, upto[3];
    for (int64_t l = 0; l < d->text.layers; l++) {
        const double back = l >= lowest_layer(share, d->text.layers) ? 1 : 0;
        layers_flops(&row, d, l + 1, upto);
        out->layer[l] =
            (upto[0] - before[0]) * (1 + back * (1 + recomputed) + share->wgrad[GROUP_TEXT]) /
                r->of[RATE_DENSE] +
            (upto[1] - before[1]) * (1 + back * (1 + recomputed) + share->wgrad[GROUP_EXPERTS]) /
                r->of[RATE_EXPERTS] +
            (upto[2] - before[2]) * (1 + back * (COST_ATTENTION_BACKWARD + recomputed)) /
                r->of[RATE_ATTENTION] +
            bytes * (1 + back * (2 + recomputed)) / r->of[RATE_COPY];
        for (int i = 0; i < 3; i++)
            before[i] = upto[i];
    }
}

/* Predicts the vision tower and the head. The embedding is only a copy and takes no time worth
 * counting. */
static void time_ends(const conf *c, const model_dims *d, const training_share *share,
                      const rates *r, row_time *out)
{
    const row_kind row = row_kind_of(c, d);
    const double back = share->vision_dgrad,
                 recomputed = c->activation_checkpoint_mode == AC_FULL ? back : 0;
    const double patches =
        (double)(row_kind_images(&row) * row.grid[0] * row.grid[1] * row.grid[2]);
    flops f;
    row_kind_flops(&row, d, &f);
    out->behind = (double)f.head * (2 + share->head_wgrad) / r->of[RATE_DENSE];
    out->before = ((double)f.patch_embed * (1 + share->patch_wgrad) +
                   (double)f.vision_blocks * (1 + back + recomputed + share->wgrad[GROUP_VISION]) +
                   (double)f.mergers * (1 + share->merger_dgrad + share->wgrad[GROUP_MERGER])) /
                      r->of[RATE_DENSE] +
                  (double)f.vision_attention * (1 + COST_ATTENTION_BACKWARD * back + recomputed) /
                      r->of[RATE_VISION_ATTENTION] +
                  patches * (double)d->vision.depth * cost_block_bytes(&d->vision) / 3 *
                      (1 + 2 * back + recomputed) / r->of[RATE_COPY];
}

static status time_row(const conf *c, const model_dims *d, const params *p, row_time *out)
{
    const rates r = rates_h200();
    training_share share;
    *out = (row_time){.layer = calloc((size_t)d->text.layers, sizeof *out->layer)};
    if (!out->layer)
        return FAIL(ST_NO_MEMORY, "no memory to plan %lld layers", (long long)d->text.layers);
    groups_share(p, d, &share);
    time_layers(c, d, &share, &r, out);
    time_ends(c, d, &share, &r, out);
    return ST_OK;
}

status stage_plan(const conf *c, const model_dims *d, const params *p, layout *inout)
{
    const layout_limits limits = params_limits(d);
    row_time t;
    if (inout->pipeline == 1)
        return ST_OK;
    TRY(layout_check(inout, &limits));
    if (c->parallelism_pipeline_parallel_split_points[0])
        return stages_read(c->parallelism_pipeline_parallel_split_points, d->text.layers,
                           limits.first_layers, inout);
    TRY(time_row(c, d, p, &t));
    const stage_costs costs = {t.layer, d->text.layers, t.before, t.behind, limits.first_layers};
    stages_balance(&costs, inout);
    free(t.layer);
    return ST_OK;
}

status stage_plan_uneven(const conf *c, const model_dims *d, const params *p, const layout *l,
                         double *out)
{
    row_time t;
    double slowest = 0, all = 0;
    TRY(time_row(c, d, p, &t));
    for (int stage = 0; stage < l->pipeline; stage++) {
        const stage_part part = stage_part_of(d, l, stage);
        double sum = (part.opens ? t.before : 0) + (part.closes ? t.behind : 0);
        for (int64_t i = part.first; i < part.end; i++)
            sum += t.layer[i];
        slowest = sum > slowest ? sum : slowest;
        all += sum;
    }
    free(t.layer);
    *out = all > 0 ? slowest * (double)l->pipeline / all : 1;
    return ST_OK;
}
