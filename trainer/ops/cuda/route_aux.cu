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

static __device__ __forceinline__ float samples_of(const route_aux_args &args, int64_t token)
{
    return args.samples ? (float)args.samples[token] : 1.0f;
}

/* Writes part [tiles, E]: the sums of probs over the valid tokens of each tile. */
static __global__ void __launch_bounds__(THREADS) stats_kernel(route_aux_args args, float *part)
{
    __shared__ float sums[WARPS][COLUMNS];
    const int64_t valid = valid_tokens(args.tokens, args.n_valid),
                  first = (int64_t)blockIdx.x * STAT_ROWS;
    const int warp = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    const int64_t expert = (int64_t)blockIdx.y * COLUMNS + lane;
    float sum = 0;
    if (expert < args.experts)
#pragma unroll 8
        for (int i = warp; i < STAT_ROWS; i += WARPS)
            sum += first + i < valid
                       ? samples_of(args, first + i) *
                             ((const float *)args.probs)[(first + i) * args.experts + expert]
                       : 0.0f;
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || expert >= args.experts)
        return;
    for (int j = 1; j < WARPS; j++)
        sum += sums[j][lane];
    part[(int64_t)blockIdx.x * args.experts + expert] = sum;
}

static __global__ void __launch_bounds__(THREADS)
    add_stats_kernel(route_aux_args args, const float *part, int64_t tiles)
{
    const int64_t expert = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (expert >= args.experts)
        return;
    float sum = ((const float *)args.prob_sum)[expert];
#pragma unroll 8
    for (int64_t i = 0; i < tiles; i++)
        sum += part[i * args.experts + expert];
    ((float *)args.prob_sum)[expert] = sum;
    ((float *)args.count_total)[expert] += (float)args.count[expert];
}

/* N, the number of (layer, token) pairs in the statistics. */
static __device__ inline float stat_rows(const route_aux_args &args)
{
    if (args.all_valid)
        return (float)args.n_layers * *(const float *)args.all_valid;
    return (float)(args.n_layers * valid_tokens(args.tokens, args.n_valid));
}

/* Runs on one warp. */
static __global__ void finish_kernel(route_aux_args args)
{
    const float rows = stat_rows(args);
    float sum = 0;
    for (int64_t expert = threadIdx.x; expert < args.experts && rows > 0; expert += LANES)
        sum += ((const float *)args.count_total)[expert] / rows *
               (((const float *)args.prob_sum)[expert] / rows);
    sum = warp_sum(sum);
    if (threadIdx.x == 0)
        *(float *)args.aux = (float)args.experts * sum;
}

/* A warp owns a token; a lane has the experts lane, lane + 32, .. */
static __global__ void __launch_bounds__(THREADS) aux_grad_kernel(route_aux_args args)
{
    const int64_t token = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES;
    if (token >= valid_tokens(args.tokens, args.n_valid))
        return;
    const float rows = stat_rows(args);
    const float scale =
        samples_of(args, token) * *(const float *)args.scale * (float)args.experts / rows;
    const float *p = (const float *)args.probs + token * args.experts;
    bf16 *dz = (bf16 *)args.dlogits + token * args.experts;
    float dot = 0;
    for (int64_t expert = threadIdx.x % LANES; expert < args.experts; expert += LANES)
        dot += ((const float *)args.count_total)[expert] / rows * p[expert];
    dot = warp_sum(dot);
    for (int64_t expert = threadIdx.x % LANES; expert < args.experts; expert += LANES) {
        const float fraction = ((const float *)args.count_total)[expert] / rows;
        dz[expert] = to_bf16(to_float(dz[expert]) + scale * p[expert] * (fraction - dot));
    }
}

static status add_stats(stream *queue, const route_aux_args *args)
{
    const int64_t tiles = ceil_div(args->tokens, STAT_ROWS);
    void *part;
    TRY(cuda_scratch(queue, (size_t)(tiles * args->experts) * sizeof(float), &part));
    TRY(LAUNCH(queue, stats_kernel, grid_of(tiles, ceil_div(args->experts, COLUMNS)), THREADS, 0,
               *args, (float *)part));
    return LAUNCH(queue, add_stats_kernel, grid_of(ceil_div(args->experts, THREADS)), THREADS, 0,
                  *args, (const float *)part, tiles);
}

extern "C" status cuda_route_aux(stream *queue, const route_aux_args *args)
{
    TRY(route_check(args->experts, 1, 1));
    switch (args->phase) {
    case AUX_ADD_STATS:
        return add_stats(queue, args);
    case AUX_FINISH:
        return LAUNCH(queue, finish_kernel, grid_of(1), LANES, 0, *args);
    case AUX_GRAD:
        return LAUNCH(queue, aux_grad_kernel, grid_of(ceil_div(args->tokens, WARPS)), THREADS, 0,
                      *args);
    default:
        return FAIL(ST_BAD_INPUT, "route_aux: there is no phase %d", args->phase);
    }
}
