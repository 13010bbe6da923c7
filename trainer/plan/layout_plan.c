#include "trainer/plan/layout_plan.h"

#include <inttypes.h>

#include "trainer/batch/upload_ring.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/plan/memory.h"
#include "trainer/model/params_sketch.h"
#include "trainer/model/unit_order.h"
#include "trainer/plan/recompute_plan.h"
#include "trainer/plan/stage_plan.h"

static const double GIB = 1073741824.0;
static const double H200_GIB = 139.7; /* what its driver offers */
enum { MOST_ROWS = 4096 };

/* Sizes of the CUDA backend; never opened. */
static const backend_vtable sizes = {.name = "H200",
                                     .act = DT_BF16,
                                     .acc = DT_F32,
                                     .fixed_shapes = true,
                                     .overhead = true,
                                     .ahead = 1};

/* own: what the rank has of p. */
static status plan_of(const conf *c, const layout *l, const model_dims *d, params *own,
                      int64_t rows, const recomputes *again, layout_plan *out)
{
    const int64_t seq = c->training_seq_len;
    const int64_t patches = c->data_patch_budget ? c->data_patch_budget : 4 * seq;
    const int64_t cut = l->context * l->tensor;
    model_options o = {
        .cap = memory_caps(rows, seq, d->vision.depth ? patches : 0),
        .mesh = own->mesh,
        .training = true,
        .again = *again,
        .router_aux_coef = c->loss_router_aux,
        .exchange = memory_exchange_way(c, l),
    };
    const int in_use = model_flights_of(&o);
    layout_plan m = {.stage = own->mesh ? own->mesh->place.pipeline : 0};
    params_sizes size;
    TRY(params_size(own, &sizes, true, &size));
    model_options_freeze(&o, own);
    TRY(model_regions_of(d, &o, &sizes, &m.parts));
    m.activations = m.parts.total;
    m.state = 4 * size.stored + 12 * size.trained;
    m.weights = 2 * size.stored;
    m.gathered = size.gathered_bytes;
    row_share alone = row_share_alone();
    alone.blind = m.stage > 0;
    const memory_shapes shapes = {.rows = rows};
    m.staging = lane_count(&sizes, in_use) * stager_bytes(&o.cap, &alone, &sizes) / cut;
    memory_plan_gpu(d, &o, &shapes, &sizes, &m.gpu);
    m.total =
        m.state + m.weights + m.gathered + m.activations + m.staging + memory_gpu_total(&m.gpu);
    m.built = lane_count(&sizes, in_use) * stager_bytes(&o.cap, &alone, &sizes);
    m.pinned = keeper_in_background(c) ? 4 * size.stored + 8 * size.trained : 0;
    *out = m;
    return ST_OK;
}

status layout_plan_stage(const conf *c, const layout *l, const model_dims *d, const params *p,
                         int64_t rows, const recomputes *again, int stage, layout_plan *out)
{
    params *own;
    const int rank = stage * (int)(l->world / l->pipeline);
    TRY(params_sketch_new(p, d, l, rank, c->fsdp_reshard != RESHARD_NEVER, &own));
    status st = plan_of(c, l, d, own, rows, again, out);
    params_sketch_free(&own);
    return st;
}

/* Whether an earlier stage takes as much for certain: between first and last one, one of no fewer
 * layers, all of experts, has no fewer micro-batches under way. */
static bool is_outdone(const layout *l, const model_dims *d, int stage)
{
    const stage_part part = stage_part_of(d, l, stage);
    bool found = false;
    for (int64_t i = 0; i < part.end; i++)
        if (!dims_layer_is_moe(d, i))
            return false;
    for (int other = 1; other < stage && !part.closes; other++) {
        const stage_part before = stage_part_of(d, l, other);
        found |= before.end - before.first >= part.end - part.first;
    }
    return found;
}

