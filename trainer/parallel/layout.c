/* SPDX-License-Identifier: Apache-2.0 */
/* layout.c: implements layout.h. Every rule is a function that returns true if a layout breaks it,
 * and writes why. For a refused layout, a search over all layouts of as many ranks finds the
 * nearest one that breaks no rule. */
#include "trainer/parallel/layout.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "common/base/words.h"
#include "trainer/parallel/pipeline_stages.h"

enum { WORDS = 512, DEGREES = 7, TENSOR_MOST = 64, EXPERT_MOST = 4096, RANKS_MOST = 65536 };

/* What a layout is checked against. */
typedef struct rules {
    const layout_limits *model; /* NULL: not known */
    int64_t micro_batches;      /* of a step, over all ranks; 0: the batch does not divide evenly */
    int64_t rows, batch;        /* rows of a micro-batch and of a step, for messages */
    const char *points;         /* split points; "": stages are balanced by predicted time */
} rules;

static bool write_reason(char *why, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool write_reason(char *why, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, WORDS, fmt, args);
    va_end(args);
    return true;
}

static bool experts_broken(const layout *degrees, char *why)
{
    bool narrow = degrees->expert_tensor > 1;
    int64_t among = degrees->shard * degrees->context * (narrow ? 1 : degrees->tensor);
    int64_t multiple = degrees->context * (narrow ? 1 : degrees->tensor);
    if (degrees->expert == 1 || (among % degrees->expert == 0 && degrees->expert % multiple == 0))
        return false;
    return write_reason(
        why,
        "parallelism.expert_parallel_degree %" PRId64 " must divide %" PRId64
        " ranks and be a multiple of %" PRId64 " (data_parallel_shard x context%s; context%s)",
        degrees->expert, among, multiple, narrow ? "" : " x tensor", narrow ? "" : " x tensor");
}

static bool divides(const char *option, int64_t degree, int64_t size, const char *what, char *why)
{
    if (size % degree == 0)
        return true;
    write_reason(why, "parallelism.%s %" PRId64 " must divide the model's %" PRId64 " %s", option,
                 degree, size, what);
    return false;
}

static bool model_broken(const layout *degrees, const layout_limits *limits, char *why)
{
    static const char tensor[] = "tensor_parallel_degree";
    if (!divides(tensor, degrees->tensor, limits->heads, "query heads", why) ||
        !divides(tensor, degrees->tensor, limits->kv_heads, "key-value heads", why) ||
        !divides(tensor, degrees->tensor, limits->intermediate, "columns of the dense MLP", why) ||
        !divides("expert_parallel_degree", degrees->expert, limits->experts, "experts", why) ||
        !divides("expert_tensor_parallel_degree", degrees->expert_tensor, limits->expert_width,
                 "columns of an expert", why))
        return true;
    if (limits->experts == 0 && degrees->expert * degrees->expert_tensor > 1)
        return write_reason(why,
                            "parallelism.expert_parallel_degree and expert_tensor_parallel_degree "
                            "must be 1: the model has no experts");
    if (limits->tied && degrees->pipeline > 1)
        return write_reason(
            why, "parallelism.pipeline_parallel_degree must be 1: the model's head shares its "
                 "weights with the embedding, which would be on another stage");
    int64_t most = limits->layers - (limits->first_layers > 1 ? limits->first_layers : 1) + 1;
    if (degrees->pipeline <= most)
        return false;
    return write_reason(why,
                        "parallelism.pipeline_parallel_degree %" PRId64 " must be at most %" PRId64
                        ": the model has %" PRId64
                        " layers, of which the first stage must have %" PRId64,
                        degrees->pipeline, most, limits->layers,
                        limits->first_layers > 1 ? limits->first_layers : 1);
}

static bool points_broken(const layout *degrees, const char *points, char *why)
{
    const int64_t begun = stages_listed(points);
    if (begun == 0 || begun + 1 == degrees->pipeline)
        return false;
    return write_reason(
        why,
        "parallelism.pipeline_parallel_split_points: \"%.200s\" begins %" PRId64
        " stages after the first, but parallelism.pipeline_parallel_degree is %" PRId64,
        points, begun, degrees->pipeline);
}

/* Whether a degree is outside the range of its option, which can happen in a very large job. */
static bool out_of_range(const layout *degrees)
{
    return degrees->shard > RANKS_MOST || degrees->replicate > RANKS_MOST;
}

