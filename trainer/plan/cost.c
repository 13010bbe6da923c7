/* cost.c: divides work by rates and traffic by links, and puts the parts of a step together. */
#include "trainer/plan/cost.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/model/params_sketch.h"
#include "trainer/plan/recompute_plan.h"
#include "trainer/plan/received.h"
#include "trainer/plan/row_work.h"
#include "trainer/plan/stage_plan.h"

enum {
    ACT = 2, /* bytes of bf16 */
    ACC = 4, /* of fp32 */
    /* AdamW reads gradient, two moments and value; it writes moments, value and the compute copy.
     */
    UPDATE_BYTES = 7 * ACC + ACT
};

/* How rank 0's group is spread over the nodes. */
typedef struct reach {
    int ranks, near; /* near: how many are on rank 0's node, itself included */
} reach;

static status reach_of(const layout *l, int per_node, reach out[MESH_GROUPS])
{
    int *member = malloc((size_t)l->world * sizeof *member);
    if (!member)
        return FAIL(ST_NO_MEMORY, "no memory for a layout of %" PRId64 " ranks", l->world);
    for (int g = 0; g < MESH_GROUPS; g++) {
        out[g] = (reach){.ranks = mesh_members(l, 0, (mesh_group)g, member)};
        for (int i = 0; i < out[g].ranks; i++)
            out[g].near += member[i] < per_node;
    }
    free(member);
    return ST_OK;
}

static double less(double a, double b)
{
    return a < b ? a : b;
}

static double more(double a, double b)
{
    return a > b ? a : b;
}

/* Seconds in which a rank receives this many bytes from its group. */
static double seconds_of(double bytes, mesh_group g, const reach *of, const rates *r)
{
    const double link = r->of[RATE_LINK], network = r->of[RATE_NETWORK];
    if (of->near == of->ranks)
        return bytes / link;
    if (g == MESH_PIPELINE)
        return bytes / network;
    if (g == MESH_EXPERT) { /* as many bytes come from each rank */
        const double peers = (double)of->ranks - 1.0, far = (double)(of->ranks - of->near);
        return more(bytes * far / peers / network, bytes * (peers - far) / peers / link);
    }
    return bytes / less(link, (double)of->near * network);
}

static status step_flops(const conf *c, const model_dims *d, cost *k)
{
    enum { TRAINING = 4 }; /* the forward pass, a backward pass twice as long, and recomputing */
    row_kind_flops(&k->row, d, &k->flops);
    if (k->flops.forward > INT64_MAX / TRAINING / c->training_global_batch_size)
        return FAIL(ST_CONFIG,
                    "training.global_batch_size %" PRId64 ": a step of %.2g FLOPs is more than can "
                    "be counted (2^63), and would take hours on any machine; give a smaller one",
                    c->training_global_batch_size,
                    TRAINING * (double)k->flops.forward * (double)c->training_global_batch_size);
    int64_t *const parts[] = {&k->flops.text_linear,   &k->flops.text_attention,
                              &k->flops.head,          &k->flops.text_router,
                              &k->flops.text_experts,  &k->flops.patch_embed,
                              &k->flops.vision_blocks, &k->flops.vision_attention,
                              &k->flops.mergers,       &k->flops.forward};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        *parts[i] *= c->training_global_batch_size;
    return ST_OK;
}

static void put_traffic(cost *k, const reach *of, traffic_key key, const char *name, mesh_group g)
{
    k->traffic[key] =
        (traffic){.name = name, .group = g, .between_nodes = of[g].near < of[g].ranks};
}

static traffic_key key_of(mesh_group g, const char *what)
{
    if (strcmp(what, UNITS_REDUCE) == 0 || strcmp(what, UNITS_REDUCE_VISION) == 0)
        return TRAFFIC_REDUCE;
    switch (g) {
    case MESH_REPLICATE:
        return TRAFFIC_REPLICATE;
    case MESH_TENSOR:
        return TRAFFIC_TENSOR;
    case MESH_CONTEXT:
        return TRAFFIC_CONTEXT;
    case MESH_EXPERT:
        return TRAFFIC_EXPERT;
    case MESH_ROW:
        return TRAFFIC_ROW;
    case MESH_PIPELINE:
        return TRAFFIC_PIPELINE;
    default:
        return TRAFFIC_GATHER;
    }
}

