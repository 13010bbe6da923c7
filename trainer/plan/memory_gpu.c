/* memory_gpu.c: the figures of a GPU's own regions, and how they follow from a run. */
#include "trainer/plan/memory_gpu.h"

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

static const double MIB = 1048576.0;
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
    /* Layers and blocks that recompute anything;
     * each makes at most as many calls as with `full`. */
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