/* Writes the first rule that the layout breaks to why [WORDS], leaving out those of the batch. */
static bool degrees_broken(const layout *degrees, const rules *limits, char *why)
{
    int64_t consumers = layout_consumers(degrees);
    if (consumers * degrees->context * degrees->tensor * degrees->pipeline != degrees->world)
        return write_reason(why,
                            "parallelism: %" PRId64
                            " ranks are not the product of replicate %" PRId64 " x shard %" PRId64
                            " x context %" PRId64 " x tensor %" PRId64 " x pipeline %" PRId64,
                            degrees->world, degrees->replicate, degrees->shard, degrees->context,
                            degrees->tensor, degrees->pipeline);
    return experts_broken(degrees, why) ||
           (limits->model && model_broken(degrees, limits->model, why)) ||
           points_broken(degrees, limits->points, why);
}

static bool batch_broken(const layout *degrees, const rules *limits, char *why)
{
    const int64_t consumers = layout_consumers(degrees);
    if (limits->micro_batches > 0 && limits->micro_batches % consumers == 0)
        return false;
    return write_reason(why,
                        "training.global_batch_size %" PRId64
                        " is not a multiple of training.local_batch_size %" PRId64 " x %" PRId64
                        " data-parallel ranks",
                        limits->batch, limits->rows, consumers);
}

static bool broken(const layout *degrees, const rules *limits, char *why)
{
    return degrees_broken(degrees, limits, why) || batch_broken(degrees, limits, why);
}

/* The distance of two layouts: the sum over the degrees of |log2(degrees / cut)|, each with a
 * weight. The shard degree counts half, since it takes the ranks that are left over. Stages count a
 * little more than the others, since they add a bubble. */
static double measure_distance(const layout *degrees, const layout *cut)
{
    static const double weight[DEGREES] = {0.5, 1, 1, 1, 1.25, 1, 1};
    const int64_t ours[DEGREES] = {degrees->shard,        degrees->replicate, degrees->context,
                                   degrees->tensor,       degrees->pipeline,  degrees->expert,
                                   degrees->expert_tensor};
    const int64_t theirs[DEGREES] = {cut->shard,    cut->replicate, cut->context,      cut->tensor,
                                     cut->pipeline, cut->expert,    cut->expert_tensor};
    double sum = 0;
    for (int i = 0; i < DEGREES; i++)
        sum += weight[i] * fabs(log2((double)ours[i] / (double)theirs[i]));
    return sum;
}

typedef struct search {
    const layout *wanted;
    const rules *rules;
    layout best;
    double best_distance; /* below 0: none yet */
} search;

/* Tries all ways to lay out the experts over the ranks of a layout. */
static void try_experts(search *best, layout degrees)
{
    char why[WORDS];
    int64_t most = degrees.shard * degrees.context * degrees.tensor;
    for (int wide = 0; wide < (degrees.tensor > 1 ? 2 : 1); wide++) {
        degrees.expert_tensor = wide ? degrees.tensor : 1;
        for (degrees.expert = 1; degrees.expert <= most && degrees.expert <= EXPERT_MOST;
             degrees.expert++) {
            if (most % degrees.expert != 0 || out_of_range(&degrees))
                continue;
            const double distance = measure_distance(&degrees, best->wanted);
            if ((best->best_distance >= 0 && distance >= best->best_distance) ||
                broken(&degrees, best->rules, why))
                continue;
            best->best = degrees;
            best->best_distance = distance;
        }
    }
}

/* The layout of as many ranks that breaks no rule and is nearest to the one wanted. False: there is
 * none. */
static bool nearest(const layout *wanted, const rules *limits, layout *out)
{
    search best = {.wanted = wanted, .rules = limits, .best_distance = -1};
    layout degrees = *wanted;
    for (degrees.tensor = 1; degrees.tensor <= TENSOR_MOST; degrees.tensor++)
        for (degrees.context = 1; degrees.context <= TENSOR_MOST; degrees.context++)
            for (degrees.pipeline = 1; degrees.pipeline <= TENSOR_MOST; degrees.pipeline++) {
                int64_t rest = degrees.tensor * degrees.context * degrees.pipeline;
                if (degrees.world % rest != 0)
                    continue;
                for (degrees.replicate = 1; degrees.replicate <= degrees.world / rest;
                     degrees.replicate++) {
                    degrees.shard = degrees.world / rest / degrees.replicate;
                    if (degrees.shard * degrees.replicate * rest == degrees.world)
                        try_experts(&best, degrees);
                }
            }
    *out = best.best;
    return best.best_distance >= 0;
}

