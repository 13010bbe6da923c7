/* attention_work.h: the memory that cuDNN's deterministic backward of attention works in, by shape:
 * what the CUDA op cuts into groups by, and what the memory plan counts with.
 *
 * The library keeps all of dp, segments x heads x longest^2 bf16 with `longest` rounded up to its
 * tile (tests/unit/trainer/ops/cuda/test_attention_graphs.c holds it to that). Heads run in as many
 * groups, one behind the other, as keep it under ATTENTION_DP_BYTES. */
#ifndef TESSERA_TRAINER_OPS_ATTENTION_WORK_H
#define TESSERA_TRAINER_OPS_ATTENTION_WORK_H

#include <stdbool.h>
#include <stdint.h>

enum {
    ATTENTION_TILE = 128,     /* the library's */
    ATTENTION_EMPTY_MAX = 128 /* blocks of capacities to one of tokens, at most */
};
#define ATTENTION_DP_BYTES ((double)((int64_t)4 << 30))

static inline int64_t attention_tiles(int64_t tokens)
{
    return (tokens + ATTENTION_TILE - 1) / ATTENTION_TILE;
}

/* dp of one head. */
static inline double attention_dp_head(int64_t segments, int64_t longest)
{
    double s = (double)(attention_tiles(longest) * ATTENTION_TILE);
    return 2.0 * (double)segments * s * s;
}

/* Groups of key-value heads; 0: even one head takes too much. */
static inline int64_t attention_groups(int64_t segments, int64_t longest, int64_t heads,
                                       int64_t kv_heads)
{
    double head = attention_dp_head(segments, longest);
    for (int64_t g = 1; g <= kv_heads; g++)
        if (kv_heads % g == 0 && head * (double)(heads / g) <= ATTENTION_DP_BYTES)
            return g;
    return 0;
}

/* Log-sums are f32 [tokens, heads], and the library takes what begins at 16 bytes only. Where a
 * group begins elsewhere its own are copied into rows of this many; 0: all are read in place. */
static inline int64_t attention_copied_row(int64_t heads, int64_t groups)
{
    const int64_t whole = 4, group = heads / groups;
    return groups == 1 || group % whole == 0 ? 0 : (group + whole - 1) / whole * whole;
}

/* The library launches blocks for every segment as if it were the longest, and a captured step has
 * capacities: a batch that may be of thousands of short documents or of one long one would launch
 * 1e8 blocks that find nothing to do. Ours launches by tokens. */
static inline bool attention_is_dense(int64_t tokens, int64_t segments, int64_t longest)
{
    double blocks = (double)segments * (double)attention_tiles(longest);
    return blocks <= ATTENTION_EMPTY_MAX * (double)attention_tiles(tokens);
}

#endif
