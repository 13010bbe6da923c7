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
static __device__ inline void load_run(float (&out)[RUN], const T *row, int e, int experts)
{
    const bool whole = experts % RUN == 0;
    if (whole && e < experts)
        load_vector(out, row + e);
    else
        for (int i = 0; i < RUN; i++)
            out[i] = !whole && e + i < experts ? to_float(row[e + i]) : 0.0f;
}

template <class T>
static __device__ inline void store_run(T *row, const float (&in)[RUN], int e, int experts)
{
    const bool whole = experts % RUN == 0;
    if (whole && e < experts)
        store_vector(row + e, in);
    else
        for (int i = 0; !whole && i < RUN && e + i < experts; i++)
            store1(row + e + i, in[i]);
}

/* A thread's lane in the group of its token; below, the first expert of its run c. */
template <int GROUP> static __device__ inline int group_lane(void)
{
    return (int)(threadIdx.x % GROUP);
}

template <int GROUP> static __device__ inline int run_expert(int c)
{
    return (c * GROUP + group_lane<GROUP>()) * RUN;
}

template <int GROUP> static __device__ inline uint32_t group_max(uint32_t v)
{
    for (int step = GROUP / 2; step > 0; step /= 2) {
        uint32_t other = __shfl_xor_sync(WHOLE_WARP, v, step);
        v = other > v ? other : v;
    }
    return v;
}

/* The sum over a group. Every thread gets it, added in the same order. */
template <int GROUP> static __device__ inline float group_sum(float v)
{
    for (int step = GROUP / 2; step > 0; step /= 2)
        v += __shfl_xor_sync(WHOLE_WARP, v, step);
    return v;
}

/* The largest key of the group that is below `last`. The keys from `last` on have already won. */
template <int GROUP, int CHUNKS>
static __device__ inline uint32_t next_key(const uint32_t key[CHUNKS][RUN], uint32_t last)
{
    uint32_t best = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int i = 0; i < RUN; i++)
            best = key[c][i] < last && key[c][i] > best ? key[c][i] : best;
    return group_max<GROUP>(best);
}

/* Writes probs = softmax(z) and returns 1 / the sum of e^(z - max). */
template <int GROUP, int CHUNKS>
static __device__ inline float softmax_row(const route_fwd_args &a, int64_t t, float z[CHUNKS][RUN],
                                           float max, bool live)
{
    const int experts = (int)a.experts;
    float sum = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int i = 0; i < RUN; i++) {
            bool inside = run_expert<GROUP>(c) + i < experts;
            z[c][i] = inside ? __expf(z[c][i] - max) : 0.0f;
            sum += z[c][i];
        }
    const float inverse = 1.0f / group_sum<GROUP>(sum);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
#pragma unroll
        for (int i = 0; i < RUN; i++)
            z[c][i] *= inverse;
        if (live)
            store_run((float *)a.probs + t * experts, z[c], run_expert<GROUP>(c), experts);
    }
    return inverse;
}

/* One token: writes its probabilities, choice and weights, and counts its slots. Every thread of
 * the warp must call it; `live` says whether the group has a token. */
template <int GROUP, int CHUNKS>
static __device__ inline void route_token(const route_fwd_args &a, int64_t t, bool live, bool valid,
                                          int *hist)
{
    const int experts = (int)a.experts, k = (int)a.top_k, lane = group_lane<GROUP>();
    float z[CHUNKS][RUN];
    uint32_t key[CHUNKS][RUN];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int e = run_expert<GROUP>(c);
        load_run(z[c], (const bf16 *)a.logits + (live ? t : 0) * experts, e, experts);
#pragma unroll
        for (int i = 0; i < RUN; i++)
            key[c][i] = e + i < experts ? choice_key(z[c][i], e + i) : 0;
    }
    uint32_t last = next_key<GROUP, CHUNKS>(key, UINT32_MAX), mine = 0;
    const float max = key_logit(last);
    const float inverse = softmax_row<GROUP, CHUNKS>(a, t, z, max, live);
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
    a.expert[t * k + lane] = valid ? key_expert(mine) : -1;
    ((float *)a.weight)[t * k + lane] = !valid ? 0.0f : a.norm_topk ? weight / sum : weight;
    if (valid)
        atomicAdd(&hist[key_expert(mine)], a.samples ? a.samples[t] : 1);
}

