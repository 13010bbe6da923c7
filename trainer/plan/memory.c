/* memory.c: works out each region of the plan and their sum. */
#include "trainer/plan/memory.h"

#include "trainer/batch/upload_ring.h"
#include "trainer/checkpoint/save/snapshot_file.h"
#include "trainer/checkpoint/save/writer.h"
#include "trainer/generate/generate.h"
#include "trainer/model/layers/pass_context.h"

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

int64_t memory_rows_ahead(int64_t rows)
{
    return rows > ROWS_AHEAD / 2 ? 2 * rows : ROWS_AHEAD;
}

exchange_way memory_exchange_way(const conf *options, const layout *degrees)
{
    if (degrees->expert * degrees->expert_tensor == 1 ||
        options->comm_expert_exchange == EXPERT_EXCHANGE_HOST)
        return EXCHANGE_BY_HOST;
    if (options->comm_expert_exchange == EXPERT_EXCHANGE_DEVICE)
        return EXCHANGE_BY_DEVICE;
    const bool on_gpus =
        (options->comm_engine == ENGINE_AUTO || options->comm_engine == ENGINE_NCCL) &&
        options->training_backend != BACKEND_CPU;
    return on_gpus ? EXCHANGE_IF_REACHED : EXCHANGE_BY_HOST;
}

memory_options memory_options_of(const conf *options, const layout *degrees, const plan_device *on,
                                 bool training, int64_t rows)
{
    exchange_way way = memory_exchange_way(options, degrees);
    if (way == EXCHANGE_IF_REACHED && plan_device_is_cpu(on))
        way = EXCHANGE_BY_HOST;
    return (memory_options){
        .rows = rows,
        .seq_len = options->training_seq_len,
        .patch_budget =
            options->data_patch_budget ? options->data_patch_budget : 4 * options->training_seq_len,
        .ahead = memory_rows_ahead(rows),
        .training = training,
        .copies = !training || !checkpoint_writer_in_background(options) ? 0
                  : snapshot_wanted(options)                             ? SNAPSHOT_SIDES
                                                                         : 1,
        .keeps_frozen = checkpoint_writer_reads_frozen(options),
        .answers = generate_wanted(options, training),
        .router_aux_coef = options->loss_router_aux_coef,
        .exchange = way,
        .attention = attention_use_of(options, on->cudnn, degrees),
    };
}

status memory_rank_of(params *own, const model_dims *dims, const plan_device *on, bool training,
                      memory_rank *out)
{
    model_options frozen = {0};
    memory_rank rank = {.dims = dims};
    TRY(params_size(own, on->sizes, training, &rank.size));
    model_options_freeze(&frozen, own);
    rank.mesh = own->mesh && own->mesh->layout.world > 1 ? own->mesh : NULL;
    rank.tower_frozen = frozen.tower_frozen;
    rank.vision_frozen = frozen.vision_frozen;
    rank.lora_rank = frozen.lora_rank;
    rank.lora_experts = frozen.lora_experts;
    rank.lora_dora = frozen.lora_dora;
    *out = rank;
    return ST_OK;
}

static model_options model_of(const memory_options *options, const memory_rank *rank,
                              const memory_shapes *shapes)
{
    const int64_t patches = rank->dims->vision.depth ? options->patch_budget : 0;
    return (model_options){
        .cap =
            shapes->count ? shapes->largest : memory_caps(options->rows, options->seq_len, patches),
        .mesh = rank->mesh,
        .training = options->training,
        .recomputed = options->recomputed,
        .router_aux_coef = options->router_aux_coef,
        .tower_frozen = rank->tower_frozen,
        .vision_frozen = rank->vision_frozen,
        .lora_rank = rank->lora_rank,
        .lora_experts = rank->lora_experts,
        .lora_dora = rank->lora_dora,
        .exchange = options->exchange,
    };
}

/* A guess for shapes that are not known: rows of one document each,
 * and images of the usual size. */
static batch_caps usual(const batch_caps *cap, int64_t rows)
{
    enum { FRAME = 1200 }; /* patches of a 640 x 480 picture */
    batch_caps caps = *cap;
    caps.docs = rows;
    caps.longest = caps.tokens / (rows > 0 ? rows : 1);
    caps.frames = caps.patches / FRAME + 1;
    caps.frame = FRAME;
    return caps;
}