/* Lists the degrees that differ, as "NAME value". */
static void changes(const layout *from, const layout *to, char *out)
{
    const struct {
        const char *name;
        int64_t from, to;
    } degree[DEGREES] = {{"data_parallel_replicate_degree", from->replicate, to->replicate},
                         {"data_parallel_shard_degree", from->shard, to->shard},
                         {"context_parallel_degree", from->context, to->context},
                         {"tensor_parallel_degree", from->tensor, to->tensor},
                         {"pipeline_parallel_degree", from->pipeline, to->pipeline},
                         {"expert_parallel_degree", from->expert, to->expert},
                         {"expert_tensor_parallel_degree", from->expert_tensor, to->expert_tensor}};
    size_t count = 0;
    out[0] = 0;
    for (int i = 0; i < DEGREES; i++)
        if (degree[i].from != degree[i].to)
            count = words_add(out, WORDS, count, "%s%s %" PRId64, count ? ", " : "", degree[i].name,
                              degree[i].to);
}

/* The batch nearest to the one asked for that this layout can divide among its ranks. */
static int64_t nearest_batch(const layout *degrees, const rules *limits)
{
    const int64_t step = limits->rows * layout_consumers(degrees),
                  below = limits->batch / step * step;
    return below > 0 && limits->batch - below <= below + step - limits->batch ? below
                                                                              : below + step;
}

static status refuse_layout(const layout *degrees, const rules *limits, const char *why)
{
    char other[WORDS], batch[96] = "", ignored[WORDS];
    layout near;
    if (!limits->model)
        return FAIL(ST_CONFIG, "%s", why);
    const bool found = nearest(degrees, limits, &near);
    if (!degrees_broken(degrees, limits, ignored))
        snprintf(batch, sizeof batch, "; %sset training.global_batch_size to %" PRId64,
                 found ? "or " : "", nearest_batch(degrees, limits));
    if (!found)
        return FAIL(ST_CONFIG, "%s; no layout of %" PRId64 " rank%s fits this model%s%s%s", why,
                    degrees->world, degrees->world == 1 ? "" : "s",
                    limits->points[0] ? ", these split points" : "",
                    limits->batch ? " and this batch size" : "", batch);
    changes(degrees, &near, other);
    return FAIL(ST_CONFIG, "%s; the nearest layout that fits: %s%s", why, other, batch);
}

/* A unit that is updated in backward must have its whole gradient by then. */
static status check_in_backward(const conf *options, const layout *degrees)
{
    if (!options->optimizer_in_backward || (degrees->accumulation == 1 && degrees->pipeline == 1))
        return ST_OK;
    if (degrees->pipeline > 1)
        return FAIL(ST_CONFIG,
                    "optimizer.in_backward updates a layer after the step's only micro-batch, and "
                    "parallelism.pipeline_parallel_degree %" PRId64
                    " sends several through it; set the degree to 1, or optimizer.in_backward to "
                    "false",
                    degrees->pipeline);
    return FAIL(ST_CONFIG,
                "optimizer.in_backward updates a layer after the step's only micro-batch, and this "
                "step has %" PRId64 " on each rank; set training.global_batch_size to %" PRId64
                " (training.local_batch_size times the ranks that have rows of their own), or "
                "optimizer.in_backward to false",
                degrees->accumulation,
                options->training_local_batch_size * layout_consumers(degrees));
}

status layout_of(const conf *options, const layout_limits *limits, layout *out)
{
    layout degrees = {.replicate = options->parallelism_data_parallel_replicate_degree,
                      .shard = options->parallelism_data_parallel_shard_degree,
                      .context = options->parallelism_context_parallel_degree,
                      .tensor = options->parallelism_tensor_parallel_degree,
                      .pipeline = options->parallelism_pipeline_parallel_degree,
                      .expert = options->parallelism_expert_parallel_degree,
                      .expert_tensor = options->parallelism_expert_tensor_parallel_degree,
                      .world = options->parallelism_world_size};
    const int64_t batch = options->training_global_batch_size,
                  rows = options->training_local_batch_size;
    int64_t others = degrees.replicate * degrees.context * degrees.tensor * degrees.pipeline;
    if (degrees.world == 0)
        degrees.world = others * (degrees.shard > 0 ? degrees.shard : 1);
    if (degrees.shard < 0)
        degrees.shard = degrees.world / others > 0 ? degrees.world / others : 1;
    const rules ruled = {.model = limits,
                         .micro_batches = batch % rows ? 0 : batch / rows,
                         .rows = rows,
                         .batch = batch,
                         .points = options->parallelism_pipeline_parallel_split_points};
    char why[WORDS];
    if (broken(&degrees, &ruled, why))
        return refuse_layout(&degrees, &ruled, why);
    degrees.accumulation = ruled.micro_batches / layout_consumers(&degrees);
    TRY(check_in_backward(options, &degrees));
    *out = degrees;
    return ST_OK;
}

status layout_check(const layout *degrees, const layout_limits *limits)
{
    char why[WORDS];
    const rules ruled = {.model = limits, .points = ""};
    return degrees_broken(degrees, &ruled, why) ? FAIL(ST_CONFIG, "%s", why) : ST_OK;
}
