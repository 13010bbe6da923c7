/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c: works out each region of the plan and their sum; first those that the driver and the
 * libraries take of a GPU. */
#include "trainer/plan/memory.h"

#include <stdio.h>

#include "trainer/batch/upload_ring.h"
#include "trainer/checkpoint/save/snapshot_file.h"
#include "trainer/checkpoint/save/writer.h"
#include "trainer/generate/generate.h"
#include "trainer/model/layers/pass_context.h"
#include "trainer/parallel/mesh.h"

/* The context. Published readings of an idle one are 555 MiB on 188 multiprocessors and 107 MiB on
 * 24 (llama.cpp, pull request 23604), which makes 2.73 MiB for each and 41 MiB besides. */
static const double CONTEXT_MIB = 41.0, CONTEXT_MIB_EACH = 2.73;

/* Kernels of cuBLASLt (a dozen shapes), the four compiled graphs of cuDNN, our own kernels, and the
 * stack that the largest of them needs on every multiprocessor. One H200 took 102 MiB; a quarter
 * more is planned. */
static const double LIBRARIES_MIB = 128.0;

/* One node of an instantiated graph has a launch descriptor, up to 4 KiB of parameters, and links.
 * One H200 (driver 580) took 1,027 bytes for steps of text and 1,330 for those with pictures; half
 * as much again is planned. Drivers before 550 took 64 KiB. */
static const double NODE_BYTES = 2048.0;
/* Most ops are one kernel; sums in two phases are two, routing and scattering three to five. */
static const double KERNELS_PER_CALL = 1.6;

/* NCCL's buffers. A communicator: published readings are 544 MiB for two A100 and 688 MiB for four
 * (NVIDIA/nccl, issue 964). Each rank that messages go to or come from: an exchange among eight
 * H100 took 3.28 GB more, which is 32 channels of 14 MiB for each of seven peers (issue 1685). */
static const double COMMUNICATOR_MIB = 688.0, PEER_MIB = 32 * 14.0;

static const double GIB = 1073741824.0, MIB = 1048576.0;
enum { PRODUCT_BYTES = 32 << 20 }; /* the most that a dense product asks for (ops/cuda/gemm.c) */

/* The backward passes of attention in one micro-step that cuDNN takes: the calls, and how each is
 * cut. groups 0: our own kernels do it, or there is none. */
typedef struct attention_work {
    attention_call call;
    attention_parts parts;
} attention_work;

/* Scratch memory of such a pass, as ops/cuda/attention_batch.c lays it out: gradients of keys and
 * values for each query head, row sums if the width of a head is not packed, and lists of places.
 * What gives the same bits every time has dp for a part, and copies of log-sums and row sums of
 * heads that do not begin at a multiple of 16 bytes; what sums in any order has sums of dq. */
static double attention_bytes(const attention_work *of, bool deterministic)
{
    enum { LISTS = 6, LIBRARY = 64 << 10, ALIGNED = 256, F32 = 4 };
    const attention_parts *parts = &of->parts;
    const attention_call *call = &of->call;
    if (parts->groups == 0)
        return 0.0;
    const bool packed = call->head_dim % ATTENTION_PACKED_STEP == 0;
    const int64_t heads = call->heads / parts->groups, longest = attention_longest(call);
    const double gradient = F32 * (double)(call->tokens * call->heads * call->head_dim);
    const double row_sums = F32 * (double)(parts->run * heads) * (double)longest;
    const double lists = (8.0 * (double)(parts->run + 1) + ALIGNED) * LISTS * (double)parts->runs;
    double sum = lists + LIBRARY + (packed ? 0.0 : row_sums);
    if (call->heads > call->kv_heads)
        sum += gradient;
    if (!deterministic)
        return sum + (packed ? gradient : row_sums * (double)call->head_dim);
    const int64_t copied = attention_copied_row(call->heads, parts->groups) * (packed ? 2 : 1);
    return sum + attention_dp_head(parts->run, longest) * (double)heads +
           F32 * (double)(call->tokens * copied);
}

/* Kernels of that pass beyond those of a single part, which count as one call like any other. */
static double more_kernels(const attention_parts *parts)
{
    return parts->groups * parts->runs > 1
               ? (double)((parts->groups * parts->runs - 1) * ATTENTION_PART_KERNELS)
               : 0.0;
}

static double pick_more_bytes(double first, double second)
{
    return first > second ? first : second;
}

static attention_work work_of(bool used, const attention_call *call, bool deterministic)
{
    attention_work work = {.call = *call};
    if (used)
        work.parts = attention_taken_parts(call, deterministic);
    return work;
}

