/* SPDX-License-Identifier: Apache-2.0 */
/* sweep.c: goes through the products of degrees, and plans and predicts each layout. */
#include "trainer/plan/cost.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/base/words.h"
#include "trainer/plan/cost.h"
#include "trainer/plan/recompute_plan.h"

enum { CONTEXT_TOKENS = 16384 /* rows shorter than this are not cut over context ranks */ };

typedef struct candidate {
    layout layout;
    int64_t rows;
    int mode;      /* activation checkpointing: AC_NONE, .. */
    double memory; /* share of the card */
    double tokens_per_s, mfu, step;
    bool untimed_experts; /* as in cost.h */
} candidate;

typedef struct candidates {
    candidate *list; /* heap */
    size_t count, room, tried;
} candidates;

static status keep_candidate(candidates *all, const candidate *one)
{
    if (all->count == all->room) {
        size_t room = all->room ? 2 * all->room : 64;
        candidate *list = realloc(all->list, room * sizeof *list);
        if (!list)
            return FAIL(ST_NO_MEMORY, "no memory for %zu layouts", room);
        all->list = list;
        all->room = room;
    }
    all->list[all->count++] = *one;
    return ST_OK;
}

static int faster(const void *left, const void *right)
{
    const candidate *first = left, *second = right;
    if (first->tokens_per_s != second->tokens_per_s)
        return first->tokens_per_s > second->tokens_per_s ? -1 : 1;
    return first->memory < second->memory ? -1 : first->memory > second->memory;
}

/* Finds the largest micro-batch that fits and divides the step, and keeps the layout with it. */
static status judge_layout(const plan_input *in, const conf *options, const rates *speeds, int mode,
                           candidates *all)
{
    const model_dims *dims = in->dims;
    const params *registry = in->params;
    layout degrees;
    const layout_limits limits = params_limits(dims);
    if (layout_of(options, NULL, &degrees) != ST_OK || layout_check(&degrees, &limits) != ST_OK)
        return ST_OK; /* no valid layout, or none for this model */
    all->tried++;
    int64_t consumers = layout_consumers(&degrees);
    for (int64_t rows = options->training_global_batch_size / consumers; rows > 0; rows--) {
        if (options->training_global_batch_size % (consumers * rows) != 0)
            continue;
        memory_plan plan;
        recomputes recomputed;
        conf one = *options;
        plan_input tried = *in;
        tried.conf = &one;
        tried.layout = &degrees;
        one.training_local_batch_size = rows;
        TRY(layout_of(&one, NULL,
                      &degrees)); /* again, since the number of micro-steps has changed */
        TRY(recompute_plan_with(&tried, rows, mode, &recomputed));
        TRY(layout_plan_make(&tried, rows, &recomputed, &plan));
        if (!layout_fits(&tried, &plan))
            continue;
        cost price;
        TRY(cost_of(&one, &degrees, dims, registry, speeds, &recomputed, &price));
        return keep_candidate(all, &(candidate){.layout = degrees,
                                                .rows = rows,
                                                .mode = mode,
                                                .memory = (double)plan.total / in->device->usable,
                                                .tokens_per_s = price.tokens_per_s,
                                                .mfu = price.mfu,
                                                .step = price.step,
                                                .untimed_experts = price.untimed_experts});
    }
    return ST_OK;
}

/* Tries all degrees of expert and expert-tensor parallelism that go with the other degrees. */
static status judge_experts(const plan_input *in, conf *options, const rates *speeds,
                            candidates *all)
{
    const model_dims *dims = in->dims;
    int64_t flat = options->parallelism_data_parallel_shard_degree *
                   options->parallelism_context_parallel_degree *
                   options->parallelism_tensor_parallel_degree;
    for (int cut = 0; cut < (options->parallelism_tensor_parallel_degree > 1 ? 2 : 1); cut++) {
        options->parallelism_expert_tensor_parallel_degree =
            cut ? options->parallelism_tensor_parallel_degree : 1;
        for (int64_t expert = 1; expert <= flat; expert++) {
            if (flat % expert != 0 || (expert > 1 && dims->text.experts == 0) ||
                (dims->text.experts > 0 && dims->text.experts % expert != 0))
                continue;
            options->parallelism_expert_parallel_degree = expert;
            for (int mode = AC_NONE; mode <= AC_FULL; mode++)
                TRY(judge_layout(in, options, speeds, mode, all));
        }
    }
    return ST_OK;
}

