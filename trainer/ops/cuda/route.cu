/* SPDX-License-Identifier: Apache-2.0 */
/* route.cu: route_fwd and route_bwd (route.h) on CUDA: the router and its gradient.
 *
 * A group of GROUP threads owns a token. Each thread holds CHUNKS runs of 8 experts, so rows of
 * logits (bf16) and probabilities (float) move in 16-byte pieces; with 128 experts a token has 16
 * threads. Bytes per token: route_fwd reads 2E and writes 4E + 8K; route_bwd reads 12K (and 4E
 * without norm_topk) and writes 2E. DRAM is the limit, closely followed by the choice, which takes
 * 26 instructions per chosen expert.
 *
 * Numerics: softmax and weights are in float. The choice compares logits and not probabilities, so
 * that it does not depend on how an exponential rounds. Sums run in a fixed order; the counts of
 * slots are integers, for which the order does not matter. */
#include "trainer/ops/cuda/route.cuh"

enum {
    THREADS = 256,
    RUN = 8,          /* neighbouring experts of a thread: 16 bytes of logits */
    SMALL = 128,      /* the most experts that a small group holds, with one run per thread */
    SMALL_GROUP = 16, /* threads; also the most experts that it can choose */
    WIDE_GROUP = 32,  /* threads with four runs each, which hold EXPERTS_MAX */
    BLOCKS = 132 * 8  /* enough to fill the GPU; each adds its counts once, at its end */
};

/* A logit and its expert as one number. A larger logit gives a larger number; of equal logits the
 * lower expert does. NaN is below all numbers, so a broken row still chooses different experts. */
static __device__ inline uint32_t choice_key(float z, int expert)
{
    /* A bf16 has its bits in the upper half; adding 0 turns -0 into 0. */
    uint32_t bits = __float_as_uint(z + 0.0f) >> 16;
    uint32_t ordered = bits & 0x8000 ? ~bits & 0xffff : bits | 0x8000;
    return (z == z ? ordered << 16 : 0) | (uint32_t)(0xffff - expert);
}

static __device__ inline int key_expert(uint32_t key)
{
    return 0xffff - (int)(key & 0xffff);
}

static __device__ inline float key_logit(uint32_t key)
{
    uint32_t ordered = key >> 16;
    uint32_t bits = ordered & 0x8000 ? ordered & 0x7fff : ~ordered & 0xffff;
    return __uint_as_float(bits << 16);
}

static __device__ __forceinline__ float to_float(float x)
{
    return x;
}

static __device__ __forceinline__ void load_vector(float (&out)[RUN], const float *p)
{
    const float4 low = ((const float4 *)p)[0], high = ((const float4 *)p)[1];
    const float all[RUN] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < RUN; i++)
        out[i] = all[i];
}

static __device__ __forceinline__ void store_vector(float *p, const float (&in)[RUN])
{
    ((float4 *)p)[0] = make_float4(in[0], in[1], in[2], in[3]);
    ((float4 *)p)[1] = make_float4(in[4], in[5], in[6], in[7]);
}

static __device__ __forceinline__ void store1(float *p, float x)
{
    *p = x;
}

static __device__ __forceinline__ void store1(bf16 *p, float x)
{
    *p = to_bf16(x);
}

/* Loads the logits or probabilities of one run, with 0 after the last expert. */
template <class T>
static __device__ inline void load_run(float (&out)[RUN], const T *row, int expert, int experts)
{
    const bool whole = experts % RUN == 0;
    if (whole && expert < experts)
        load_vector(out, row + expert);
    else
        for (int i = 0; i < RUN; i++)
            out[i] = !whole && expert + i < experts ? to_float(row[expert + i]) : 0.0f;
}

template <class T>
static __device__ inline void store_run(T *row, const float (&in)[RUN], int expert, int experts)
{
    const bool whole = experts % RUN == 0;
    if (whole && expert < experts)
        store_vector(row + expert, in);
    else
        for (int i = 0; !whole && i < RUN && expert + i < experts; i++)
            store1(row + expert + i, in[i]);
}

/* A thread's lane in the group of its token; below, the first expert of its run c. */
template <int GROUP> static __device__ inline int group_lane(void)
{
    return (int)(threadIdx.x % GROUP);
}

template <int GROUP> static __device__ inline int run_expert(int chunk)
{
    return (chunk * GROUP + group_lane<GROUP>()) * RUN;
}

