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

static bool experts_broken(const layout *l, char *why)
{
    bool narrow = l->expert_tensor > 1;
    int64_t among = l->shard * l->context * (narrow ? 1 : l->tensor);
    int64_t multiple = l->context * (narrow ? 1 : l->tensor);
    if (l->expert == 1 || (among % l->expert == 0 && l->expert % multiple == 0))
        return false;
    return write_reason(
        why,
        "parallelism.expert_parallel_degree %" PRId64 " must divide %" PRId64
        " ranks and be a multiple of %" PRId64 " (data_parallel_shard x context%s; context%s)",
        l->expert, among, multiple, narrow ? "" : " x tensor", narrow ? "" : " x tensor");
}

static bool divides(const char *option, int64_t degree, int64_t size, const char *what, char *why)
{
    if (size % degree == 0)
        return true;
    write_reason(why, "parallelism.%s %" PRId64 " must divide the model's %" PRId64 " %s", option,
                 degree, size, what);
    return false;
}

static bool model_broken(const layout *l, const layout_limits *m, char *why)
{
    static const char tensor[] = "tensor_parallel_degree";
    if (!divides(tensor, l->tensor, m->heads, "query heads", why) ||
        !divides(tensor, l->tensor, m->kv_heads, "key-value heads", why) ||
        !divides(tensor, l->tensor, m->intermediate, "columns of the dense MLP", why) ||
        !divides("expert_parallel_degree", l->expert, m->experts, "experts", why) ||
        !divides("expert_tensor_parallel_degree", l->expert_tensor, m->expert_width,
                 "columns of an expert", why))
        return true;
    if (m->experts == 0 && l->expert * l->expert_tensor > 1)
        return write_reason(why,
                            "parallelism.expert_parallel_degree and expert_tensor_parallel_degree "
                            "must be 1: the model has no experts");
    if (m->tied && l->pipeline > 1)
        return write_reason(
            why, "parallelism.pipeline_parallel_degree must be 1: the model's head shares its "
                 "weights with the embedding, which would be on another stage");
    int64_t most = m->layers - (m->first_layers > 1 ? m->first_layers : 1) + 1;
    if (l->pipeline <= most)
        return false;
    return write_reason(why,
                        "parallelism.pipeline_parallel_degree %" PRId64 " must be at most %" PRId64
                        ": the model has %" PRId64
                        " layers, of which the first stage must have %" PRId64,
                        l->pipeline, most, m->layers, m->first_layers > 1 ? m->first_layers : 1);
}

static bool points_broken(const layout *l, const char *points, char *why)
{
    const int64_t begun = stages_listed(points);
    if (begun == 0 || begun + 1 == l->pipeline)
        return false;
    return write_reason(
        why,
        "parallelism.pipeline_parallel_split_points: \"%.200s\" begins %" PRId64
        " stages after the first, but parallelism.pipeline_parallel_degree is %" PRId64,
        points, begun, l->pipeline);
}

/* Whether a degree is outside the range of its option, which can happen in a very large job. */
static bool out_of_range(const layout *l)
{
    return l->shard > RANKS_MOST || l->replicate > RANKS_MOST;
}

/* Writes the first rule that the layout breaks to why [WORDS], leaving out those of the batch. */
static bool degrees_broken(const layout *l, const rules *r, char *why)
{
    int64_t consumers = l->replicate * l->shard;
    if (consumers * l->context * l->tensor * l->pipeline != l->world)
        return write_reason(why,
                            "parallelism: %" PRId64
                            " ranks are not the product of replicate %" PRId64 " x shard %" PRId64
                            " x context %" PRId64 " x tensor %" PRId64 " x pipeline %" PRId64,
                            l->world, l->replicate, l->shard, l->context, l->tensor, l->pipeline);
    return experts_broken(l, why) || (r->model && model_broken(l, r->model, why)) ||
           points_broken(l, r->points, why);
}

static bool batch_broken(const layout *l, const rules *r, char *why)
{
    const int64_t consumers = l->replicate * l->shard;
    if (r->micro_batches > 0 && r->micro_batches % consumers == 0)
        return false;
    return write_reason(why,
                        "training.global_batch_size %" PRId64
                        " is not a multiple of training.local_batch_size %" PRId64 " x %" PRId64
                        " data-parallel ranks",
                        r->batch, r->rows, consumers);
}

static bool broken(const layout *l, const rules *r, char *why)
{
    return degrees_broken(l, r, why) || batch_broken(l, r, why);
}

/* The distance of two layouts: the sum over the degrees of |log2(a / b)|, each with a weight. The
 * shard degree counts half, since it takes the ranks that are left over. Stages count a little more
 * than the others, since they add a bubble. */
static double measure_distance(const layout *a, const layout *b)
{
    static const double weight[DEGREES] = {0.5, 1, 1, 1, 1.25, 1, 1};
    const int64_t x[DEGREES] = {a->shard,    a->replicate, a->context,      a->tensor,
                                a->pipeline, a->expert,    a->expert_tensor};
    const int64_t y[DEGREES] = {b->shard,    b->replicate, b->context,      b->tensor,
                                b->pipeline, b->expert,    b->expert_tensor};
    double sum = 0;
    for (int i = 0; i < DEGREES; i++)
        sum += weight[i] * fabs(log2((double)x[i] / (double)y[i]));
    return sum;
}

