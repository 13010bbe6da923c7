#include "trainer/plan/memory.h"

#include <inttypes.h>

#include "trainer/batch/upload_ring.h"
#include "trainer/generate/generate.h"
#include "trainer/model/model_pass.h"

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

int64_t memory_rows_ahead(const conf *c)
{
    const int64_t least = 2 * c->training_local_batch_size;
    return c->feed_ahead > least ? c->feed_ahead : least;
}

exchange_way memory_exchange_way(const conf *c, const layout *l)
{
    if (l->expert * l->expert_tensor == 1 || c->comm_expert_exchange == EXPERT_EXCHANGE_HOST)
        return EXCHANGE_BY_HOST;
    if (c->comm_expert_exchange == EXPERT_EXCHANGE_DEVICE)
        return EXCHANGE_BY_DEVICE;
    const bool on_gpus = (c->comm_engine == ENGINE_AUTO || c->comm_engine == ENGINE_NCCL) &&
                         c->training_backend != BACKEND_CPU;
    return on_gpus ? EXCHANGE_IF_REACHED : EXCHANGE_BY_HOST;
}

/* Of shapes that are not known: rows of one document each, and images of the usual size. */
static batch_caps usual(const batch_caps *cap, int64_t rows)
{
    enum { FRAME = 1200 }; /* patches of a 640 x 480 picture */
    batch_caps c = *cap;
    c.docs = rows;
    c.longest = c.tokens / (rows > 0 ? rows : 1);
    c.frames = c.patches / FRAME + 1;
    c.frame = FRAME;
    return c;
}

void memory_plan_gpu(const model_dims *d, const model_options *o, const memory_shapes *z,
                     const backend_vtable *backend, memory_gpu *out)
{
    *out = (memory_gpu){0};
    const batch_caps guess = usual(&o->cap, z->rows);
    const memory_steps steps = {.caps = z->n ? z->caps : &guess,
                                .n = z->n ? z->n : 1,
                                .buffers = lane_count(backend, model_flights_of(o))};
    if (backend->overhead)
        memory_gpu_plan(d, o, &steps, out);
}

/* A full row as it is received (proto/batch.h). */
static int64_t row_bytes(int64_t tokens, int64_t patches)
{
    const row r = {.n_tokens = tokens, .n_docs = 1, .n_patches = patches};
    st_tensor t[ROW_TENSORS];
    size_t n, bytes = 0;
    row_tensors(&r, 1, t, &n);
    for (size_t i = 0; i < n; i++)
        bytes += t[i].data.size;
    return (int64_t)bytes;
}

static int64_t waiting_bytes(const model_options *o, const memory_shapes *z, const row_share *share,
                             const backend_vtable *backend)
{
    row_share alone = row_share_alone();
    alone.blind = share->blind;
    const int64_t rows = z->rows > 0 ? z->rows : 1, ahead = z->ahead > 0 ? z->ahead : 2 * rows;
    int64_t batch = stager_bytes(&o->cap, &alone, backend);
    if (row_share_ranks(share) > 1)
        batch += stager_bytes(&o->cap, share, backend);
    return lane_count(backend, model_flights_of(o)) * batch +
           ahead * row_bytes(o->cap.tokens / rows, o->cap.patches / rows);
}

