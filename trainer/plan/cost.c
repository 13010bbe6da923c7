#include "trainer/plan/cost.h"

#include <inttypes.h>
#include <string.h>

enum {
    ACT = 2, /* bytes of bf16 */
    ACC = 4, /* of fp32 */
    VQA_DOCUMENT = 313,
    /* AdamW reads gradient, two moments and value, writes three of them and the compute copy. */
    UPDATE_BYTES = 7 * ACC + ACT
};
static const int32_t VQA_GRID[3] = {1, 30, 40};

row_kind row_kind_of(const conf *c, const model_dims *d)
{
    row_kind r = {.seq_len = c->training_seq_len, .document = c->training_seq_len};
    if (d->vision.depth == 0 || c->data_format == DATA_TEXT)
        return r;
    if (r.document > VQA_DOCUMENT)
        r.document = VQA_DOCUMENT;
    memcpy(r.grid, VQA_GRID, sizeof r.grid);
    return r;
}

/* Elements of a layer kind that a rank holds of the model once its weights are gathered: as cut by
 * tensor, expert and expert-tensor, of one pipeline stage on average. */
typedef struct sizes {
    double whole, dense, expert;       /* all */
    double t_whole, t_dense, t_expert; /* trained */
} sizes;

static sizes sizes_of(const layout *l, const params *p)
{
    sizes z = {0};
    for (int64_t i = 0; i < p->n; i++) {
        const param *q = &p->list[i];
        double n = (double)q->count, t = q->frozen ? 0.0 : n;
        bool layer = strstr(q->name, ".self_attn.") || strstr(q->name, ".mlp.");
        if (q->group == GROUP_EXPERTS) {
            z.expert += n;
            z.t_expert += t;
        } else if (q->group == GROUP_TEXT && q->n_dims == 2 && layer) {
            z.dense += n;
            z.t_dense += t;
        } else {
            z.whole += n;
            z.t_whole += t;
        }
    }
    double stage = 1.0 / (double)l->pipeline, tensor = stage / (double)l->tensor;
    double expert = stage / (double)(l->expert * l->expert_tensor);
    return (sizes){z.whole * stage,   z.dense * tensor,   z.expert * expert,
                   z.t_whole * stage, z.t_dense * tensor, z.t_expert * expert};
}

static double group_size(const layout *l, mesh_group g)
{
    double whole = (double)(l->shard * l->context * l->tensor);
    switch (g) {
    case MESH_WHOLE:
        return whole;
    case MESH_DENSE:
        return (double)(l->shard * l->context);
    case MESH_EXPERT:
        return (double)l->expert;
    case MESH_EXPERT_SHARD:
        return whole / (double)(l->expert * l->expert_tensor);
    case MESH_CONTEXT:
        return (double)l->context;
    case MESH_TENSOR:
        return (double)l->tensor;
    case MESH_ROW:
        return (double)(l->context * l->tensor);
    case MESH_REPLICATE:
        return (double)l->replicate;
    default:
        return (double)l->pipeline;
    }
}

/* What a rank receives of `bytes` that all ranks of the group end up with. */
static double received(const layout *l, mesh_group g, double bytes)
{
    double n = group_size(l, g);
    return bytes * (n - 1.0) / n;
}

/* Whether a group has ranks of several nodes: the distance of its farthest ranks. */
static bool leaves_node(const layout *l, mesh_group g, int per_node)
{
    if (l->world <= per_node || group_size(l, g) <= 1.0)
        return false;
    double row = (double)(l->context * l->tensor), stage = row * (double)l->shard;
    switch (g) {
    case MESH_TENSOR:
        return l->tensor > per_node;
    case MESH_CONTEXT:
    case MESH_ROW:
        return row > per_node;
    case MESH_EXPERT: /* neighbours in flat */
        return (double)(l->expert * (l->expert_tensor > 1 ? l->tensor : 1)) > per_node;
    case MESH_REPLICATE:
        return stage * (double)l->replicate > per_node;
    case MESH_PIPELINE:
        return true;
    default:
        return stage > per_node;
    }
}

/* Bytes that element-wise work moves, of one token and decoder layer, forward and backward: about
 * three times the forward's. */
static double layer_bytes(const text_dims *t)
{
    double h = (double)t->hidden, heads = (double)((t->heads + 2 * t->kv_heads) * t->head_dim);
    double slots = (double)t->top_k, wide = (double)t->expert_width;
    double forward = 10.0 * h + 4.0 * heads + slots * (3.0 * h + 3.0 * wide);
    return 3.0 * forward * ACT;
}

static double block_bytes(const vision_dims *v)
{
    double forward = 10.0 * (double)v->hidden + 2.0 * (double)v->intermediate;
    return 3.0 * forward * ACT;
}