/* The work of a rank if tokens, images and choices of experts are even. slots: [layers]. */
static received_work even_work(const conf *c, const layout *l, const model_dims *d,
                               double micro_tokens, double patches, const recompute *recomputed,
                               received_slots *slots)
{
    const double peers = (double)(l->context * l->tensor), micros = (double)l->accumulation;
    const double local = micro_tokens / peers;
    const int64_t moved = (int64_t)(micros * local * (double)(d->text.top_k * l->expert_tensor) *
                                    (double)(l->expert - 1) / (double)l->expert);
    for (int64_t i = 0; i < d->text.layers; i++)
        slots[i] = dims_layer_is_moe(d, i) ? (received_slots){moved, moved} : (received_slots){0};
    return (received_work){.micro_steps = l->accumulation,
                           .tokens = (int64_t)(micros * local),
                           .feature_rows = (int64_t)(micros * patches / 4.0 / peers),
                           .slots = slots,
                           .recomputed = *recomputed,
                           .act = ACT,
                           .acc = ACC,
                           .aux = c->loss_router_aux_coef};
}

/* Adds the seconds of gathering weights and reducing gradients, group by group: experts are stored
 * by fewer ranks than other weights, and these ranks may be spread over as many nodes. */
static void weights_seconds(const params *p, const model_dims *d, const received_work *w,
                            const reach *of, const rates *r, cost *k)
{
    traffic *gather = &k->traffic[TRAFFIC_GATHER], *reduce = &k->traffic[TRAFFIC_REDUCE];
    for (int vision = 0; vision < 2; vision++) {
        const received_weights x = received_weights_of(p, d, p->mesh, w, vision);
        for (int g = 0; g < MESH_GROUPS; g++) {
            gather->seconds += seconds_of((double)x.gather[g], (mesh_group)g, &of[g], r);
            reduce->seconds += seconds_of((double)x.reduce[g], (mesh_group)g, &of[g], r);
        }
    }
}

/* Adds what the first rank of each stage receives. */
static status add_stages(const conf *c, const layout *l, const model_dims *d, const params *p,
                         const received_work *w, const reach *of, const rates *r, cost *k)
{
    received_line line[RECEIVED_LINES];
    for (int stage = 0; stage < l->pipeline && l->world > 1; stage++) {
        params *own;
        TRY(params_sketch_new(p, d, l, stage * (int)(l->world / l->pipeline),
                              c->parallelism_fsdp_reshard_after_forward != RESHARD_NEVER, &own));
        const int n = received_lines(own, d, own->mesh, w, line);
        weights_seconds(own, d, w, of, r, k);
        params_sketch_free(&own);
        for (int i = 0; i < n; i++) /* sums of a few numbers are left out */
            if (strncmp(line[i].what, "sum ", 4) != 0 || line[i].group == MESH_REPLICATE)
                k->traffic[key_of(line[i].group, line[i].what)].bytes += line[i].bytes;
    }
    return ST_OK;
}

/* Bytes and seconds of each kind of traffic. The layout must have its stage_end. */
static status step_traffic(const conf *c, const layout *l, const model_dims *d, const params *p,
                           const rates *r, double micro_tokens, double patches,
                           const recomputes *recomputed, cost *k)
{
    reach of[MESH_GROUPS];
    TRY(reach_of(l, r->per_node, of));
    put_traffic(k, of, TRAFFIC_GATHER, "weights gathered", MESH_WHOLE);
    put_traffic(k, of, TRAFFIC_REDUCE, "gradients reduced", MESH_WHOLE);
    put_traffic(k, of, TRAFFIC_REPLICATE, "gradients over replicas", MESH_REPLICATE);
    put_traffic(k, of, TRAFFIC_TENSOR, "sequence and heads", MESH_TENSOR);
    put_traffic(k, of, TRAFFIC_CONTEXT, "keys and values", MESH_CONTEXT);
    put_traffic(k, of, TRAFFIC_EXPERT, "tokens and experts", MESH_EXPERT);
    put_traffic(k, of, TRAFFIC_PIPELINE, "activations between stages", MESH_PIPELINE);
    put_traffic(k, of, TRAFFIC_ROW, "features of shared rows", MESH_ROW);
    received_slots *slots = calloc((size_t)d->text.layers + 1, sizeof *slots);
    if (!slots)
        return FAIL(ST_NO_MEMORY, "no memory to plan %" PRId64 " layers", d->text.layers);
    const received_work w = even_work(c, l, d, micro_tokens, patches, &recomputed->text, slots);
    status st = add_stages(c, l, d, p, &w, of, r, k);
    free(slots);
    for (int i = 0; i < TRAFFIC_KEYS; i++) {
        traffic *t = &k->traffic[i];
        t->bytes /= l->pipeline;
        if (i == TRAFFIC_GATHER || i == TRAFFIC_REDUCE)
            t->seconds /= (double)l->pipeline;
        else
            t->seconds = seconds_of((double)t->bytes, t->group, &of[t->group], r);
    }
    return st;
}