template <int GROUP> static __device__ inline uint32_t group_max(uint32_t value)
{
    for (int step = GROUP / 2; step > 0; step /= 2) {
        uint32_t other = __shfl_xor_sync(WHOLE_WARP, value, step);
        value = other > value ? other : value;
    }
    return value;
}

/* The sum over a group. Every thread gets it, added in the same order. */
template <int GROUP> static __device__ inline float group_sum(float value)
{
    for (int step = GROUP / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(WHOLE_WARP, value, step);
    return value;
}

/* The largest key of the group that is below `last`. The keys from `last` on have already won. */
template <int GROUP, int CHUNKS>
static __device__ inline uint32_t next_key(const uint32_t key[CHUNKS][RUN], uint32_t last)
{
    uint32_t best = 0;
#pragma unroll
    for (int j = 0; j < CHUNKS; j++)
#pragma unroll
        for (int i = 0; i < RUN; i++)
            best = key[j][i] < last && key[j][i] > best ? key[j][i] : best;
    return group_max<GROUP>(best);
}

/* Writes probs = softmax(z) and returns 1 / the sum of e^(z - max). */
template <int GROUP, int CHUNKS>
static __device__ inline float softmax_row(const route_fwd_args &args, int64_t token,
                                           float z[CHUNKS][RUN], float max, bool live)
{
    const int experts = (int)args.experts;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < CHUNKS; j++)
#pragma unroll
        for (int i = 0; i < RUN; i++) {
            bool inside = run_expert<GROUP>(j) + i < experts;
            z[j][i] = inside ? __expf(z[j][i] - max) : 0.0f;
            sum += z[j][i];
        }
    const float inverse = 1.0f / group_sum<GROUP>(sum);
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
#pragma unroll
        for (int i = 0; i < RUN; i++)
            z[j][i] *= inverse;
        if (live)
            store_run((float *)args.probs + token * experts, z[j], run_expert<GROUP>(j), experts);
    }
    return inverse;
}

/* One token: writes its probabilities, choice and weights, and counts its slots. Every thread of
 * the warp must call it; `live` says whether the group has a token. */
template <int GROUP, int CHUNKS>
static __device__ inline void route_token(const route_fwd_args &args, int64_t token, bool live,
                                          bool valid, int *hist)
{
    const int experts = (int)args.experts, k = (int)args.top_k, lane = group_lane<GROUP>();
    float z[CHUNKS][RUN];
    uint32_t key[CHUNKS][RUN];
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
        const int expert = run_expert<GROUP>(j);
        load_run(z[j], (const bf16 *)args.logits + (live ? token : 0) * experts, expert, experts);
#pragma unroll
        for (int i = 0; i < RUN; i++)
            key[j][i] = expert + i < experts ? choice_key(z[j][i], expert + i) : 0;
    }
    uint32_t last = next_key<GROUP, CHUNKS>(key, UINT32_MAX), mine = 0;
    const float max = key_logit(last);
    const float inverse = softmax_row<GROUP, CHUNKS>(args, token, z, max, live);
    float sum = 0;
    for (int i = 0; i < k; i++) {
        mine = lane == i ? last : mine;
        sum += __expf(key_logit(last) - max) * inverse;
        if (i + 1 < k)
            last = next_key<GROUP, CHUNKS>(key, last);
    }
    if (!live || lane >= k)
        return;
    float weight = __expf(key_logit(mine) - max) * inverse;
    args.expert[token * k + lane] = valid ? key_expert(mine) : -1;
    ((float *)args.weight)[token * k + lane] = !valid           ? 0.0f
                                               : args.norm_topk ? weight / sum
                                                                : weight;
    if (valid)
        atomicAdd(&hist[key_expert(mine)], args.samples ? args.samples[token] : 1);
}

/* count [E] must start at 0. */
template <int GROUP, int CHUNKS>
static __global__ void __launch_bounds__(THREADS) route_fwd_kernel(route_fwd_args args)
{
    __shared__ int hist[EXPERTS_MAX];
    for (int i = (int)threadIdx.x; i < (int)args.experts; i += THREADS)
        hist[i] = 0;
    __syncthreads();
    const int64_t valid = valid_tokens(args.tokens, args.n_valid), groups = THREADS / GROUP;
    for (int64_t t0 = blockIdx.x * groups; t0 < args.tokens; t0 += gridDim.x * groups) {
        int64_t token = t0 + threadIdx.x / GROUP;
        route_token<GROUP, CHUNKS>(args, token, token < args.tokens, token < valid, hist);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < (int)args.experts; i += THREADS)
        if (hist[i] > 0)
            atomicAdd(&args.count[i], hist[i]);
}