static void plan_gpu(const model_options *options, const memory_options *how,
                     const memory_rank *rank, const memory_shapes *shapes, const plan_device *on,
                     memory_gpu *out)
{
    *out = (memory_gpu){0};
    const batch_caps guess = usual(&options->cap, how->rows);
    const memory_steps steps = {.caps = shapes->count ? shapes->caps : &guess,
                                .count = shapes->count ? shapes->count : 1,
                                .buffers = upload_ring_count(on->sizes, model_flights_of(options))};
    if (on->sizes->overhead)
        memory_gpu_plan(rank->dims, options, &steps, &how->attention, on->multiprocessors, out);
}

/* Bytes of a full row as it is received (proto/batch.h). */
static int64_t row_bytes(int64_t tokens, int64_t patches)
{
    const row packed = {.n_tokens = tokens, .n_docs = 1, .n_patches = patches};
    st_tensor tensor[ROW_TENSORS];
    size_t count, bytes = 0;
    row_tensors(&packed, 1, tensor, &count);
    for (size_t i = 0; i < count; i++)
        bytes += tensor[i].data.size;
    return (int64_t)bytes;
}

/* Plans micro-batches on the device, micro-batches being built on the host, and rows that wait. */
static void plan_rows(const model_options *net_options, const memory_options *options,
                      const backend_vtable *backend, memory_plan *planned)
{
    const row_share share = net_options->mesh ? row_share_of(net_options->mesh) : row_share_alone();
    const int64_t buffers = upload_ring_count(backend, model_flights_of(net_options));
    const int64_t rows = options->rows > 0 ? options->rows : 1;
    const int64_t ahead = options->ahead > 0 ? options->ahead : 2 * rows;
    row_share alone = row_share_alone();
    alone.blind = share.blind;
    planned->staging = buffers * stager_bytes(&net_options->cap, &share, backend);
    planned->built = buffers * stager_bytes(&net_options->cap, &alone, backend);
    if (row_share_ranks(&share) > 1)
        planned->built += planned->staging;
    planned->received =
        ahead * row_bytes(net_options->cap.tokens / rows, net_options->cap.patches / rows);
}

/* Where act and acc are one type, the master values serve as compute weights. */
static void plan_values(const memory_rank *rank, const backend_vtable *backend, memory_plan *plan)
{
    const params_sizes *size = &rank->size;
    const bool one = backend->act == backend->acc;
    plan->parameters = one ? size->acts : size->values;
    plan->weights = one ? 0 : size->acts;
    plan->codes = size->codes;
    plan->expanded = size->expanded;
    plan->uncoded = size->uncoded;
    plan->gradients = size->grads + size->unwanted;
    plan->moments = 2 * (size->moments_on_host ? size->turn[0] + size->turn[1] : size->moments);
    plan->resting_moments = size->moments_on_host ? 2 * size->moments : 0;
    plan->resting_frozen = size->resting;
}

/* Of frozen values in the files of model.path, also of those that are kept in codes. */
static int64_t frozen_bytes(const params_sizes *size, const backend_vtable *backend)
{
    const int64_t coded = size->uncoded / (int64_t)st_dtype_size(backend->act);
    return (int64_t)st_dtype_size(DT_BF16) * (size->stored - size->trained + coded);
}

static int64_t sum_of(const memory_plan *plan, const plan_device *on)
{
    const int64_t own = plan->parameters + plan->gradients + plan->moments + plan->weights +
                        plan->codes + plan->expanded + plan->gathered + plan->activations +
                        plan->window + plan->staging + plan->answers + memory_gpu_total(&plan->gpu);
    return plan_device_is_cpu(on) ? own + memory_host(plan) : own;
}

status memory_plan_make(const memory_options *how, const memory_rank *rank,
                        const memory_shapes *shapes, const plan_device *on, memory_plan *out)
{
    const backend_vtable *backend = on->sizes;
    const model_options made = model_of(how, rank, shapes);
    memory_plan plan = {.stage = rank->mesh ? rank->mesh->place.pipeline : 0};
    plan_values(rank, backend, &plan);
    plan.gathered = rank->size.gathered_bytes;
    TRY(model_regions_of(rank->dims, &made, backend, &plan.parts));
    plan.window = plan.parts.window;
    plan.activations = plan.parts.total - plan.window;
    plan_rows(&made, how, backend, &plan);
    if (how->answers)
        plan.answers = generate_bytes(rank->dims, rank->mesh, made.cap.tokens / how->rows, backend);
    plan.copied = checkpoint_writer_snapshot(&rank->size, backend, 1, false);
    plan.frozen = frozen_bytes(&rank->size, backend);
    plan.snapshot =
        checkpoint_writer_snapshot(&rank->size, backend, how->copies, how->keeps_frozen);
    plan_gpu(&made, how, rank, shapes, on, &plan.gpu);
    plan.total = sum_of(&plan, on);
    *out = plan;
    return ST_OK;
}