/* Seconds that a rank computes in a step, and the part of them that is spent on recomputing. */
static void step_compute(const conf *c, const layout *l, const model_dims *d, const params *p,
                         const rates *r, const recomputes *recomputed, double patches, cost *k)
{
    training_share share;
    recompute_flops more;
    groups_share(p, d, &share);
    const flops *f = &k->flops;
    const int64_t tokens = c->training_global_batch_size * k->row.seq_len;
    recompute_plan_count(recomputed, d, &share, f, tokens, (int64_t)patches, &more);
    k->flops.training = groups_training_flops(f, &share);
    k->recomputed = more.dense + more.experts + more.attention + more.vision_attention;
    const double n = (double)l->world;
    double text = 1.0 + share.wgrad[GROUP_TEXT] + share.text_dgrad;
    double expert = 1.0 + share.wgrad[GROUP_EXPERTS] + share.text_dgrad;
    double eye = 1.0 + share.wgrad[GROUP_VISION] + share.vision_dgrad;
    double merger = 1.0 + share.wgrad[GROUP_MERGER] + share.merger_dgrad;
    double linear = (double)(f->text_linear - f->text_experts);
    k->dense = (linear * text + (double)f->head * (2.0 + share.head_wgrad) +
                (double)f->patch_embed * (1.0 + share.patch_wgrad) +
                (double)f->vision_blocks * eye + (double)f->mergers * merger + (double)more.dense) /
               n / r->of[RATE_DENSE];
    k->experts =
        ((double)f->text_experts * expert + (double)more.experts) / n / r->of[RATE_EXPERTS];
    k->attention = ((double)f->text_attention * (1.0 + COST_ATTENTION_BACKWARD * share.text_dgrad) +
                    (double)more.attention) /
                   n / r->of[RATE_ATTENTION];
    k->vision_attention =
        ((double)f->vision_attention * (1.0 + COST_ATTENTION_BACKWARD * share.vision_dgrad) +
         (double)more.vision_attention) /
        n / r->of[RATE_VISION_ATTENTION];
    /* The forward pass moves a third of the bytes of both passes. */
    double text_bytes = (double)tokens * (double)d->text.layers * cost_layer_bytes(&d->text);
    double eye_bytes = patches * (double)d->vision.depth * cost_block_bytes(&d->vision);
    double bytes_recomputed =
        (text_bytes * recompute_plan_share(&recomputed->text, d->text.layers, share.text_dgrad,
                                           RECOMPUTE_CHEAP) +
         eye_bytes * recompute_plan_share(&recomputed->vision, d->vision.depth, share.vision_dgrad,
                                          RECOMPUTE_CHEAP)) /
        3.0;
    k->memory = (text_bytes + eye_bytes + bytes_recomputed) / n / r->of[RATE_COPY];
    k->recompute =
        ((double)more.dense / r->of[RATE_DENSE] + (double)more.experts / r->of[RATE_EXPERTS] +
         (double)more.attention / r->of[RATE_ATTENTION] +
         (double)more.vision_attention / r->of[RATE_VISION_ATTENTION] +
         bytes_recomputed / r->of[RATE_COPY]) /
        n;
    k->update = (double)params_trained(p) /
                (double)(l->shard * l->context * l->tensor * l->pipeline) * UPDATE_BYTES /
                r->of[RATE_COPY];
}

/* All stages go at the pace of the slowest one: returns its time over the mean. */
static status slowest_stage(const conf *c, const layout *l, const model_dims *d, const params *p,
                            double *out)
{
    *out = 1.0;
    return l->pipeline == 1 ? ST_OK : stage_plan_uneven(c, d, p, l, out);
}