status memory_plan_make(const model_dims *d, int64_t n_params, int64_t n_trained,
                        const model_options *o, const memory_shapes *z,
                        const backend_vtable *backend, memory_plan *out)
{
    memory_plan p = {0};
    const row_share share = o->mesh ? row_share_of(o->mesh) : row_share_alone();
    int64_t acc = (int64_t)st_dtype_size(backend->acc), act = (int64_t)st_dtype_size(backend->act);
    p.parameters = n_params * (acc + (act == acc ? 0 : act));
    if (o->training) {
        p.gradients = n_trained * acc;
        p.moments = 2 * n_trained * acc;
    }
    model_regions regions;
    TRY(model_regions_of(d, o, backend, &regions));
    p.window = regions.window;
    p.activations = regions.total - regions.window;
    p.staging = lane_count(backend, model_flights_of(o)) * stager_bytes(&o->cap, &share, backend);
    memory_plan_gpu(d, o, z, backend, &p.gpu);
    p.total = p.parameters + p.gradients + p.moments + p.activations + p.window + p.staging +
              memory_gpu_total(&p.gpu);
    p.waiting = waiting_bytes(o, z, &share, backend);
    if (backend == &backend_cpu)
        p.total += p.waiting;
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

void memory_plan_add_answers(memory_plan *p, const model_dims *d, const mesh *m, int64_t seq_len,
                             const backend_vtable *backend)
{
    p->answers = generate_bytes(d, m, seq_len, backend);
    p->total += p->answers;
}

void memory_plan_add_gathered(memory_plan *p, int64_t bytes)
{
    p->gathered = bytes;
    p->total += bytes;
}

static void print_region(FILE *to, const char *name, int64_t bytes)
{
    fprintf(to, "memory: %-24s %20" PRId64 " bytes %12.1f MiB\n", name, bytes, (double)bytes / MIB);
}

void memory_plan_print(const memory_plan *p, FILE *to)
{
    print_region(to, "parameters", p->parameters);
    print_region(to, "gradients", p->gradients);
    print_region(to, "moments", p->moments);
    print_region(to, "gathered units", p->gathered);
    print_region(to, "activations and scratch", p->activations);
    if (p->window)
        print_region(to, "windows of peers", p->window);
    print_region(to, "batches under way", p->staging);
    print_region(to, "rows and batches (host)", p->waiting);
    print_region(to, "answers", p->answers);
    if (p->gpu.context) { /* the CPU has none of these */
        print_region(to, "context", p->gpu.context);
        print_region(to, "libraries' kernels", p->gpu.libraries);
        print_region(to, "workspace of ops", p->gpu.workspace);
        print_region(to, "captured steps", p->gpu.graphs);
        print_region(to, "collectives", p->gpu.ranks);
    }
    print_region(to, "snapshot (host)", p->snapshot);
    print_region(to, "total", p->total);
}

status memory_layout_plan(const memory_layout *l, memory_plan *out)
{
    model_options o = {
        .cap = memory_caps(l->rows, l->seq_len, l->dims->vision.depth ? l->patch_budget : 0),
        .mesh = l->mesh,
        .training = l->training,
        .again = l->again,
        .router_aux_coef = l->router_aux_coef,
        .tower_frozen = l->tower_frozen,
        .vision_frozen = l->vision_frozen,
        .lora_rank = l->lora_rank,
        .lora_experts = l->lora_experts,
        .exchange = l->exchange,
    };
    const memory_shapes shapes = {l->buckets, l->n_buckets, l->rows, l->ahead};
    TRY(memory_plan_make(l->dims, l->n_params, l->n_trained, &o, &shapes, l->backend, out));
    memory_plan_add_gathered(out, l->gathered);
    if (l->answers)
        memory_plan_add_answers(out, l->dims, l->mesh, l->seq_len, l->backend);
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

/* Steps of activation checkpointing, and the options that set them. */
static const struct {
    unsigned text, vision;
    const char *words;
} steps[] = {
    {0, 0, ""},
    {AGAIN_CHEAP, AGAIN_CHEAP,
     "activation_checkpoint.mode selective, activation_checkpoint.save qkv,attention,proj,fc1,fc2, "
     "activation_checkpoint.vision_save qkv,attention,proj,fc1, "},
    {AGAIN_CHEAP | AGAIN_FC1 | AGAIN_FC2, AGAIN_CHEAP | AGAIN_FC1,
     "activation_checkpoint.mode selective, activation_checkpoint.save qkv,attention,proj, "
     "activation_checkpoint.vision_save qkv,attention,proj, "},
    {AGAIN_ALL, AGAIN_ALL, "activation_checkpoint.mode full, "},
};
enum { STEPS = sizeof steps / sizeof *steps };

/* Does this rule compute again all that the other does? */
static bool covers(const recompute *r, unsigned what)
{
    return r->every <= 1 && (r->what & what) == what;
}

/* The next step that computes more again; STEPS where all is. */
static int next_step(const recomputes *a)
{
    int i = 1;
    while (i < STEPS && covers(&a->text, steps[i].text) && covers(&a->vision, steps[i].vision))
        i++;
    return i;
}

/* The next smaller layout; false after the smallest. A divisor of the rows there were still divides
 * training.global_batch_size. */
static bool shrink(memory_layout *l, const char **inout_words)
{
    const int step = next_step(&l->again);
    if (l->training && step < STEPS) {
        l->again.text = (recompute){.what = l->again.text.what | steps[step].text};
        l->again.vision = (recompute){.what = l->again.vision.what | steps[step].vision};
        *inout_words = steps[step].words;
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
    const char *words = "";
    while (!found && shrink(&smaller, &words))
        TRY(fits(&smaller, bytes, &found));
    char remedy[384];
    if (found)
        snprintf(remedy, sizeof remedy,
                 "what fits: %straining.local_batch_size %" PRId64 ", training.seq_len %" PRId64,
                 words, smaller.rows, smaller.seq_len);
    else
        snprintf(remedy, sizeof remedy, "no batch of this model fits here");
    return FAIL(ST_CONFIG,
                "the layout needs %.1f MiB and memory.limit leaves %.1f MiB of this device; %s",
                (double)p.total / MIB, bytes / MIB, remedy);
}