static status search(const plan_input *in, conf *options, int64_t ranks, const rates *speeds,
                     candidates *all)
{
    const model_dims *dims = in->dims;
    options->parallelism_world_size = ranks;
    options->training_local_batch_size = 1;
    for (int64_t tensor = 1; tensor <= speeds->per_node && tensor <= ranks; tensor *= 2) {
        if (dims->text.kv_heads % tensor != 0)
            continue;
        for (int64_t context = 1; context * tensor <= ranks; context *= 2) {
            if (context > 1 && options->training_seq_len / context < CONTEXT_TOKENS / 2)
                continue;
            for (int64_t pipeline = 1; pipeline * context * tensor <= ranks; pipeline *= 2) {
                int64_t rest = ranks / (tensor * context * pipeline);
                if (rest * tensor * context * pipeline != ranks ||
                    dims->text.layers % pipeline != 0)
                    continue;
                for (int64_t replicate = 1; replicate <= rest; replicate++) {
                    if (rest % replicate != 0)
                        continue;
                    options->parallelism_tensor_parallel_degree = tensor;
                    options->parallelism_context_parallel_degree = context;
                    options->parallelism_pipeline_parallel_degree = pipeline;
                    options->parallelism_data_parallel_replicate_degree = replicate;
                    options->parallelism_data_parallel_shard_degree = rest / replicate;
                    TRY(judge_experts(in, options, speeds, all));
                }
            }
        }
    }
    return ST_OK;
}

status sweep_layouts(const plan_input *in, int64_t ranks, const rates *speeds, int most, FILE *to)
{
    const conf *options = in->conf;
    static const char *const modes[] = {"none", "op", "full"};
    candidates all = {0};
    conf changed = *options;
    status st = search(in, &changed, ranks, speeds, &all);
    if (st == ST_OK && all.tried == 0)
        st = FAIL(ST_CONFIG,
                  "sweep: no layout of %" PRId64 " ranks is possible with this model and "
                  "training.global_batch_size %" PRId64 "; the last one tried says: %s",
                  ranks, options->training_global_batch_size, status_text());
    if (st == ST_OK && all.count == 0)
        st = FAIL(ST_CONFIG,
                  "sweep: none of %zu layouts of %" PRId64
                  " ranks fits memory.limit %.0f %% of %s with "
                  "training.seq_len %" PRId64 " and training.global_batch_size %" PRId64
                  "; more ranks or shorter rows are needed",
                  all.tried, ranks, options->memory_limit * 100.0, in->device->name,
                  options->training_seq_len, options->training_global_batch_size);
    if (st == ST_OK) {
        qsort(all.list, all.count, sizeof *all.list, faster);
        fprintf(to,
                "%zu of %zu layouts of %" PRId64 " ranks fit; predicted, not measured, fastest "
                "first; memory is that of %s of %.1f GiB\n",
                all.count, all.tried, ranks, escape_text(in->device->name).text,
                in->device->memory / 1073741824.0);
        cost_print_experts(all.list[0].untimed_experts, to);
        fprintf(to, "%9s %5s %7s %6s %8s %6s %6s %5s %8s %8s %9s %6s %6s\n", "replicate", "shard",
                "context", "tensor", "pipeline", "expert", "exp-tp", "rows", "recomp.", "memory",
                "step ms", "tps", "mfu");
    }
    for (size_t i = 0; st == ST_OK && i < all.count && i < (size_t)most; i++) {
        const candidate *best = &all.list[i];
        const layout *degrees = &best->layout;
        fprintf(to,
                "%9" PRId64 " %5" PRId64 " %7" PRId64 " %6" PRId64 " %8" PRId64 " %6" PRId64
                " %6" PRId64 " %5" PRId64 " %8s %7.1f%% %9.1f %6.0f %5.1f%%\n",
                degrees->replicate, degrees->shard, degrees->context, degrees->tensor,
                degrees->pipeline, degrees->expert, degrees->expert_tensor, best->rows,
                modes[best->mode], best->memory * 100.0, best->step * 1e3, best->tokens_per_s,
                best->mfu * 100.0);
    }
    free(all.list);
    return st;
}
