/* attention_work.h: how much memory cuDNN's deterministic backward of attention needs, by shape.
 * The CUDA op uses it to cut a call into groups of heads, and the memory plan counts with it
 * (trainer/plan).
 *
 * The library keeps all of dp, the gradient of the probabilities: segments x heads x longest^2
 * bf16, with `longest` rounded up to its tile (tests/unit/trainer/ops/cuda/test_attention_graphs.c
 * checks that). So the heads are cut into groups that run one after the other, few enough heads in
 * each to keep dp under ATTENTION_DP_BYTES. */
#ifndef TESSERA_TRAINER_OPS_ATTENTION_WORK_H
#define TESSERA_TRAINER_OPS_ATTENTION_WORK_H

#include <stdbool.h>
#include <stdint.h>

enum {
    ATTENTION_TILE = 128,     /* the library's tile, in tokens */
    ATTENTION_EMPTY_MAX = 128 /* blocks launched for capacity per block of tokens, at most */
};
#define ATTENTION_DP_BYTES ((double)((int64_t)4 << 30))

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

/* How many groups the heads are cut into; each has whole key-value heads. 0: even one key-value
 * head takes too much. */
static inline int64_t attention_groups(int64_t segments, int64_t longest, int64_t heads,
                                       int64_t kv_heads)
{
    double head = attention_dp_head(segments, longest);
    for (int64_t kv_head = 1; kv_head <= kv_heads; kv_head++)
        if (kv_heads % kv_head == 0 && head * (double)(heads / kv_head) <= ATTENTION_DP_BYTES)
            return kv_head;
    return 0;
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

#endif
