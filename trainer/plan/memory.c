/* memory.c: works out each region of the plan and their sum. */
#include "trainer/plan/memory.h"

#include "trainer/batch/upload_ring.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/generate/generate.h"
#include "trainer/model/pass_context.h"

batch_caps memory_caps(int64_t rows, int64_t seq_len, int64_t patch_budget)
{
    int64_t patches = rows * ((patch_budget + 3) / 4 * 4);
    /* The chat template alone takes more than four tokens of a document, and an image or a frame
     * has at least four patches. */
    return (batch_caps){
        .tokens = rows * seq_len,
        .docs = rows * seq_len / 4 + rows,
        .patches = patches,
        .items = patches / 4,
        .frames = patches / 4,
        .targets = rows * seq_len,
    };
}

int64_t memory_rows_ahead(const conf *c, int64_t rows)
{
    return c->feed_ahead > 2 * rows ? c->feed_ahead : 2 * rows;
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

memory_options memory_options_of(const conf *c, const layout *l, const plan_device *on,
                                 bool training, int64_t rows)
{
    exchange_way way = memory_exchange_way(c, l);
    if (way == EXCHANGE_IF_REACHED && plan_device_is_cpu(on))
        way = EXCHANGE_BY_HOST;
    return (memory_options){
        .rows = rows,
        .seq_len = c->training_seq_len,
        .patch_budget = c->data_patch_budget ? c->data_patch_budget : 4 * c->training_seq_len,
        .ahead = memory_rows_ahead(c, rows),
        .training = training,
        .keeps = training && checkpoint_writer_in_background(c),
        .answers = generate_wanted(c, training),
        .router_aux_coef = c->loss_router_aux_coef,
        .exchange = way,
    };
}

status memory_rank_of(params *own, const model_dims *d, const plan_device *on, bool training,
                      memory_rank *out)
{
    model_options frozen = {0};
    memory_rank r = {.dims = d};
    TRY(params_size(own, on->sizes, training, &r.size));
    model_options_freeze(&frozen, own);
    r.mesh = own->mesh && own->mesh->layout.world > 1 ? own->mesh : NULL;
    r.tower_frozen = frozen.tower_frozen;
    r.vision_frozen = frozen.vision_frozen;
    r.lora_rank = frozen.lora_rank;
    r.lora_experts = frozen.lora_experts;
    *out = r;
    return ST_OK;
}

static model_options model_of(const memory_options *o, const memory_rank *r, const memory_shapes *z)
{
    const int64_t patches = r->dims->vision.depth ? o->patch_budget : 0;
    return (model_options){
        .cap = z->count ? z->largest : memory_caps(o->rows, o->seq_len, patches),
        .mesh = r->mesh,
        .training = o->training,
        .recomputed = o->recomputed,
        .router_aux_coef = o->router_aux_coef,
        .tower_frozen = r->tower_frozen,
        .vision_frozen = r->vision_frozen,
        .lora_rank = r->lora_rank,
        .lora_experts = r->lora_experts,
        .exchange = o->exchange,
    };
}

/* A guess for shapes that are not known: rows of one document each, and images of the usual size.
 */
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

static void plan_gpu(const model_options *m, const memory_options *o, const memory_rank *r,
                     const memory_shapes *z, const plan_device *on, memory_gpu *out)
{
    *out = (memory_gpu){0};
    const batch_caps guess = usual(&m->cap, o->rows);
    const memory_steps steps = {.caps = z->count ? z->caps : &guess,
                                .count = z->count ? z->count : 1,
                                .buffers = upload_ring_count(on->sizes, model_flights_of(m))};
    if (on->sizes->overhead)
        memory_gpu_plan(r->dims, m, &steps, on->multiprocessors, out);
}

/* Bytes of a full row as it is received (proto/batch.h). */
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

/* Plans micro-batches on the device, micro-batches being built on the host, and rows that wait. */
static void plan_rows(const model_options *m, const memory_options *o, const backend_vtable *v,
                      memory_plan *p)
{
    const row_share share = m->mesh ? row_share_of(m->mesh) : row_share_alone();
    const int64_t buffers = upload_ring_count(v, model_flights_of(m));
    const int64_t rows = o->rows > 0 ? o->rows : 1;
    const int64_t ahead = o->ahead > 0 ? o->ahead : 2 * rows;
    row_share alone = row_share_alone();
    alone.blind = share.blind;
    p->staging = buffers * stager_bytes(&m->cap, &share, v);
    p->built = buffers * stager_bytes(&m->cap, &alone, v);
    if (row_share_ranks(&share) > 1)
        p->built += p->staging;
    p->received = ahead * row_bytes(m->cap.tokens / rows, m->cap.patches / rows);
}

static int64_t sum_of(const memory_plan *p, const plan_device *on)
{
    const int64_t own = p->parameters + p->gradients + p->moments + p->weights + p->gathered +
                        p->activations + p->window + p->staging + p->answers +
                        memory_gpu_total(&p->gpu);
    return plan_device_is_cpu(on) ? own + p->built + p->received + p->snapshot : own;
}

status memory_plan_make(const memory_options *o, const memory_rank *r, const memory_shapes *z,
                        const plan_device *on, memory_plan *out)
{
    const backend_vtable *v = on->sizes;
    const int64_t acc = (int64_t)st_dtype_size(v->acc), act = (int64_t)st_dtype_size(v->act);
    const model_options m = model_of(o, r, z);
    memory_plan p = {.stage = r->mesh ? r->mesh->place.pipeline : 0};
    p.parameters = r->size.stored * acc;
    p.weights = act == acc ? 0 : r->size.stored * act;
    p.gradients = o->training ? r->size.trained * acc : 0;
    p.moments = 2 * p.gradients;
    p.gathered = r->size.gathered_bytes;
    TRY(model_regions_of(r->dims, &m, v, &p.parts));
    p.window = p.parts.window;
    p.activations = p.parts.total - p.window;
    plan_rows(&m, o, v, &p);
    if (o->answers)
        p.answers = generate_bytes(r->dims, r->mesh, m.cap.tokens / o->rows, v);
    if (o->keeps)
        p.snapshot = (r->size.stored + 2 * r->size.trained) * acc;
    plan_gpu(&m, o, r, z, on, &p.gpu);
    p.total = sum_of(&p, on);
    *out = p;
    return ST_OK;
}
