/* route_aux.cu: route_aux (route.h) on CUDA: the load-balancing loss.
 *
 * ADD_STATS reads 4 E bytes per token; GRAD reads 6 E and writes 2 E. DRAM is the limit of both.
 * The column sums go through one partial sum per STAT_ROWS tokens, which are added in order;
 * nothing else is summed over tokens. */
#include "trainer/ops/cuda/route.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / LANES,
    COLUMNS = LANES, /* experts that a block of stats_kernel sums, one per lane */
    STAT_ROWS = 512, /* tokens in a partial sum, 64 per warp */
    LANE_EXPERTS = EXPERTS_MAX / LANES
};

static __device__ __forceinline__ float samples_of(const route_aux_args &a, int64_t t)
{
    return a.samples ? (float)a.samples[t] : 1.0f;
}

/* Writes part [tiles, E]: the sums of probs over the valid tokens of each tile. */
static __global__ void __launch_bounds__(THREADS) stats_kernel(route_aux_args a, float *part)
{
    __shared__ float sums[WARPS][COLUMNS];
    const int64_t valid = valid_tokens(a.tokens, a.n_valid),
                  first = (int64_t)blockIdx.x * STAT_ROWS;
    const int warp = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    const int64_t e = (int64_t)blockIdx.y * COLUMNS + lane;
    float sum = 0;
    if (e < a.experts)
#pragma unroll 8
        for (int r = warp; r < STAT_ROWS; r += WARPS)
            sum += first + r < valid ? samples_of(a, first + r) *
                                           ((const float *)a.probs)[(first + r) * a.experts + e]
                                     : 0.0f;
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || e >= a.experts)
        return;
    for (int w = 1; w < WARPS; w++)
        sum += sums[w][lane];
    part[(int64_t)blockIdx.x * a.experts + e] = sum;
}

static __global__ void __launch_bounds__(THREADS)
    add_stats_kernel(route_aux_args a, const float *part, int64_t tiles)
{
    const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (e >= a.experts)
        return;
    float sum = ((const float *)a.prob_sum)[e];
#pragma unroll 8
    for (int64_t i = 0; i < tiles; i++)
        sum += part[i * a.experts + e];
    ((float *)a.prob_sum)[e] = sum;
    ((float *)a.count_total)[e] += (float)a.count[e];
}

/* N, the number of (layer, token) pairs in the statistics. */
static __device__ inline float stat_rows(const route_aux_args &a)
{
    if (a.all_valid)
        return (float)a.n_layers * *(const float *)a.all_valid;
    return (float)(a.n_layers * valid_tokens(a.tokens, a.n_valid));
}

/* Runs on one warp. */
static __global__ void finish_kernel(route_aux_args a)
{
    const float rows = stat_rows(a);
    float sum = 0;
    for (int64_t e = threadIdx.x; e < a.experts && rows > 0; e += LANES)
        sum += ((const float *)a.count_total)[e] / rows * (((const float *)a.prob_sum)[e] / rows);
    sum = warp_sum(sum);
    if (threadIdx.x == 0)
        *(float *)a.aux = (float)a.experts * sum;
}

/* A warp owns a token; a lane has the experts lane, lane + 32, .. */
static __global__ void __launch_bounds__(THREADS) aux_grad_kernel(route_aux_args a)
{
    const int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES;
    if (t >= valid_tokens(a.tokens, a.n_valid))
        return;
    const float rows = stat_rows(a);
    const float scale = samples_of(a, t) * *(const float *)a.scale * (float)a.experts / rows;
    const float *p = (const float *)a.probs + t * a.experts;
    bf16 *dz = (bf16 *)a.dlogits + t * a.experts;
    float dot = 0;
    for (int64_t e = threadIdx.x % LANES; e < a.experts; e += LANES)
        dot += ((const float *)a.count_total)[e] / rows * p[e];
    dot = warp_sum(dot);
    for (int64_t e = threadIdx.x % LANES; e < a.experts; e += LANES) {
        const float f = ((const float *)a.count_total)[e] / rows;
        dz[e] = to_bf16(to_float(dz[e]) + scale * p[e] * (f - dot));
    }
}

static status add_stats(stream *s, const route_aux_args *a)
{
    const int64_t tiles = ceil_div(a->tokens, STAT_ROWS);
    void *part;
    TRY(cuda_scratch(s, (size_t)(tiles * a->experts) * sizeof(float), &part));
    TRY(LAUNCH(s, stats_kernel, grid_of(tiles, ceil_div(a->experts, COLUMNS)), THREADS, 0, *a,
               (float *)part));
    return LAUNCH(s, add_stats_kernel, grid_of(ceil_div(a->experts, THREADS)), THREADS, 0, *a,
                  (const float *)part, tiles);
}

extern "C" status cuda_route_aux(stream *s, const route_aux_args *a)
{
    TRY(route_check(a->experts, 1, 1));
    switch (a->phase) {
    case AUX_ADD_STATS:
        return add_stats(s, a);
    case AUX_FINISH:
        return LAUNCH(s, finish_kernel, grid_of(1), LANES, 0, *a);
    case AUX_GRAD:
        return LAUNCH(s, aux_grad_kernel, grid_of(ceil_div(a->tokens, WARPS)), THREADS, 0, *a);
    default:
        return FAIL(ST_BAD_INPUT, "route_aux: there is no phase %d", a->phase);
    }
}