status layout_plan_make(const conf *c, const layout *l, const model_dims *d, const params *p,
                        int64_t rows, const recomputes *again, layout_plan *out)
{
    layout cut = *l;
    layout_plan most = {0}, m;
    TRY(stage_plan(c, d, p, &cut));
    for (int stage = 0; stage < cut.pipeline; stage++) {
        if (is_outdone(&cut, d, stage))
            continue;
        TRY(layout_plan_stage(c, &cut, d, p, rows, again, stage, &m));
        if (m.total > most.total)
            most = m;
    }
    *out = most;
    return ST_OK;
}

bool layout_fits(const conf *c, const layout_plan *m)
{
    return (double)m->total <= c->memory_limit * H200_GIB * GIB;
}

status layout_kinds_bytes(const model_dims *d, const model_options *o, unsigned kinds,
                          int64_t *out_layer, int64_t *out_block)
{
    return model_kinds_bytes(d, o, &sizes, kinds, out_layer, out_block);
}

static void print_bytes(FILE *to, const char *name, int64_t bytes)
{
    fprintf(to, "  %-44s %20" PRId64 " bytes %9.1f GiB\n", name, bytes, (double)bytes / GIB);
}

/* What of it is in use while; all of it is taken once, before step 1. */
static void print_phases(FILE *to, const layout_plan *m)
{
    const model_regions *a = &m->parts;
    const int64_t resident = m->state + m->weights;
    const struct {
        const char *name;
        int64_t kept, scratch, gathered;
    } phases[] = {{"vision", a->vision_kept, a->vision_scratch, m->gathered},
                  {"text", a->vision_kept + a->text_kept, a->text_scratch, m->gathered},
                  {"head and loss", a->vision_kept + a->text_kept, a->head_scratch, m->gathered},
                  {"optimiser", 0, 0, 0}};
    fprintf(to, "in use, in GiB: %9s %10s %9s %9s %9s\n", "resident", "gathered", "kept", "scratch",
            "sum");
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++)
        fprintf(to, "  %-13s %9.2f %10.2f %9.2f %9.2f %9.2f\n", phases[i].name,
                (double)resident / GIB, (double)phases[i].gathered / GIB,
                (double)phases[i].kept / GIB, (double)phases[i].scratch / GIB,
                (double)(resident + phases[i].gathered + phases[i].kept + phases[i].scratch) / GIB);
}

/* Ways of activation checkpointing that are compared. */
enum { AS_CONFIGURED = -1 };

static status again_in(const conf *c, const layout *l, const model_dims *d, const params *p,
                       int64_t rows, int mode, recomputes *out)
{
    return mode == AS_CONFIGURED ? again_of(c, l, d, p, rows, out)
                                 : again_with(c, l, d, p, rows, mode, out);
}

/* The most rows of a micro-batch that fit; 0 if not even one. */
static status most_rows(const conf *c, const layout *l, const model_dims *d, const params *p,
                        int mode, int64_t *out)
{
    int64_t low = 0, high = MOST_ROWS;
    while (low < high) {
        int64_t rows = (low + high + 1) / 2;
        layout_plan m;
        recomputes again;
        TRY(again_in(c, l, d, p, rows, mode, &again));
        TRY(layout_plan_make(c, l, d, p, rows, &again, &m));
        if (layout_fits(c, &m))
            low = rows;
        else
            high = rows - 1;
    }
    *out = low;
    return ST_OK;
}

static const char *how_kept(const recompute *r, int64_t layers, unsigned kind, char text[32])
{
    int64_t kept = again_kept(r, layers, kind);
    if (kept == 0 || kept == layers)
        return kept ? "kept" : "again";
    snprintf(text, 32, "kept in %" PRId64 " of %" PRId64, kept, layers);
    return text;
}

