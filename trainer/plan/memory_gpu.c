/* memory_gpu.c: the figures of a GPU's own regions, and how they follow from a run. */
#include "trainer/plan/memory_gpu.h"

#include "trainer/ops/attention_work.h"
#include "trainer/parallel/mesh.h"

/* The context. Published readings of an idle one are 555 MiB on 188 multiprocessors and 107 MiB on
 * 24 (llama.cpp, pull request 23604), which makes 2.73 MiB for each and 41 MiB besides. */
static const double CONTEXT_MIB = 41.0, CONTEXT_MIB_EACH = 2.73;

/* Kernels of cuBLASLt (a dozen shapes), the four compiled graphs of cuDNN, our own kernels, and the
 * stack that the largest of them needs on every multiprocessor. A guess, since nothing is published
 * for such a mix. */
static const double LIBRARIES_MIB = 256.0;

/* One node of an instantiated graph has a launch descriptor, up to 4 KiB of parameters, and links.
 * A guess; drivers before 550 took 64 KiB. */
static const double NODE_BYTES = 4096.0;
/* Most ops are one kernel; sums in two phases are two, routing and scattering three to five. */
static const double KERNELS_PER_CALL = 1.6;

/* NCCL's buffers. A communicator: published readings are 544 MiB for two A100 and 688 MiB for four
 * (NVIDIA/nccl, issue 964). Each rank that messages go to or come from: an exchange among eight
 * H100 took 3.28 GB more, which is 32 channels of 14 MiB for each of seven peers (issue 1685). */
static const double COMMUNICATOR_MIB = 688.0, PEER_MIB = 32 * 14.0;

static const double MIB = 1048576.0;
enum { PRODUCT_BYTES = 32 << 20 }; /* the most that a dense product asks for (ops/cuda/gemm.c) */

/* Scratch memory of cuDNN's deterministic backward pass over the segments of one micro-step: dp for
 * a group of heads, gradients of keys and values for each query head, row sums if the width of a
 * head is not a multiple of 16, log-sums and row sums of heads that do not begin at a multiple of
 * 16 bytes, and lists of places. 0 where our own kernels do the backward pass. */
static double attention_bytes(int64_t tokens, int64_t segments, int64_t longest, int64_t heads,
                              int64_t kv_heads, int64_t width)
{
    enum { LISTS = 5, LIBRARY = 64 << 10 };
    if (tokens == 0 || segments == 0 || !attention_is_dense(tokens, segments, longest))
        return 0.0;
    int64_t groups = attention_groups(segments, longest, heads, kv_heads);
    if (groups == 0)
        return 0.0;
    double dp = attention_dp_head(segments, longest) * (double)(heads / groups);
    double whole = heads > kv_heads ? 4.0 * (double)(tokens * heads * width) : 0.0;
    double sums = width % 16 ? 4.0 * (double)(segments * heads / groups) * (double)longest : 0.0;
    int64_t copied = attention_copied_row(heads, groups) * (width % 16 ? 1 : 2);
    sums += 4.0 * (double)(tokens * copied);
    return dp + whole + sums + 8.0 * LISTS * (double)(segments + 1) + LIBRARY;
}

static double pick_more_bytes(double first, double second)
{
    return first > second ? first : second;
}

static double text_bytes(const model_dims *dims, const batch_caps *caps)
{
    const text_dims *text = &dims->text;
    int64_t longest = caps->longest ? caps->longest : caps->tokens;
    return attention_bytes(caps->tokens, caps->docs, longest, text->heads, text->kv_heads,
                           text->head_dim);
}

static double vision_bytes(const model_dims *dims, const batch_caps *caps)
{
    if (dims->vision.depth == 0)
        return 0.0;
    return attention_bytes(caps->patches, caps->frames, caps->frame ? caps->frame : caps->patches,
                           dims->vision.heads, dims->vision.heads, dims_vision_head_dim(dims));
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
                     const memory_steps *steps, int multiprocessors, memory_gpu *out)
{
    double workspace = PRODUCT_BYTES, nodes = 0.0;
    for (int i = 0; i < steps->count && options->training; i++) {
        const batch_caps *caps = &steps->caps[i];
        workspace = pick_more_bytes(
            workspace, pick_more_bytes(text_bytes(dims, caps), vision_bytes(dims, caps)));
        nodes += KERNELS_PER_CALL * (double)memory_gpu_calls(dims, options, caps->targets) *
                 steps->buffers * count_variants(caps);
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
