/* SPDX-License-Identifier: Apache-2.0 */
/* attention_work.h: which calls of attention cuDNN takes, and how much memory its deterministic
 * backward needs, by shape. The CUDA op uses it to cut a call into groups of heads, and the memory
 * plan counts with it (trainer/plan).
 *
 * The library keeps all of dp, the gradient of the probabilities: segments x heads x longest^2
 * bf16, with `longest` rounded up to its tile (tests/unit/trainer/ops/cuda/test_attention_graphs.c
 * checks that). So a call is cut into parts that run one after the other, each small enough to keep
 * dp under ATTENTION_DP_BYTES: the heads into groups and, where a single key-value head is still
 * too much, the segments into runs. */
#ifndef TESSERA_TRAINER_OPS_ATTENTION_WORK_H
#define TESSERA_TRAINER_OPS_ATTENTION_WORK_H

#include <stdbool.h>
#include <stdint.h>

enum {
    ATTENTION_WIDTH_MAX = 128,  /* the widest head that forward and backward take from sm_90 on */
    ATTENTION_WIDTH_STEP = 8,   /* elements in 16 bytes */
    ATTENTION_PACKED_STEP = 16, /* row sums of heads whose width is a multiple of it are packed */
    ATTENTION_TILE = 128,       /* the library's tile, in tokens */
    ATTENTION_EMPTY_MAX = 128,  /* blocks launched for capacity per block of tokens, at most */
    ATTENTION_PART_KERNELS = 6  /* kernels of one part of the backward, lists and copies included */
};
#define ATTENTION_DP_BYTES ((double)((int64_t)4 << 30))

/* What runs of segments cost and save, in seconds, on an H200. Our own backward reaches 175 TFLOP/s
 * there (tests/bench/results). The library's reaches 541 without determinism (published for 9.19,
 * see trainer/plan/time.md); with it, dp is also written and read, at 4260 GB/s. Together that
 * makes 388 TFLOP/s; 385 were measured for four rows of 12,288 tokens. A kernel takes about 4
 * microseconds from one launch to the next. */
#define ATTENTION_OWN_FLOPS     175e12
#define ATTENTION_LIBRARY_FLOPS 541e12
#define ATTENTION_COPY_BYTES    4260e9
#define ATTENTION_LAUNCH_S      4e-6

static inline int64_t attention_tiles(int64_t tokens)
{
    return (tokens + ATTENTION_TILE - 1) / ATTENTION_TILE;
}

/* Bytes of dp for one head. */
static inline double attention_dp_head(int64_t segments, int64_t longest)
{
    double sum = (double)(attention_tiles(longest) * ATTENTION_TILE);
    return 2.0 * (double)segments * sum * sum;
}

/* How many groups the heads are cut into, over these segments; each has whole key-value heads. 0:
 * even one key-value head takes too much. */
static inline int64_t attention_groups(int64_t segments, int64_t longest, int64_t heads,
                                       int64_t kv_heads)
{
    double head = attention_dp_head(segments, longest);
    for (int64_t kv_head = 1; kv_head <= kv_heads; kv_head++)
        if (kv_heads % kv_head == 0 && head * (double)(heads / kv_head) <= ATTENTION_DP_BYTES)
            return kv_head;
    return 0;
}

/* A deterministic backward in parts: the key-value heads are cut into `groups`, and the segments
 * into `runs` of at most `run` each. groups is 0 where our own kernels do it. */
typedef struct attention_parts {
    int64_t groups, runs, run;
} attention_parts;

/* Whether runs are faster than our own kernels, whatever the segments hold. The pairs of a query
 * and a key are fewest where all segments are equally long, and each pair that is computed saves
 * time; so what is saved there at least must pay for the launches. */
static inline bool attention_runs_pay(const attention_parts *parts, int64_t tokens,
                                      int64_t segments, int64_t heads, int64_t width, bool causal)
{
    const double products = 5.0 * 2.0 * (double)width, dp = 2.0 * sizeof(uint16_t);
    const double saved = products / ATTENTION_OWN_FLOPS - products / ATTENTION_LIBRARY_FLOPS -
                         dp / ATTENTION_COPY_BYTES;
    const double pairs =
        (double)tokens * (double)tokens / (double)segments / (causal ? 2.0 : 1.0) * (double)heads;
    return pairs * saved >
           (double)(parts->groups * parts->runs * ATTENTION_PART_KERNELS) * ATTENTION_LAUNCH_S;
}

static inline attention_parts attention_parts_of(int64_t tokens, int64_t segments, int64_t longest,
                                                 int64_t heads, int64_t kv_heads, int64_t width,
                                                 bool causal)
{
    attention_parts parts = {attention_groups(segments, longest, heads, kv_heads), 1, segments};
    if (parts.groups)
        return parts;
    const double one = attention_dp_head(1, longest) * (double)(heads / kv_heads);
    const int64_t most = (int64_t)(ATTENTION_DP_BYTES / one);
    if (most == 0)
        return parts;
    parts.runs = (segments + most - 1) / most;
    parts.run = (segments + parts.runs - 1) / parts.runs;
    parts.runs = (segments + parts.run - 1) / parts.run;
    parts.groups = attention_groups(parts.run, longest, heads, kv_heads);
    if (!attention_runs_pay(&parts, tokens, segments, heads, width, causal))
        parts.groups = 0;
    return parts;
}

/* The log-sums are f32 [tokens, heads], and the library reads only arrays that begin at a multiple
 * of 16 bytes. Where a group of heads begins elsewhere, its log-sums are copied into rows of this
 * many numbers. 0: every group is read in place. */
static inline int64_t attention_copied_row(int64_t heads, int64_t groups)
{
    const int64_t whole = 4, group = heads / groups;
    return groups == 1 || group % whole == 0 ? 0 : (group + whole - 1) / whole * whole;
}

/* Whether the library is worth asking. It launches blocks for every segment as if each were the
 * longest, and a captured step has capacities: a batch that may hold thousands of short documents
 * or one long one would launch 10^8 blocks that find nothing to do. Our own kernels launch by
 * tokens instead. */
static inline bool attention_is_dense(int64_t tokens, int64_t segments, int64_t longest)
{
    double blocks = (double)segments * (double)attention_tiles(longest);
    return blocks <= ATTENTION_EMPTY_MAX * (double)attention_tiles(tokens);
}

/* A call of attention, by its capacities. longest 0: segments may have all tokens. */
typedef struct attention_call {
    int64_t tokens, segments, longest, heads, kv_heads, head_dim;
    bool causal;
} attention_call;

static inline int64_t attention_longest(const attention_call *of)
{
    return of->longest ? of->longest : of->tokens;
}

/* Whether the library takes such a forward pass. */
static inline bool attention_is_taken(const attention_call *of)
{
    return of->tokens > 1 && of->segments > 0 && of->head_dim % ATTENTION_WIDTH_STEP == 0 &&
           of->head_dim <= ATTENTION_WIDTH_MAX &&
           attention_is_dense(of->tokens, of->segments, attention_longest(of));
}

/* How the library's backward pass of such a call is cut; groups is 0 where it does not take it. */
static inline attention_parts attention_taken_parts(const attention_call *of, bool deterministic)
{
    const attention_parts none = {0, 0, 0}, whole = {1, 1, of->segments};
    if (!attention_is_taken(of) ||
        (of->heads != of->kv_heads && of->head_dim % ATTENTION_PACKED_STEP != 0))
        return none;
    return deterministic ? attention_parts_of(of->tokens, of->segments, attention_longest(of),
                                              of->heads, of->kv_heads, of->head_dim, of->causal)
                         : whole;
}

#endif