typedef struct search {
    const layout *wanted;
    const rules *rules;
    layout best;
    double best_distance; /* below 0: none yet */
} search;

/* Tries all ways to lay out the experts over the ranks of a layout. */
static void try_experts(search *q, layout l)
{
    char why[WORDS];
    int64_t most = l.shard * l.context * l.tensor;
    for (int wide = 0; wide < (l.tensor > 1 ? 2 : 1); wide++) {
        l.expert_tensor = wide ? l.tensor : 1;
        for (l.expert = 1; l.expert <= most && l.expert <= EXPERT_MOST; l.expert++) {
            if (most % l.expert != 0 || out_of_range(&l))
                continue;
            const double d = measure_distance(&l, q->wanted);
            if ((q->best_distance >= 0 && d >= q->best_distance) || broken(&l, q->rules, why))
                continue;
            q->best = l;
            q->best_distance = d;
        }
    }
}

/* The layout of as many ranks that breaks no rule and is nearest to the one wanted. False: there is
 * none. */
static bool nearest(const layout *wanted, const rules *r, layout *out)
{
    search q = {.wanted = wanted, .rules = r, .best_distance = -1};
    layout l = *wanted;
    for (l.tensor = 1; l.tensor <= TENSOR_MOST; l.tensor++)
        for (l.context = 1; l.context <= TENSOR_MOST; l.context++)
            for (l.pipeline = 1; l.pipeline <= TENSOR_MOST; l.pipeline++) {
                int64_t rest = l.tensor * l.context * l.pipeline;
                if (l.world % rest != 0)
                    continue;
                for (l.replicate = 1; l.replicate <= l.world / rest; l.replicate++) {
                    l.shard = l.world / rest / l.replicate;
                    if (l.shard * l.replicate * rest == l.world)
                        try_experts(&q, l);
                }
            }
    *out = q.best;
    return q.best_distance >= 0;
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
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < DEGREES; i++)
        if (degree[i].from != degree[i].to)
            n = words_add(out, WORDS, n, "%s%s %" PRId64, n ? ", " : "", degree[i].name,
                          degree[i].to);
}

/* The batch nearest to the one asked for that this layout can divide among its ranks. */
static int64_t nearest_batch(const layout *l, const rules *r)
{
    const int64_t step = r->rows * l->replicate * l->shard, below = r->batch / step * step;
    return below > 0 && r->batch - below <= below + step - r->batch ? below : below + step;
}

static status refuse_layout(const layout *l, const rules *r, const char *why)
{
    char other[WORDS], batch[96] = "", ignored[WORDS];
    layout near;
    if (!r->model)
        return FAIL(ST_CONFIG, "%s", why);
    if (!degrees_broken(l, r, ignored))
        snprintf(batch, sizeof batch, "; or training.global_batch_size %" PRId64,
                 nearest_batch(l, r));
    if (!nearest(l, r, &near))
        return FAIL(ST_CONFIG, "%s; no layout of %" PRId64 " ranks fits this model%s%s%s", why,
                    l->world, r->points[0] ? ", these split points" : "",
                    r->batch ? " and batch" : "", batch);
    changes(l, &near, other);
    return FAIL(ST_CONFIG, "%s; the nearest layout that fits: %s%s", why, other, batch);
}

status layout_of(const conf *c, const layout_limits *limits, layout *out)
{
    layout l = {.replicate = c->parallelism_data_parallel_replicate_degree,
                .shard = c->parallelism_data_parallel_shard_degree,
                .context = c->parallelism_context_parallel_degree,
                .tensor = c->parallelism_tensor_parallel_degree,
                .pipeline = c->parallelism_pipeline_parallel_degree,
                .expert = c->parallelism_expert_parallel_degree,
                .expert_tensor = c->parallelism_expert_tensor_parallel_degree,
                .world = c->parallelism_world_size};
    const int64_t batch = c->training_global_batch_size, rows = c->training_local_batch_size;
    int64_t others = l.replicate * l.context * l.tensor * l.pipeline;
    if (l.world == 0)
        l.world = others * (l.shard > 0 ? l.shard : 1);
    if (l.shard < 0)
        l.shard = l.world / others > 0 ? l.world / others : 1;
    const rules r = {.model = limits,
                     .micro_batches = batch % rows ? 0 : batch / rows,
                     .rows = rows,
                     .batch = batch,
                     .points = c->parallelism_pipeline_parallel_split_points};
    char why[WORDS];
    if (broken(&l, &r, why))
        return refuse_layout(&l, &r, why);
    l.accumulation = r.micro_batches / (l.replicate * l.shard);
    *out = l;
    return ST_OK;
}

status layout_check(const layout *degrees, const layout_limits *limits)
{
    char why[WORDS];
    const rules r = {.model = limits, .points = ""};
    return degrees_broken(degrees, &r, why) ? FAIL(ST_CONFIG, "%s", why) : ST_OK;
}