/* count [E] must start at 0. */
template <int GROUP, int CHUNKS>
static __global__ void __launch_bounds__(THREADS) route_fwd_kernel(route_fwd_args a)
{
    __shared__ int hist[EXPERTS_MAX];
    for (int e = (int)threadIdx.x; e < (int)a.experts; e += THREADS)
        hist[e] = 0;
    __syncthreads();
    const int64_t valid = valid_tokens(a.tokens, a.n_valid), groups = THREADS / GROUP;
    for (int64_t t0 = blockIdx.x * groups; t0 < a.tokens; t0 += gridDim.x * groups) {
        int64_t t = t0 + threadIdx.x / GROUP;
        route_token<GROUP, CHUNKS>(a, t, t < a.tokens, t < valid, hist);
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < (int)a.experts; e += THREADS)
        if (hist[e] > 0)
            atomicAdd(&a.count[e], hist[e]);
}

/* The gradient of one token's logits. */
template <int GROUP, int CHUNKS>
static __device__ inline void route_token_bwd(const route_bwd_args &a, int64_t t, bool live,
                                              bool valid)
{
    const int experts = (int)a.experts, k = (int)a.top_k, lane = group_lane<GROUP>();
    const bool mine = valid && lane < k;
    const int chosen = mine ? a.expert[t * k + lane] : -1;
    const float w = mine ? ((const float *)a.weight)[t * k + lane] : 0.0f;
    const float dw = mine ? ((const float *)a.dweight)[t * k + lane] : 0.0f;
    const float dot = group_sum<GROUP>(w * dw);
    const float put = a.norm_topk ? w * (dw - dot) : dw;
    float dz[CHUNKS][RUN] = {};
    for (int j = 0; j < k; j++) {
        const int e = __shfl_sync(WHOLE_WARP, chosen, j, GROUP);
        const float v = __shfl_sync(WHOLE_WARP, put, j, GROUP);
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int i = 0; i < RUN; i++)
                dz[c][i] = e == run_expert<GROUP>(c) + i ? v : dz[c][i];
    }
    if (!live)
        return;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int e = run_expert<GROUP>(c);
        if (!a.norm_topk && valid) { /* the weights are the probabilities: dz = p (dp - sum p dp) */
            float p[RUN];
            load_run(p, (const float *)a.probs + t * experts, e, experts);
#pragma unroll
            for (int i = 0; i < RUN; i++)
                dz[c][i] = p[i] * (dz[c][i] - dot);
        }
        store_run((bf16 *)a.dlogits + t * experts, dz[c], e, experts);
    }
}

template <int GROUP, int CHUNKS>
static __global__ void __launch_bounds__(THREADS) route_bwd_kernel(route_bwd_args a)
{
    const int64_t valid = valid_tokens(a.tokens, a.n_valid), groups = THREADS / GROUP;
    for (int64_t t0 = blockIdx.x * groups; t0 < a.tokens; t0 += gridDim.x * groups) {
        int64_t t = t0 + threadIdx.x / GROUP;
        route_token_bwd<GROUP, CHUNKS>(a, t, t < a.tokens, t < valid);
    }
}

/* The grid for so many tokens; the groups of a block take tokens in turn. */
static dim3 route_grid(int64_t tokens, int group)
{
    const int64_t blocks = ceil_div(tokens, THREADS / group);
    return grid_of(blocks < BLOCKS ? blocks : (int64_t)BLOCKS);
}

extern "C" status cuda_route_fwd(stream *s, const route_fwd_args *a)
{
    TRY(route_check(a->experts, a->top_k, WIDE_GROUP));
    TRY(cuda_clear(s, a->count, (size_t)a->experts * sizeof *a->count));
    if (a->experts <= SMALL && a->top_k <= SMALL_GROUP)
        return LAUNCH(s, (route_fwd_kernel<SMALL_GROUP, 1>), route_grid(a->tokens, SMALL_GROUP),
                      THREADS, 0, *a);
    return LAUNCH(s, (route_fwd_kernel<WIDE_GROUP, 4>), route_grid(a->tokens, WIDE_GROUP), THREADS,
                  0, *a);
}

extern "C" status cuda_route_bwd(stream *s, const route_bwd_args *a)
{
    TRY(route_check(a->experts, a->top_k, WIDE_GROUP));
    if (a->experts <= SMALL && a->top_k <= SMALL_GROUP)
        return LAUNCH(s, (route_bwd_kernel<SMALL_GROUP, 1>), route_grid(a->tokens, SMALL_GROUP),
                      THREADS, 0, *a);
    return LAUNCH(s, (route_bwd_kernel<WIDE_GROUP, 4>), route_grid(a->tokens, WIDE_GROUP), THREADS,
                  0, *a);
}