int64_t memory_gpu_calls(const model_dims *dims, const model_options *options, int64_t targets)
{
    /* Counted on a device that records what is captured (tests/unit/trainer/run/test_calls.c). */
    enum { BASE = 8, LAYER = 41, LAYER_AGAIN = 13, CHUNK = 4 };
    enum { TOWER = 12, BLOCK = 28, BLOCK_AGAIN = 9, MERGER = 11, MERGER_AGAIN = 3, STACK = 5 };
    const int64_t rows = model_logit_rows(options);
    const recomputes *again = &options->recomputed;
    /* Layers and blocks that recompute anything; each makes at most as many calls as with `full`.
     */
    int64_t layers = 0, blocks = 0;
    for (int64_t layer = 0; layer < dims->text.layers; layer++)
        layers += recompute_of(&again->text, layer) != 0;
    for (int64_t i = 0; i < dims->vision.depth; i++)
        blocks += recompute_of(&again->vision, i) != 0;
    const int64_t mergers =
        again->vision.what && again->vision.every <= 1 ? 1 + dims->vision.n_deepstack : 0;
    int64_t calls = BASE + dims->text.layers * LAYER + layers * LAYER_AGAIN +
                    (targets + rows - 1) / rows * CHUNK;
    if (dims->vision.depth)
        calls += TOWER + dims->vision.depth * BLOCK + blocks * BLOCK_AGAIN +
                 (1 + dims->vision.n_deepstack) * MERGER + mergers * MERGER_AGAIN +
                 dims->vision.n_deepstack * STACK;
    return calls;
}

/* Buffers of this rank's communicators, and of its messages, which go between ranks that share
 * experts and between neighbouring pipeline stages. */
static double ranks_bytes(const mesh *ranks)
{
    if (!ranks || ranks->layout.world == 1)
        return 0.0;
    const layout *degrees = &ranks->layout;
    const int stage = ranks->place.pipeline;
    const int64_t peers = degrees->expert - 1 + (stage > 0) + (stage + 1 < degrees->pipeline);
    return COMM_STAGE_BYTES + MIB * (COMMUNICATOR_MIB * mesh_communicators(degrees, ranks->rank) +
                                     PEER_MIB * (double)peers);
}

/* How many graphs one shape and buffer needs (device_batch.variant): one with and one without video
 * if a row may have more frames than images. Rows that share images nearly always may. */
static int count_variants(const batch_caps *caps)
{
    return caps->frames > caps->items ? 2 : 1;
}

void memory_gpu_plan(const model_dims *dims, const model_options *options,
                     const memory_steps *steps, const attention_use *use, int multiprocessors,
                     memory_gpu *out)
{
    double workspace = PRODUCT_BYTES, nodes = 0.0;
    for (int i = 0; i < steps->count && options->training; i++) {
        const batch_caps *caps = &steps->caps[i];
        const attention_call calls[] = {attention_call_text(dims, options->mesh, caps),
                                        attention_call_vision(dims, options->mesh, caps)};
        const attention_work text = work_of(use->text, &calls[0], use->deterministic),
                             vision = work_of(use->vision && !options->tower_frozen, &calls[1],
                                              use->deterministic);
        workspace = pick_more_bytes(workspace,
                                    pick_more_bytes(attention_bytes(&text, use->deterministic),
                                                    attention_bytes(&vision, use->deterministic)));
        const double kernels =
            KERNELS_PER_CALL * (double)memory_gpu_calls(dims, options, caps->targets) +
            (double)dims->text.layers * more_kernels(&text.parts) +
            (double)dims->vision.depth * more_kernels(&vision.parts);
        nodes += kernels * steps->buffers * count_variants(caps);
    }
    *out = (memory_gpu){
        .context = (int64_t)((CONTEXT_MIB + CONTEXT_MIB_EACH * multiprocessors) * MIB),
        .libraries = (int64_t)(LIBRARIES_MIB * MIB),
        .workspace = (int64_t)workspace,
        .graphs = (int64_t)(NODE_BYTES * nodes),
        .nodes = (int64_t)nodes,
        .ranks = (int64_t)ranks_bytes(options->mesh),
    };
}

int64_t memory_gpu_total(const memory_gpu *plan)
{
    return plan->context + plan->libraries + plan->workspace + plan->graphs + plan->ranks;
}

const char *memory_bytes_text(int64_t bytes, char out[MEMORY_BYTES_TEXT])
{
    const double real = (double)bytes;
    if (real < MIB)
        snprintf(out, MEMORY_BYTES_TEXT, "%.1f KiB", real / 1024.0);
    else
        snprintf(out, MEMORY_BYTES_TEXT, "%.1f %s", real < GIB ? real / MIB : real / GIB,
                 real < GIB ? "MiB" : "GiB");
    return out;
}

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

/* Bytes of a full row as it is received (proto/row/batch.h). */
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
    plan.snapshot =
        checkpoint_writer_snapshot(&rank->size, backend, how->copies, how->keeps_frozen);
    plan_gpu(&made, how, rank, shapes, on, &plan.gpu);
    plan.total = sum_of(&plan, on);
    *out = plan;
    return ST_OK;
}
