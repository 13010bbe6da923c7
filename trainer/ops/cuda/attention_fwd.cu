/* SPDX-License-Identifier: Apache-2.0 */
/* attention_fwd.cu: the portable forward of attention.h, by online softmax over tiles of keys
 * (FlashAttention-2, Dao 2023, arXiv:2307.08691), for machines without cuDNN.
 *
 * A block owns 64 consecutive queries of one head, wherever segments begin and end. Each query has
 * its own range of keys. The block walks over the range that any of its queries sees, and masks a
 * tile only where one of them does not see all of it. So the grid depends on capacities alone, and
 * short segments share a tile.
 *
 * FLOPs: 4 d per visible pair, rounded up to tiles. Bytes: q and o once; k and v once per 64
 * queries of a head, mostly from L2, since the heads of a key-value head run side by side. The
 * tensor cores are the limit.
 *
 * Numerics: scores and sums in float, probabilities rounded to bf16 before they meet v; the output
 * is divided by its sum in float and rounded once. */
#include "trainer/ops/cuda/attention_portable.h"
#include "trainer/ops/cuda/attention_tile.cuh"

/* The softmax of a thread's two rows, g and g + 8 of its warp's sixteen. */
typedef struct softmax_rows {
    float max[2], sum[2]; /* max: of all scores so far; sum: over this thread's columns */
} softmax_rows;

/* The base of the exponents for a largest score. It is rounded, so that it stays the same while the
 * largest score does: a product that the compiler fuses with a subtraction would leave what
 * rounding took, and the sums of a long document would shrink by it at every tile. */
static __device__ __forceinline__ float base_of(float largest, float scale2)
{
    return __fmul_rn(largest, scale2);
}

/* Turns scores into probabilities relative to the largest score so far; `sum` and o are rescaled
 * when that grows. */
template <int D>
static __device__ inline void softmax_step(softmax_rows *rows, float (&s)[GROUPS][4],
                                           float (&o)[D / 8][4], float scale2)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float largest = rows->max[half];
#pragma unroll
        for (int i = 0; i < GROUPS; i++)
            largest = fmaxf(largest, fmaxf(s[i][2 * half], s[i][2 * half + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
        /* There was no key yet. Any base but -inf makes the masked scores 0. */
        const float base = largest == -INFINITY ? 0.0f : base_of(largest, scale2);
        const float shrink = exp2_fast(base_of(rows->max[half], scale2) - base);
        rows->max[half] = largest;
        rows->sum[half] *= shrink;
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            o[i][2 * half] *= shrink;
            o[i][2 * half + 1] *= shrink;
        }
#pragma unroll
        for (int i = 0; i < GROUPS; i++)
#pragma unroll
            for (int j = 2 * half; j < 2 * half + 2; j++) {
                s[i][j] = exp2_fast(s[i][j] * scale2 - base);
                rows->sum[half] += s[i][j];
            }
    }
}

/* Sets the scores of keys that a row does not see to -inf. */
static __device__ inline void mask_scores(float (&s)[GROUPS][4], const visible (&seen)[2],
                                          int first)
{
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (!sees(seen[j / 2], first + product_column(i, j)))
                s[i][j] = -INFINITY;
}

template <int D>
static __global__ void __launch_bounds__(OWN_THREADS)
    attention_fwd_kernel(attention_fwd_args args, bool wide)
{
    SHARED_BYTES(shared);
    __shared__ sight sight_of;
    bf16 *q_tile = (bf16 *)shared, *k_tile = q_tile + TILE * tile<D>::STRIDE;
    bf16 *v_tile = k_tile + TILE * tile<D>::STRIDE;
    const int64_t at_head = blockIdx.x, kv = at_head / (args.heads / args.kv_heads);
    /* Where a document is long its last tiles see most keys, so they start first. */
    const int64_t first = (int64_t)(gridDim.y - 1 - blockIdx.y) * TILE;
    const int row0 = (int)threadIdx.x / LANES * 16, group = (int)threadIdx.x % LANES / 4;
    const head q_head = head_of(args.q, args.q_stride, args.head_dim, at_head, wide);
    const head k_head = head_of(args.k, args.k_stride, args.head_dim, kv, wide);
    const head v_head = head_of(args.v, args.v_stride, args.head_dim, kv, wide);
    const head o_head = head_of(args.o, args.o_stride, args.head_dim, at_head, wide);
    tile_sight(&sight_of, sides_of(args), first, false);
    const range any = sight_of.any;
    const visible seen[2] = {sight_of.row[row0 + group], sight_of.row[row0 + group + 8]};
    const float scale2 = (float)args.scale * LOG2E;

    float sum[D / 8][4] = {};
    softmax_rows rows = {{-INFINITY, -INFINITY}, {0, 0}};
    tile_load<D>(q_tile, q_head, first, args.tokens);
    tile_load<D>(k_tile, k_head, any.begin, any.end);
    copy_commit();
    for (int at = any.begin, next; at < any.end; at = next) {
        next = next_tile(sight_of, at);
        copy_wait<0>();
        __syncthreads(); /* k has arrived, and all warps are done with the last v */
        tile_load<D>(v_tile, v_head, at, any.end);
        copy_commit();
        float s[GROUPS][4];
        product_nt<D>(s, q_tile, row0, k_tile);
        if (needs_mask(sight_of, at))
            mask_scores(s, seen, at);
        copy_wait<0>();
        __syncthreads(); /* v has arrived, and all warps are done with this k */
        if (next < any.end)
            tile_load<D>(k_tile, k_head, next, any.end);
        copy_commit();
        softmax_step<D>(&rows, s, sum, scale2);
        product_nn<D>(sum, s, v_tile);
    }
    copy_wait<0>();
    float scale[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = rows.sum[half];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        scale[half] = total > 0 ? 1 / total : 0;
        const int row = row0 + group + half * 8;
        if (threadIdx.x % 4 == 0 && first + row < args.tokens)
            ((float *)args.lse)[(first + row) * args.heads + at_head] =
                row < sight_of.used ? rows.max[half] * (float)args.scale + logf(total) : 0.0f;
    }
    __syncthreads(); /* needed where no key was seen: q has arrived for all warps */
    warp_store<D>(o_head, first, args.tokens, first + sight_of.used, sum, scale, q_tile);
}

template <int D> static status launch_fwd(stream *queue, const attention_fwd_args *args, bool wide)
{
    const size_t shared = 3 * tile<D>::BYTES;
    TRY(allow_shared(attention_fwd_kernel<D>, shared));
    return LAUNCH(queue, attention_fwd_kernel<D>,
                  grid_of(args->heads, ceil_div(args->tokens, TILE)), OWN_THREADS, shared, *args,
                  wide);
}

status cuda_attention_portable_fwd(stream *queue, const attention_fwd_args *args)
{
    TRY(attention_check(sides_of(*args), args->heads, args->kv_heads, args->head_dim));
    const bool wide =
        (args->head_dim | args->q_stride | args->k_stride | args->v_stride | args->o_stride) %
                VECTOR ==
            0 &&
        aligned16(args->q) && aligned16(args->k) && aligned16(args->v) && aligned16(args->o);
    return args->head_dim <= DIM_SMALL ? launch_fwd<DIM_SMALL>(queue, args, wide)
                                       : launch_fwd<DIM_MAX>(queue, args, wide);
}
