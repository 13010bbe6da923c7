#include "trainer/layout_plan.h"

#include <inttypes.h>
#include <string.h>

#include "trainer/checkpoint/keeper.h"
#include "trainer/memory.h"

static const double GIB = 1073741824.0;
static const double H200_GIB = 139.7; /* what its driver offers */
enum { GATHERED_LAYERS = 2, MOST_ROWS = 4096 };

/* Sizes of the CUDA backend; never opened. */
static const backend_vtable sizes = {
    .name = "H200", .act = DT_BF16, .acc = DT_F32, .fixed_shapes = true};

/* bf16 bytes of the largest layer, its experts divided among the expert ranks. */
static int64_t largest_layer(const layout *l, const model_dims *d, const params *p)
{
    int64_t dense = 0, experts = 0;
    for (int64_t i = 0; i < p->n; i++) {
        const param *q = &p->list[i];
        if (q->group == GROUP_EXPERTS)
            experts += q->count;
        else if (q->group == GROUP_TEXT || q->group == GROUP_ROUTER)
            dense += strstr(q->name, ".layers.") ? q->count : 0;
    }
    int64_t layers = d->text.layers;
    return 2 * (dense / layers / l->tensor + experts / layers / l->expert / l->expert_tensor);
}

status layout_plan_make(const conf *c, const layout *l, const model_dims *d, const params *p,
                        int64_t rows, bool checkpoint_full, layout_plan *out)
{
    const int64_t ranks = l->shard * l->context * l->tensor * l->pipeline;
    const int64_t n = p->total, trained = params_trained(p), seq = c->training_seq_len;
    const int64_t patches = c->data_patch_budget ? c->data_patch_budget : 4 * seq;
    const int64_t cut = l->context * l->tensor;
    model_options o = {
        .cap = memory_caps(rows, seq, d->vision.depth ? patches : 0),
        .training = true,
        .checkpoint_full = checkpoint_full,
        .router_aux_coef = c->loss_router_aux,
    };
    layout_plan m = {0};
    model_options_freeze(&o, p);
    TRY(model_regions_of(d, &o, &sizes, &m.parts));
    int64_t *const parts[] = {&m.parts.vision_kept,  &m.parts.text_kept,    &m.parts.vision_scratch,
                              &m.parts.text_scratch, &m.parts.head_scratch, &m.parts.total};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        *parts[i] /= cut * l->pipeline;
    m.activations = m.parts.total;
    m.state = (4 * n + 12 * trained) / ranks;
    m.weights = 2 * n / ranks;
    m.gathered = l->shard * l->context > 1 ? GATHERED_LAYERS * largest_layer(l, d, p) : 0;
    m.total = m.state + m.weights + m.gathered + m.activations;
    m.pinned = keeper_in_background(c) ? (4 * n + 8 * trained) / ranks : 0;
    *out = m;
    return ST_OK;
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

/* The most rows of a micro-batch within bytes; 0 if not even one. */
static status most_rows(const conf *c, const layout *l, const model_dims *d, const params *p,
                        bool full, double bytes, int64_t *out)
{
    int64_t low = 0, high = MOST_ROWS;
    while (low < high) {
        int64_t rows = (low + high + 1) / 2;
        layout_plan m;
        TRY(layout_plan_make(c, l, d, p, rows, full, &m));
        if ((double)m.total <= bytes)
            low = rows;
        else
            high = rows - 1;
    }
    *out = low;
    return ST_OK;
}

status layout_print(const conf *c, const layout *l, const model_dims *d, const params *p, FILE *to,
                    bool *out_fits)
{
    const double bytes = c->memory_limit * H200_GIB * GIB;
    const bool full = c->ac_mode == AC_FULL;
    const int64_t rows = c->training_local_batch_size;
    int64_t as_is, with_full;
    layout_plan m;
    TRY(layout_plan_make(c, l, d, p, rows, full, &m));
    TRY(most_rows(c, l, d, p, full, bytes, &as_is));
    TRY(most_rows(c, l, d, p, true, bytes, &with_full));
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
    fprintf(to, "one rank on an H200 of %.1f GiB, bf16 with fp32 master weights:\n", H200_GIB);
    print_bytes(to, "values, moments, gradients (fp32, sharded)", m.state);
    print_bytes(to, "compute weights (bf16, sharded)", m.weights);
    print_bytes(to, "two layers of them gathered", m.gathered);
    print_bytes(to, "activations and scratch", m.activations);
    print_bytes(to, "total", m.total);
    print_phases(to, &m);
    print_bytes(to, "pinned host memory of checkpoints", m.pinned);
    bool fits = (double)m.total <= bytes;
    fprintf(to,
            "%s: %.1f %% of the card, memory.limit %.0f %%; the largest micro-batch is %" PRId64
            " rows, with full activation checkpointing %" PRId64 "\n",
            fits ? "fits" : "does not fit", (double)m.total / (H200_GIB * GIB) * 100.0,
            c->memory_limit * 100.0, as_is, with_full);
    if (!fits && with_full == 0)
        fprintf(to, "no batch of this model and training.seq_len fits this layout\n");
    else if (!fits)
        fprintf(to, "what fits: %straining.local_batch_size %" PRId64 "\n",
                as_is > 0 ? "" : "activation_checkpoint.mode full, ",
                as_is > 0          ? as_is
                : with_full < rows ? with_full
                                   : rows);
    if (out_fits)
        *out_fits = fits;
    return ST_OK;
}