/* The gradient of one token's logits. */
template <int GROUP, int CHUNKS>
static __device__ inline void route_token_bwd(const route_bwd_args &args, int64_t token, bool live,
                                              bool valid)
{
    const int experts = (int)args.experts, k = (int)args.top_k, lane = group_lane<GROUP>();
    const bool mine = valid && lane < k;
    const int chosen = mine ? args.expert[token * k + lane] : -1;
    const float w = mine ? ((const float *)args.weight)[token * k + lane] : 0.0f;
    const float dw = mine ? ((const float *)args.dweight)[token * k + lane] : 0.0f;
    const float dot = group_sum<GROUP>(w * dw);
    const float put = args.norm_topk ? w * (dw - dot) : dw;
    float dz[CHUNKS][RUN] = {};
    for (int j = 0; j < k; j++) {
        const int expert = __shfl_sync(WHOLE_WARP, chosen, j, GROUP);
        const float given = __shfl_sync(WHOLE_WARP, put, j, GROUP);
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++)
#pragma unroll
            for (int i = 0; i < RUN; i++)
                dz[chunk][i] = expert == run_expert<GROUP>(chunk) + i ? given : dz[chunk][i];
    }
    if (!live)
        return;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const int expert = run_expert<GROUP>(chunk);
        if (!args.norm_topk &&
            valid) { /* the weights are the probabilities: dz = p (dp - sum p dp) */
            float p[RUN];
            load_run(p, (const float *)args.probs + token * experts, expert, experts);
#pragma unroll
            for (int i = 0; i < RUN; i++)
                dz[chunk][i] = p[i] * (dz[chunk][i] - dot);
        }
        store_run((bf16 *)args.dlogits + token * experts, dz[chunk], expert, experts);
    }
}

template <int GROUP, int CHUNKS>
static __global__ void __launch_bounds__(THREADS) route_bwd_kernel(route_bwd_args args)
{
    const int64_t valid = valid_tokens(args.tokens, args.n_valid), groups = THREADS / GROUP;
    for (int64_t t0 = blockIdx.x * groups; t0 < args.tokens; t0 += gridDim.x * groups) {
        int64_t token = t0 + threadIdx.x / GROUP;
        route_token_bwd<GROUP, CHUNKS>(args, token, token < args.tokens, token < valid);
    }
}

/* The grid for so many tokens; the groups of a block take tokens in turn. */
static dim3 route_grid(int64_t tokens, int group)
{
    const int64_t blocks = ceil_div(tokens, THREADS / group);
    return grid_of(blocks < BLOCKS ? blocks : (int64_t)BLOCKS);
}

extern "C" status cuda_route_fwd(stream *queue, const route_fwd_args *args)
{
    TRY(route_check(args->experts, args->top_k, WIDE_GROUP));
    TRY(cuda_clear(queue, args->count, (size_t)args->experts * sizeof *args->count));
    if (args->experts <= SMALL && args->top_k <= SMALL_GROUP)
        return LAUNCH(queue, (route_fwd_kernel<SMALL_GROUP, 1>),
                      route_grid(args->tokens, SMALL_GROUP), THREADS, 0, *args);
    return LAUNCH(queue, (route_fwd_kernel<WIDE_GROUP, 4>), route_grid(args->tokens, WIDE_GROUP),
                  THREADS, 0, *args);
}

extern "C" status cuda_route_bwd(stream *queue, const route_bwd_args *args)
{
    TRY(route_check(args->experts, args->top_k, WIDE_GROUP));
    if (args->experts <= SMALL && args->top_k <= SMALL_GROUP)
        return LAUNCH(queue, (route_bwd_kernel<SMALL_GROUP, 1>),
                      route_grid(args->tokens, SMALL_GROUP), THREADS, 0, *args);
    return LAUNCH(queue, (route_bwd_kernel<WIDE_GROUP, 4>), route_grid(args->tokens, WIDE_GROUP),
                  THREADS, 0, *args);
}

/* ---- the load-balancing loss ---- */

/* Route_aux (route.h) on CUDA: the load-balancing loss.
 *
 * ADD_STATS reads 4 E bytes per token; GRAD reads 6 E and writes 2 E. DRAM is the limit of both.
 * The column sums go through one partial sum per STAT_ROWS tokens, which are added in order;
 * nothing else is summed over tokens. */

enum {
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