static void step_flops(const conf *c, const model_dims *d, cost *k)
{
    int64_t rows = c->training_global_batch_size, left = k->row.seq_len;
    int64_t length[1024];
    while (left > 0) {
        int n = 0;
        for (; left > 0 && n < 1024; n++) {
            length[n] = left < k->row.document ? left : k->row.document;
            left -= length[n];
        }
        flops f;
        dims_flops(d, length, n, NULL, 0, &f);
        flops_add(&k->flops, &f);
        for (int i = 0; i < n && k->row.grid[0] > 0; i++) {
            if (length[i] < k->row.document)
                continue; /* what is left of the row is text */
            dims_flops(d, NULL, 0, k->row.grid, 1, &f);
            flops_add(&k->flops, &f);
        }
    }
    int64_t *const parts[] = {
        &k->flops.text_linear,   &k->flops.text_attention,   &k->flops.head,
        &k->flops.text_router,   &k->flops.text_experts,     &k->flops.patch_embed,
        &k->flops.vision_blocks, &k->flops.vision_attention, &k->flops.mergers,
        &k->flops.forward,       &k->flops.training};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        *parts[i] *= rows;
}

static void put(cost *k, const layout *l, const rates *r, traffic_key key, const char *name,
                mesh_group g, double bytes)
{
    k->traffic[key] = (traffic){name, g, (int64_t)bytes, leaves_node(l, g, r->per_node)};
}

static void step_traffic(const layout *l, const model_dims *d, const params *p, const rates *r,
                         double micro_tokens, double patches, bool full, cost *k)
{
    sizes z = sizes_of(l, p);
    const double micros = (double)l->accumulation, layers = (double)d->text.layers;
    const double h = (double)d->text.hidden, stage = 1.0 / (double)l->pipeline;
    const double local = micro_tokens / (double)(l->context * l->tensor);
    const double context = micro_tokens / (double)l->context;
    double gather = received(l, MESH_WHOLE, z.whole) + received(l, MESH_DENSE, z.dense) +
                    received(l, MESH_EXPERT_SHARD, z.expert);
    double reduce = received(l, MESH_WHOLE, z.t_whole) + received(l, MESH_DENSE, z.t_dense) +
                    received(l, MESH_EXPERT_SHARD, z.t_expert);
    double ranks = group_size(l, MESH_WHOLE);
    double pieces = z.t_whole / ranks + z.t_dense / group_size(l, MESH_DENSE) +
                    z.t_expert / group_size(l, MESH_EXPERT_SHARD);
    double again = full ? 3.0 : 2.0; /* passes over a layer's activations */
    put(k, l, r, TRAFFIC_GATHER, "weights gathered", MESH_WHOLE, micros * 2.0 * gather * ACT);
    put(k, l, r, TRAFFIC_REDUCE, "gradients reduced", MESH_WHOLE, micros * reduce * ACC);
    put(k, l, r, TRAFFIC_REPLICATE, "gradients over replicas", MESH_REPLICATE,
        2.0 * received(l, MESH_REPLICATE, pieces * ACC));
    put(k, l, r, TRAFFIC_TENSOR, "sequence and heads", MESH_TENSOR,
        micros * stage * layers * again * 2.0 * received(l, MESH_TENSOR, context * h * ACT));
    put(k, l, r, TRAFFIC_CONTEXT, "keys and values", MESH_CONTEXT,
        micros * stage * layers * again *
            received(l, MESH_CONTEXT,
                     micro_tokens * 2.0 * (double)(d->text.kv_heads * d->text.head_dim) /
                         (double)l->tensor * ACT));
    put(k, l, r, TRAFFIC_EXPERT, "tokens and experts", MESH_EXPERT,
        micros * stage * layers * again * 2.0 *
            received(l, MESH_EXPERT, local * (double)d->text.top_k * h * ACT) *
            (d->text.experts > 0 ? 1.0 : 0.0));
    put(k, l, r, TRAFFIC_PIPELINE, "activations between stages", MESH_PIPELINE,
        l->pipeline > 1 ? micros * 2.0 * local * h * ACT : 0.0);
    put(k, l, r, TRAFFIC_ROW, "features of shared rows", MESH_ROW,
        micros * stage * 2.0 *
            received(l, MESH_ROW, patches / 4.0 * (double)(1 + d->vision.n_deepstack) * h * ACT));
}

static double seconds(const traffic *t, const rates *r)
{
    return (double)t->bytes / r->of[t->between_nodes ? RATE_NETWORK : RATE_LINK];
}

static double more(double a, double b)
{
    return a > b ? a : b;
}