/* What a layer keeps, in bytes of a token or patch. */
static status print_kept(const conf *c, const model_dims *d, const recomputes *again, FILE *to)
{
    static const struct {
        const char *name;
        unsigned kind;
    } kinds[] = {{"norms, rotations, activations", AGAIN_CHEAP},
                 {"qkv", AGAIN_QKV},
                 {"attention", AGAIN_ATTENTION},
                 {"proj", AGAIN_PROJ},
                 {"routes", AGAIN_ROUTE},
                 {"fc1", AGAIN_FC1},
                 {"fc2", AGAIN_FC2}};
    const int64_t patches = d->vision.depth ? 4 * c->training_seq_len : 0;
    const model_options o = {.cap = {.tokens = c->training_seq_len, .patches = patches},
                             .training = true};
    char how[32];
    fprintf(to, "a layer's arrays beside its input, in bytes of a token%s:\n",
            patches ? ", and of a vision block's patch" : "");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int64_t layer, block;
        TRY(layout_kinds_bytes(d, &o, kinds[i].kind, &layer, &block));
        fprintf(to, "  %-32s %8.0f %-16s", kinds[i].name, (double)layer / (double)o.cap.tokens,
                layer ? how_kept(&again->text, d->text.layers, kinds[i].kind, how) : "");
        if (patches)
            fprintf(to, " %8.0f %s", (double)block / (double)patches,
                    block ? how_kept(&again->vision, d->vision.depth, kinds[i].kind, how) : "");
        fprintf(to, "\n");
    }
    return ST_OK;
}

/* A line per mode: memory of this micro-batch, and the largest that fits. */
static status print_modes(const conf *c, const layout *l, const model_dims *d, const params *p,
                          const recomputes *now, FILE *to)
{
    char text[AGAIN_TEXT_MAX];
    fprintf(to, "%-56s %11s %9s %8s %9s\n", "activation checkpointing", "activations", "total",
            "of card", "rows fit");
    for (int mode = AS_CONFIGURED; mode <= AC_FULL; mode++) {
        recomputes again;
        layout_plan m;
        int64_t most;
        TRY(again_in(c, l, d, p, c->training_local_batch_size, mode, &again));
        if (mode != AS_CONFIGURED && memcmp(&again, now, sizeof again) == 0)
            continue;
        TRY(layout_plan_make(c, l, d, p, c->training_local_batch_size, &again, &m));
        TRY(most_rows(c, l, d, p, mode, &most));
        fprintf(to, "%s %-54s %7.1f GiB %5.1f GiB %6.1f %% %9" PRId64 "\n",
                mode == AS_CONFIGURED ? "*" : " ", again_text(&again.text, text),
                (double)m.activations / GIB, (double)m.total / GIB,
                (double)m.total / (H200_GIB * GIB) * 100.0, most);
        if (d->vision.depth > 0)
            fprintf(to, "    vision: %s\n", again_text(&again.vision, text));
    }
    return ST_OK;
}

/* The first mode with which so many rows fit, the one configured before others; else the first of
 * those with which most do, and the batch is cut. */
static status smallest_change(const conf *c, const layout *l, const model_dims *d, const params *p,
                              FILE *to)
{
    static const struct {
        int mode;
        const char *words;
    } tries[] = {{AS_CONFIGURED, ""},
                 {AC_SELECTIVE, "activation_checkpoint.mode selective, "},
                 {AC_FULL, "activation_checkpoint.mode full, "}};
    const int64_t rows = c->training_local_batch_size;
    const char *words = "";
    int64_t most = 0;
    for (size_t i = 0; i < sizeof tries / sizeof *tries && most < rows; i++) {
        int64_t fit;
        TRY(most_rows(c, l, d, p, tries[i].mode, &fit));
        if (fit > most) {
            most = fit;
            words = tries[i].words;
        }
    }
    if (most == 0)
        fprintf(to, "no batch of this model and training.seq_len fits this layout\n");
    else
        fprintf(to, "what fits: %straining.local_batch_size %" PRId64 "\n", words,
                most < rows ? most : rows);
    return ST_OK;
}