status cost_of(const conf *c, const layout *l, const model_dims *d, const params *p, const rates *r,
               const recomputes *recomputed, cost *out)
{
    cost k = {.row = row_kind_of(c, d)};
    TRY(step_flops(c, d, &k));
    double rows = (double)c->training_local_batch_size;
    double images = (double)row_kind_images(&k.row);
    double patches = images * (double)(k.row.grid[0] * k.row.grid[1] * k.row.grid[2]);
    layout cut = *l;
    TRY(stage_plan(c, d, p, &cut));
    TRY(step_traffic(c, &cut, d, p, r, rows * (double)k.row.seq_len, rows * patches, recomputed,
                     &k));
    step_compute(c, l, d, p, r, recomputed, patches * (double)c->training_global_batch_size, &k);

    double compute = k.dense + k.experts + k.attention + k.vision_attention + k.memory;
    double gather = k.traffic[TRAFFIC_GATHER].seconds / 2.0;
    double reduce = k.traffic[TRAFFIC_REDUCE].seconds;
    double forward = (compute - k.recompute) / 3.0; /* the backward pass is the rest */
    k.exposed = more(0.0, gather - forward) + more(0.0, gather + reduce - (compute - forward));
    for (int i = TRAFFIC_REPLICATE; i < TRAFFIC_KEYS; i++)
        k.exposed += k.traffic[i].seconds;
    double uneven;
    TRY(slowest_stage(c, &cut, d, p, &uneven));
    double stages = (double)l->pipeline, micros = (double)l->accumulation;
    k.bubble = (compute + k.exposed) * (uneven * (1.0 + (stages - 1.0) / micros) - 1.0);
    k.step = compute + k.exposed + k.bubble + k.update;
    double tokens = (double)(c->training_global_batch_size * k.row.seq_len);
    k.tokens_per_s = tokens / (double)l->world / k.step;
    k.mfu = (double)k.flops.training / (double)l->world / k.step / r->of[RATE_PEAK];
    *out = k;
    return ST_OK;
}

static void print_part(FILE *to, const char *name, double s, double step)
{
    fprintf(to, "  %-26s %10.1f ms %5.1f %%\n", name, s * 1e3, 100.0 * s / step);
}

void cost_print(const cost *k, const layout *l, FILE *to)
{
    static const double GIB = 1073741824.0;
    fprintf(to, "rows of %s of %" PRId64 " tokens",
            k->row.seq_len < 2 * k->row.document ? "one document" : "documents", k->row.document);
    if (k->row.grid[0] > 0)
        fprintf(to, " with a picture of %dx%dx%d patches%s", k->row.grid[0], k->row.grid[1],
                k->row.grid[2], k->row.seq_len < 2 * k->row.document ? "" : " each");
    fprintf(to, "; FLOPs of a step, forward:\n");
    const struct {
        const char *name;
        int64_t n;
    } work[] = {{"text linear", k->flops.text_linear - k->flops.text_experts},
                {"experts", k->flops.text_experts},
                {"text attention", k->flops.text_attention},
                {"head", k->flops.head},
                {"vision", k->flops.patch_embed + k->flops.vision_blocks + k->flops.mergers},
                {"vision attention", k->flops.vision_attention},
                {"training, useful", k->flops.training},
                {"computed again, not useful", k->recomputed}};
    for (size_t i = 0; i < sizeof work / sizeof *work; i++)
        fprintf(to, "  %-26s %24" PRId64 "\n", work[i].name, work[i].n);
    if (l->world > 1)
        fprintf(to, "bytes that a rank receives in a step:\n");
    for (int i = 0; i < TRAFFIC_KEYS && l->world > 1; i++)
        if (k->traffic[i].bytes > 0)
            fprintf(to, "  %-26s %16" PRId64 " bytes %8.2f GiB over %s%s\n", k->traffic[i].name,
                    k->traffic[i].bytes, (double)k->traffic[i].bytes / GIB,
                    mesh_group_name(k->traffic[i].group),
                    k->traffic[i].between_nodes ? ", between nodes" : "");
    fprintf(to, "predicted step of a rank, not measured:\n");
    print_part(to, "dense products", k->dense, k->step);
    print_part(to, "experts", k->experts, k->step);
    print_part(to, "text attention", k->attention, k->step);
    print_part(to, "vision attention", k->vision_attention, k->step);
    print_part(to, "element-wise", k->memory, k->step);
    print_part(to, "of these computed again", k->recompute, k->step);
    print_part(to, "optimiser", k->update, k->step);
    print_part(to, "between ranks, not hidden", k->exposed, k->step);
    print_part(to, "pipeline bubble", k->bubble, k->step);
    fprintf(to, "  %-26s %10.1f ms, %.0f tokens/s per rank, mfu %.1f %%\n", "step", k->step * 1e3,
            k->tokens_per_s, 100.0 * k->mfu);
}