/* Rank seconds of the work of a step, and what recomputing a forward adds. */
static void step_compute(const conf *c, const layout *l, const model_dims *d, const params *p,
                         const rates *r, bool full, double patches, cost *k)
{
    training_share share;
    groups_share(p, d, &share);
    const flops *f = &k->flops;
    k->flops.training = groups_training_flops(f, &share);
    const double n = (double)l->world;
    double text = 1.0 + share.wgrad[GROUP_TEXT] + share.text_dgrad + (full ? 1.0 : 0.0);
    double expert = 1.0 + share.wgrad[GROUP_EXPERTS] + share.text_dgrad + (full ? 1.0 : 0.0);
    double eye = 1.0 + share.wgrad[GROUP_VISION] + share.vision_dgrad +
                 (full && share.vision_dgrad > 0 ? 1.0 : 0.0);
    double merger = 1.0 + share.wgrad[GROUP_MERGER] + share.merger_dgrad;
    double linear = (double)(f->text_linear - f->text_experts);
    k->dense = (linear * text + (double)f->head * (2.0 + share.head_wgrad) +
                (double)f->patch_embed * (1.0 + share.patch_wgrad) +
                (double)f->vision_blocks * eye + (double)f->mergers * merger) /
               n / r->of[RATE_DENSE];
    k->experts = (double)f->text_experts * expert / n / r->of[RATE_EXPERTS];
    k->attention = (double)f->text_attention * (1.0 + 2.0 * share.text_dgrad + (full ? 1.0 : 0.0)) /
                   n / r->of[RATE_ATTENTION];
    k->vision_attention =
        (double)f->vision_attention *
        (1.0 + 2.0 * share.vision_dgrad + (full && share.vision_dgrad > 0 ? 1.0 : 0.0)) / n /
        r->of[RATE_VISION_ATTENTION];
    double tokens = (double)(c->training_global_batch_size * c->training_seq_len);
    double passes = full ? 4.0 / 3.0 : 1.0;
    k->memory = passes *
                (tokens * (double)d->text.layers * layer_bytes(&d->text) +
                 patches * (double)d->vision.depth * block_bytes(&d->vision)) /
                n / r->of[RATE_COPY];
    double forward = ((linear + (double)f->vision_blocks) / r->of[RATE_DENSE] +
                      (double)f->text_experts / r->of[RATE_EXPERTS] +
                      (double)f->text_attention / r->of[RATE_ATTENTION]) /
                     n;
    k->recompute = full ? forward : 0.0;
    k->update = (double)params_trained(p) /
                (double)(l->shard * l->context * l->tensor * l->pipeline) * UPDATE_BYTES /
                r->of[RATE_COPY];
}

void cost_of(const conf *c, const layout *l, const model_dims *d, const params *p, const rates *r,
             bool full, cost *out)
{
    cost k = {.row = row_kind_of(c, d)};
    step_flops(c, d, &k);
    double rows = (double)c->training_local_batch_size;
    double images = k.row.grid[0] > 0 ? (double)(k.row.seq_len / k.row.document) : 0.0;
    double patches = images * (double)(k.row.grid[0] * k.row.grid[1] * k.row.grid[2]);
    step_traffic(l, d, p, r, rows * (double)k.row.seq_len, rows * patches, full, &k);
    step_compute(c, l, d, p, r, full, patches * (double)c->training_global_batch_size, &k);

    double compute = k.dense + k.experts + k.attention + k.vision_attention + k.memory;
    double gather = seconds(&k.traffic[TRAFFIC_GATHER], r) / 2.0;
    double reduce = seconds(&k.traffic[TRAFFIC_REDUCE], r);
    /* a third of the compute is the forward pass, a quarter with recomputation */
    double forward = compute / (full ? 4.0 : 3.0);
    k.exposed = more(0.0, gather - forward) + more(0.0, gather + reduce - (compute - forward));
    for (int i = TRAFFIC_REPLICATE; i < TRAFFIC_KEYS; i++)
        k.exposed += seconds(&k.traffic[i], r);
    double stages = (double)l->pipeline, micros = (double)l->accumulation;
    k.bubble = (compute + k.exposed) * (stages - 1.0) / micros;
    k.step = compute + k.exposed + k.bubble + k.update;
    double tokens = (double)(c->training_global_batch_size * k.row.seq_len);
    k.tokens_per_s = tokens / (double)l->world / k.step;
    k.mfu = (double)k.flops.training / (double)l->world / k.step / r->of[RATE_PEAK];
    *out = k;
}

static void part(FILE *to, const char *name, double s, double step)
{
    fprintf(to, "  %-26s %10.1f ms %5.1f %%\n", name, s * 1e3, 100.0 * s / step);
}

void cost_print(const cost *k, const layout *l, FILE *to)
{
    static const double GIB = 1073741824.0;
    fprintf(to, "rows of documents of %" PRId64 " tokens", k->row.document);
    if (k->row.grid[0] > 0)
        fprintf(to, " with a picture of %dx%dx%d patches each", k->row.grid[0], k->row.grid[1],
                k->row.grid[2]);
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
                {"training, useful", k->flops.training}};
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
    part(to, "dense products", k->dense, k->step);
    part(to, "experts", k->experts, k->step);
    part(to, "text attention", k->attention, k->step);
    part(to, "vision attention", k->vision_attention, k->step);
    part(to, "element-wise", k->memory, k->step);
    part(to, "optimiser", k->update, k->step);
    part(to, "between ranks, not hidden", k->exposed, k->step);
    part(to, "pipeline bubble", k->bubble, k->step);
    fprintf(to, "  %-26s %10.1f ms, %.0f tokens/s per rank, mfu %.1f %%\n", "step", k->step * 1e3,
            k->tokens_per_s, 100.0 * k->mfu);
}