/* A line per stage of a pipeline, and which takes most. */
static status print_stages(const conf *c, const layout *l, const model_dims *d, const params *p,
                           const recomputes *again, const layout_plan *most, FILE *to)
{
    layout cut = *l;
    if (l->pipeline == 1)
        return ST_OK;
    TRY(stage_plan(c, d, p, &cut));
    fprintf(to, "%-8s %8s %14s %13s %11s %9s\n", "stage", "layers", "micro-batches",
            "values, state", "activations", "total");
    for (int stage = 0; stage < cut.pipeline; stage++) {
        const stage_part part = stage_part_of(d, &cut, stage);
        layout_plan m;
        TRY(layout_plan_stage(c, &cut, d, p, c->training_local_batch_size, again, stage, &m));
        fprintf(to,
                "%5d    %3" PRId64 "..%-3" PRId64 " %14" PRId64
                " %9.1f GiB %7.1f GiB %5.1f GiB%s\n",
                stage, part.first, part.end - 1,
                stage_flights(stage, (int)cut.pipeline, cut.accumulation),
                (double)(m.state + m.weights) / GIB, (double)m.activations / GIB,
                (double)m.total / GIB, stage == most->stage ? "  the most" : "");
    }
    return ST_OK;
}

status layout_print(const conf *c, const layout *l, const model_dims *d, const params *p, FILE *to,
                    bool *out_fits)
{
    const int64_t rows = c->training_local_batch_size;
    int64_t most;
    recomputes again;
    layout_plan m;
    TRY(again_of(c, l, d, p, rows, &again));
    TRY(layout_plan_make(c, l, d, p, rows, &again, &m));
    TRY(most_rows(c, l, d, p, AS_CONFIGURED, &most));
    fprintf(to,
            "layout: %" PRId64 " ranks = replicate %" PRId64 " x shard %" PRId64
            " x context %" PRId64 " x tensor %" PRId64 " x pipeline %" PRId64
            "; experts over %" PRId64 " ranks, each cut in %" PRId64 "\n",
            l->world, l->replicate, l->shard, l->context, l->tensor, l->pipeline, l->expert,
            l->expert_tensor);
    fprintf(to,
            "step: %" PRId64 " rows of %" PRId64 " tokens = %" PRId64 " x %" PRId64
            " data-parallel ranks x %" PRId64 " micro-steps\n",
            c->training_global_batch_size, c->training_seq_len, rows, l->replicate * l->shard,
            l->accumulation);
    TRY(print_stages(c, l, d, p, &again, &m, to));
    fprintf(to, "one rank%s on an H200 of %.1f GiB, bf16 with fp32 master weights:\n",
            l->pipeline > 1 ? " of that stage" : "", H200_GIB);
    print_bytes(to, "values, moments, gradients (fp32, sharded)", m.state);
    print_bytes(to, "compute weights (bf16, sharded)", m.weights);
    print_bytes(to, "units of them gathered, gradients", m.gathered);
    print_bytes(to, "activations and scratch", m.activations - m.parts.window);
    if (m.parts.window)
        print_bytes(to, "windows of peers (shared experts)", m.parts.window);
    print_bytes(to, "batches under way", m.staging);
    print_bytes(to, "context and libraries' kernels", m.gpu.context + m.gpu.libraries);
    print_bytes(to, "workspace of ops", m.gpu.workspace);
    print_bytes(to, "captured steps", m.gpu.graphs);
    print_bytes(to, "NCCL's buffers, host values", m.gpu.ranks);
    print_bytes(to, "total", m.total);
    print_phases(to, &m);
    print_bytes(to, "pinned host memory of checkpoints", m.pinned);
    print_bytes(to, "pinned host memory of batches", m.built);
    TRY(print_kept(c, d, &again, to));
    TRY(print_modes(c, l, d, p, &again, to));
    bool fits = layout_fits(c, &m);
    fprintf(to,
            "%s: %.1f %% of the card, memory.limit %.0f %%; the largest micro-batch is %" PRId64
            " rows\n",
            fits ? "fits" : "does not fit", (double)m.total / (H200_GIB * GIB) * 100.0,
            c->memory_limit * 100.0, most);
    if (!fits)
        TRY(smallest_change(c, l, d, p, to));
    if (out_fits)
        *out_fits = fits;
    return ST_OK;
}
