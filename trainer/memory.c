#include "trainer/memory.h"

#include <inttypes.h>

#include "trainer/eval/generate.h"

enum { MIN_SEQ_LEN = 16 }; /* training.seq_len's least */
static const double MIB = 1048576.0;

batch_caps memory_caps(int64_t rows, int64_t seq_len, int64_t patch_budget)
{
    int64_t patches = rows * ((patch_budget + 3) / 4 * 4);
    /* The chat template alone takes more than four tokens of a document; an item or frame has at
     * least four patches. */
    return (batch_caps){
        .tokens = rows * seq_len,
        .docs = rows * seq_len / 4 + rows,
        .patches = patches,
        .items = patches / 4,
        .frames = patches / 4,
        .targets = rows * seq_len,
    };
}

status memory_plan_make(const model_dims *d, int64_t n_params, int64_t n_trained,
                        const model_options *o, const backend_vtable *backend, memory_plan *out)
{
    memory_plan p = {0};
    int64_t acc = (int64_t)st_dtype_size(backend->acc), act = (int64_t)st_dtype_size(backend->act);
    p.parameters = n_params * (acc + (act == acc ? 0 : act));
    if (o->training) {
        p.gradients = n_trained * acc;
        p.moments = 2 * n_trained * acc;
    }
    TRY(model_bytes(d, o, backend, &p.activations));
    p.total = p.parameters + p.gradients + p.moments + p.activations;
    *out = p;
    return ST_OK;
}

void memory_plan_add_snapshot(memory_plan *p, int64_t n_params, int64_t n_trained,
                              const backend_vtable *backend)
{
    p->snapshot = (n_params + 2 * n_trained) * (int64_t)st_dtype_size(backend->acc);
    if (backend == &backend_cpu)
        p->total += p->snapshot;
}

void memory_plan_add_answers(memory_plan *p, const model_dims *d, int64_t seq_len,
                             const backend_vtable *backend)
{
    p->answers = generate_bytes(d, seq_len, backend);
    p->total += p->answers;
}

void memory_plan_add_gathered(memory_plan *p, int64_t bytes)
{
    p->gathered = bytes;
    p->total += bytes;
}

void memory_plan_print(const memory_plan *p, FILE *to)
{
    const struct {
        const char *name;
        int64_t bytes;
    } regions[] = {{"parameters", p->parameters},
                   {"gradients", p->gradients},
                   {"moments", p->moments},
                   {"gathered units", p->gathered},
                   {"activations and scratch", p->activations},
                   {"answers", p->answers},
                   {"snapshot (host)", p->snapshot},
                   {"total", p->total}};
    for (size_t i = 0; i < sizeof regions / sizeof *regions; i++)
        fprintf(to, "memory: %-24s %20" PRId64 " bytes %12.1f MiB\n", regions[i].name,
                regions[i].bytes, (double)regions[i].bytes / MIB);
}

status memory_layout_plan(const memory_layout *l, memory_plan *out)
{
    model_options o = {
        .cap = memory_caps(l->rows, l->seq_len, l->dims->vision.depth ? l->patch_budget : 0),
        .mesh = l->mesh,
        .training = l->training,
        .checkpoint_full = l->checkpoint_full,
        .router_aux_coef = l->router_aux_coef,
        .tower_frozen = l->tower_frozen,
        .vision_frozen = l->vision_frozen,
        .lora_rank = l->lora_rank,
        .lora_experts = l->lora_experts,
    };
    TRY(memory_plan_make(l->dims, l->n_params, l->n_trained, &o, l->backend, out));
    memory_plan_add_gathered(out, l->gathered);
    if (l->answers)
        memory_plan_add_answers(out, l->dims, l->seq_len, l->backend);
    if (l->keeps)
        memory_plan_add_snapshot(out, l->n_params, l->n_trained, l->backend);
    return ST_OK;
}

static status fits(const memory_layout *l, double bytes, bool *out)
{
    memory_plan p;
    TRY(memory_layout_plan(l, &p));
    *out = (double)p.total <= bytes;
    return ST_OK;
}

/* The next smaller layout; false after the smallest. A divisor of the rows there were still divides
 * training.global_batch_size. */
static bool shrink(memory_layout *l)
{
    if (l->training && !l->checkpoint_full) {
        l->checkpoint_full = true;
    } else if (l->rows > 1) {
        int64_t rows = l->rows - 1;
        while (l->rows % rows)
            rows--;
        l->rows = rows;
    } else if (l->seq_len / 2 >= MIN_SEQ_LEN) {
        l->seq_len /= 2;
        l->patch_budget /= 2;
    } else {
        return false;
    }
    return true;
}

status memory_layout_check(const memory_layout *l, double bytes)
{
    memory_plan p;
    bool found = false;
    TRY(memory_layout_plan(l, &p));
    if ((double)p.total <= bytes)
        return ST_OK;
    memory_layout smaller = *l;
    while (!found && shrink(&smaller))
        TRY(fits(&smaller, bytes, &found));
    char remedy[256];
    if (found)
        snprintf(remedy, sizeof remedy,
                 "what fits: %straining.local_batch_size %" PRId64 ", training.seq_len %" PRId64,
                 smaller.checkpoint_full ? "activation_checkpoint.mode full, " : "", smaller.rows,
                 smaller.seq_len);
    else
        snprintf(remedy, sizeof remedy, "no batch of this model fits here");
    return FAIL(ST_CONFIG,
                "the layout needs %.1f MiB and memory.limit leaves %.1f MiB of this device; %s",
                (double)p.total / MIB, bytes / MIB, remedy);
}
