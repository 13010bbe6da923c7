/* SPDX-License-Identifier: Apache-2.0 */
/* attention_cached.cu: attention_cached of attention.h by online softmax.
 *
 * A block computes a (query, query head). Each of its warps takes every WARPS-th key, and a lane
 * holds head_dim / 32 numbers of it; the keys of a document's prefix come before its own. The
 * warps' sums are combined in shared memory, in the order of the warps. Keys and values of the
 * document are read once per query head, and query heads that share a key-value head find them in
 * the L2 cache, so DRAM is the limit. Scores, probabilities and sums are f32; the result is rounded
 * once. */
#include "trainer/ops/cuda/kernel_launch.cuh"

enum { WARPS = 8, PER_LANE = CACHED_HEAD_DIM_MAX / LANES };

/* A warp's state after some keys: the largest score and, relative to it, the sum of the weights and
 * the weighted sum of the values. */
typedef struct partial {
    float top, sum, o[PER_LANE];
} partial;

static __device__ __forceinline__ void see_key(partial *part, const float (&q)[PER_LANE],
                                               const bf16 *k, const bf16 *v, int d)
{
    const int lane = threadIdx.x % LANES;
    float score = 0;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++)
        score += i * LANES + lane < d ? q[i] * to_float(k[i * LANES + lane]) : 0;
    score = warp_sum(score);
    const float top = fmaxf(part->top, score), keep = exp2_fast(part->top - top),
                weight = exp2_fast(score - top);
    part->sum = part->sum * keep + weight;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++)
        part->o[i] =
            part->o[i] * keep + (i * LANES + lane < d ? weight * to_float(v[i * LANES + lane]) : 0);
    part->top = top;
}

/* Rows of the cache: those of them that are inside it. */
typedef struct cached_range {
    int64_t first, count;
} cached_range;

static __device__ __forceinline__ cached_range range_inside(int64_t first, int64_t count,
                                                            int64_t rows)
{
    int64_t end = first + count;
    first = first < 0 ? 0 : first;
    end = end > rows ? rows : end;
    const cached_range range = {first, end > first ? end - first : 0};
    return range;
}

static __global__ void cached_kernel(attention_cached_args args)
{
    __shared__ float tops[WARPS], sums[WARPS], parts[WARPS][CACHED_HEAD_DIM_MAX];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, d = (int)args.head_dim;
    const int64_t query = blockIdx.x / args.heads, head = blockIdx.x % args.heads;
    const int64_t stride = args.kv_heads * d, at = head / (args.heads / args.kv_heads) * d;
    const cached_range own = range_inside(args.first[query], args.length[query], args.rows);
    cached_range prefix = {0, 0};
    if (args.prefix_first)
        prefix = range_inside(args.prefix_first[query], args.prefix_length[query], args.rows);
    const int64_t keys = prefix.count + own.count;
    const bf16 *q = (const bf16 *)args.q + blockIdx.x * args.head_dim;
    partial part = {-INFINITY, 0, {}};
    float scaled[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; i++)
        scaled[i] =
            i * LANES + lane < d ? to_float(q[i * LANES + lane]) * (float)args.scale * LOG2E : 0;
    for (int64_t j = warp; j < keys; j += WARPS) {
        const int64_t row = j < prefix.count ? prefix.first + j : own.first + j - prefix.count;
        see_key(&part, scaled, (const bf16 *)args.k + row * stride + at,
                (const bf16 *)args.v + row * stride + at, d);
    }
    if (lane == 0) {
        tops[warp] = part.top;
        sums[warp] = part.sum;
    }
#pragma unroll
    for (int i = 0; i < PER_LANE; i++)
        parts[warp][i * LANES + lane] = part.o[i];
    __syncthreads();
    for (int j = threadIdx.x; j < d; j += blockDim.x) {
        float top = tops[0], sum = 0, o = 0;
        for (int i = 1; i < WARPS; i++)
            top = fmaxf(top, tops[i]);
        for (int i = 0; i < WARPS && keys > 0; i++) {
            const float keep = exp2_fast(tops[i] - top); /* 0 for a warp without keys */
            sum += keep * sums[i];
            o += keep * parts[i][j];
        }
        ((bf16 *)args.o)[blockIdx.x * args.head_dim + j] = to_bf16(keys > 0 ? o / sum : 0);
    }
}

extern "C" status cuda_attention_cached(stream *queue, const attention_cached_args *args)
{
    if (args->heads <= 0 || args->kv_heads <= 0 || args->heads % args->kv_heads != 0 ||
        args->head_dim <= 0 || args->head_dim > CACHED_HEAD_DIM_MAX)
        return FAIL(ST_BAD_INPUT,
                    "attention_cached: there are %lld query heads for %lld key-value heads of "
                    "width %lld; the first must "
                    "be a multiple of the second, the last at most %d",
                    (long long)args->heads, (long long)args->kv_heads, (long long)args->head_dim,
                    CACHED_HEAD_DIM_MAX);
    return LAUNCH(queue, cached_kernel, grid_of(args->queries * args->heads), WARPS * LANES, 0,
                  *args);
}
