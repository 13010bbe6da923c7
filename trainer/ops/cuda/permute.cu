/* SPDX-License-Identifier: Apache-2.0 */
/* permute.cu: permute (route.h) on CUDA: a stable counting sort of the slots by expert.
 *
 * The slots are cut into tiles of TILE. rank_kernel counts each tile's slots per expert, and leaves
 * in slot_row each slot's rank among its tile's slots of the same expert. place_kernel adds the
 * counts of earlier tiles and of smaller experts, and writes the rows. It works for any
 * distribution of the slots, such as all on one expert.
 *
 * Bytes: 4 per slot read, 4 + 4 + 4 + 4 written and read again, and per tile 4 E written once and
 * read by every tile from L2. For 400,000 slots of 128 experts that is 6.4 MB, so the limit is what
 * it takes to start the kernels. */
#include <limits.h>

#include "trainer/ops/cuda/piece.cuh"
#include "trainer/ops/cuda/route.cuh"
#include "trainer/ops/route.h"

enum {
    RANK_THREADS = 256,
    RANK_WARPS = RANK_THREADS / LANES,
    ROUNDS = 8, /* slots that a lane handles */
    TILE = RANK_THREADS * ROUNDS,
    PLACE_THREADS = 512, /* four threads per column of 128 counts */
};

/* The mask of the lanes whose code equals this lane's; `bits` is the number of bits of the largest
 * code. */
static __device__ inline uint32_t lanes_like(int code, int bits)
{
    uint32_t like = WHOLE_WARP;
    for (int bit = 0; bit < bits; bit++) {
        uint32_t set = __ballot_sync(WHOLE_WARP, code >> bit & 1);
        like &= code >> bit & 1 ? set : ~set;
    }
    return like;
}

/* The slot's expert, or E if the slot goes nowhere. */
static __device__ inline int slot_code(const permute_args &args, int64_t index)
{
    const int expert = index < args.tokens * args.top_k ? args.expert[index] : -1;
    return expert >= 0 && expert < args.experts ? expert : (int)args.experts;
}

/* Writes tile_count [tiles, E]. */
static __global__ void __launch_bounds__(RANK_THREADS)
    rank_kernel(permute_args args, int *tile_count)
{
    /* First the slots that each warp has seen; then those of the warps before it. */
    __shared__ int seen[RANK_WARPS][EXPERTS_MAX];
    const int experts = (int)args.experts, warp = (int)threadIdx.x / LANES;
    const int lane = (int)threadIdx.x % LANES, bits = 32 - __clz(experts);
    const int64_t first = (int64_t)blockIdx.x * TILE + warp * (ROUNDS * LANES) + lane;
    for (int i = (int)threadIdx.x; i < RANK_WARPS * experts; i += RANK_THREADS)
        seen[i / experts][i % experts] = 0;
    __syncthreads();
    int code[ROUNDS], rank[ROUNDS];
#pragma unroll
    for (int j = 0; j < ROUNDS; j++)
        code[j] = slot_code(args, first + j * LANES);
#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {
        const uint32_t like = lanes_like(code[j], bits), before = like & ((1u << lane) - 1);
        const bool counts = code[j] < experts;
        rank[j] = counts ? seen[warp][code[j]] + __popc(before) : 0;
        __syncwarp();
        if (counts && before == 0)
            seen[warp][code[j]] += __popc(like);
        __syncwarp();
    }
    __syncthreads();
    for (int expert = (int)threadIdx.x; expert < experts; expert += RANK_THREADS) {
        int sum = 0;
        for (int k = 0; k < RANK_WARPS; k++) {
            int own = seen[k][expert];
            seen[k][expert] = sum;
            sum += own;
        }
        tile_count[(int64_t)blockIdx.x * experts + expert] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < ROUNDS; j++)
        if (code[j] < experts)
            args.slot_row[first + j * LANES] = rank[j] + seen[warp][code[j]];
}

/* Sums tile_count of an expert over all tiles, and over the tiles before this one. Thread `part` of
 * `parts` adds every parts-th tile. */
static __device__ inline void sum_tiles(const int *tile_count, int experts, int expert, int part,
                                        int parts, int *before, int *all)
{
    const int tiles = (int)gridDim.x, here = (int)blockIdx.x;
    int earlier = 0, total = 0;
#pragma unroll 8
    for (int tile = part; tile < tiles; tile += parts) {
        int n = tile_count[(int64_t)tile * experts + expert];
        total += n;
        earlier += tile < here ? n : 0;
    }
    before[expert] = earlier;
    all[expert] = total;
}

/* base[e] = the slots of the experts before e, plus before[e]. The first block also writes offset.
 * Runs on one warp. Returns the sum over all experts. */
static __device__ inline int scan_experts(const permute_args &args, const int *all, int *base)
{
    const int experts = (int)args.experts, lane = (int)threadIdx.x;
    int carry = 0;
    for (int e0 = 0; e0 < experts; e0 += LANES) {
        const int own = e0 + lane < experts ? all[e0 + lane] : 0;
        int sum = own;
        for (int step = 1; step < LANES; step *= 2) {
            int left = __shfl_up_sync(WHOLE_WARP, sum, step);
            sum += lane >= step ? left : 0;
        }
        if (e0 + lane < experts) {
            base[e0 + lane] += carry + sum - own;
            if (blockIdx.x == 0)
                args.offset[e0 + lane] = carry + sum - own;
        }
        carry += __shfl_sync(WHOLE_WARP, sum, LANES - 1);
    }
    if (blockIdx.x == 0 && lane == 0)
        args.offset[experts] = carry;
    return carry;
}

static __global__ void __launch_bounds__(PLACE_THREADS)
    place_kernel(permute_args args, const int *tile_count)
{
    __shared__ int before[EXPERTS_MAX + PLACE_THREADS], all[EXPERTS_MAX + PLACE_THREADS];
    __shared__ int used;
    const int experts = (int)args.experts, tid = (int)threadIdx.x;
    const int parts = experts < PLACE_THREADS ? PLACE_THREADS / experts : 1;
    for (int i = tid; i < parts * experts; i += PLACE_THREADS)
        sum_tiles(tile_count, experts, i % experts, i / experts, parts,
                  before + i / experts * experts, all + i / experts * experts);
    __syncthreads();
    for (int expert = tid; expert < experts; expert += PLACE_THREADS)
        for (int part = 1; part < parts; part++) {
            before[expert] += before[part * experts + expert];
            all[expert] += all[part * experts + expert];
        }
    __syncthreads();
    if (tid < LANES) {
        int total = scan_experts(args, all, before);
        if (tid == 0)
            used = total;
    }
    __syncthreads();
    const int64_t slots = args.tokens * args.top_k, end = (int64_t)(blockIdx.x + 1) * TILE;
    for (int64_t i = (int64_t)blockIdx.x * TILE + tid; i < end && i < slots; i += PLACE_THREADS) {
        const int code = slot_code(args, i);
        const int row = code < experts ? before[code] + args.slot_row[i] : -1;
        args.slot_row[i] = row;
        if (row >= 0)
            args.row_token[row] = (int32_t)((uint32_t)i / (uint32_t)args.top_k);
        if (i >= used)
            args.row_token[i] = -1;
    }
}

extern "C" status cuda_permute(stream *queue, const permute_args *args)
{
    const int64_t slots = args->tokens * args->top_k;
    if (slots > INT_MAX)
        return FAIL(ST_BAD_INPUT, "permute: there are %lld slots; at most 2^31 - 1 are possible",
                    (long long)slots);
    TRY(route_check(args->experts, args->top_k, args->experts));
    /* At least one tile, since offset must always be written. */
    const int64_t tiles = slots > 0 ? ceil_div(slots, TILE) : 1;
    void *tile_count;
    TRY(cuda_scratch(queue, (size_t)(tiles * args->experts) * sizeof(int), &tile_count));
    TRY(LAUNCH(queue, rank_kernel, grid_of(tiles), RANK_THREADS, 0, *args, (int *)tile_count));
    return LAUNCH(queue, place_kernel, grid_of(tiles), PLACE_THREADS, 0, *args,
                  (const int *)tile_count);
}

/* ---- back to the tokens ---- */

/* Combine_fwd and combine_bwd of route.h on CUDA: the mix of the experts' rows.
 *
 * Forward: a thread owns 8 columns of a token, and starts loading all K rows before it adds the
 * first. Bytes per token: 2 K W read, 2 W written, and 2 W more read with a residual. Backward: a
 * warp owns a slot: 2 W read, 2 W written, and dy [W] once per slot, which comes from L1 and L2
 * after the token's first slot. DRAM is the limit. Sums are in float over ascending k, with one
 * rounding at the end. */

enum {
    THREADS = 256,
    WARPS = THREADS / LANES,
    ROWS = 8,  /* rows that a thread loads at once; Qwen's K */
    PIECES = 4 /* backward: vectors of o and of dy that a lane loads at once */
};

/* A block owns a token, or blockDim.x * N columns of one. */
template <int N>
static __global__ void __launch_bounds__(THREADS, 4) combine_fwd_kernel(combine_fwd_args args)
{
    const int64_t token = blockIdx.x, at = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
    const int k = (int)args.top_k;
    if (at >= args.width)
        return;
    const float *weight = (const float *)args.weight;
    const bf16 *o = (const bf16 *)args.o + at;
    float sum[N] = {}, x[N];
    if (args.residual)
        unpack(sum, *(const piece<N> *)((const bf16 *)args.residual + token * args.width + at));
    for (int k0 = 0; k0 < k; k0 += ROWS) {
        int from[ROWS];
        float w[ROWS];
        piece<N> row[ROWS];
        /* Loads follow each other without a branch, so that all rows are on their way before the
         * first is added. A slot without a row reads row 0, which then counts for nothing. */
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            const int64_t slot = token * k + (k0 + j < k ? k0 + j : 0);
            from[j] = k0 + j < k ? __ldg(args.slot_row + slot) : -1;
            w[j] = weight ? __ldg(weight + slot) : 1.0f;
        }
#pragma unroll
        for (int j = 0; j < ROWS; j++)
            row[j] = load_piece<N>(o + (int64_t)(from[j] < 0 ? 0 : from[j]) * args.width);
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            unpack(x, row[j]);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] += from[j] < 0 ? 0.0f : w[j] * x[i];
        }
    }
    *(piece<N> *)((bf16 *)args.y + token * args.width + at) = pack(sum);
}

/* One warp does one slot: it writes do_ = w dy and returns this lane's part of the dot product of
 * dy and o. A lane reads and writes the same columns, so do_ may be o. */
template <int N>
static __device__ inline float slot_bwd(bf16 *do_, const bf16 *o, const bf16 *dy, float w,
                                        int64_t width)
{
    float dot = 0, x[N], g[N];
    for (int64_t c0 = threadIdx.x % LANES * N; c0 < width; c0 += PIECES * LANES * N) {
        piece<N> of_o[PIECES], of_dy[PIECES];
#pragma unroll
        for (int j = 0; j < PIECES; j++)
            if (c0 + j * LANES * N < width) {
                of_o[j] = *(const piece<N> *)(o + c0 + j * LANES * N);
                of_dy[j] = *(const piece<N> *)(dy + c0 + j * LANES * N);
            }
#pragma unroll
        for (int j = 0; j < PIECES; j++)
            if (c0 + j * LANES * N < width) {
                unpack(x, of_o[j]);
                unpack(g, of_dy[j]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    dot += g[i] * x[i];
                    g[i] *= w;
                }
                *(piece<N> *)(do_ + c0 + j * LANES * N) = pack(g);
            }
    }
    return dot;
}

template <int N>
static __global__ void __launch_bounds__(THREADS) combine_bwd_kernel(combine_bwd_args args)
{
    const int64_t slot = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES;
    if (slot >= args.tokens * args.top_k)
        return;
    const int64_t row = args.slot_row[slot];
    float dot = 0;
    if (row >= 0)
        dot = slot_bwd<N>((bf16 *)args.do_ + row * args.width,
                          (const bf16 *)args.o + row * args.width,
                          (const bf16 *)args.dy + slot / args.top_k * args.width,
                          ((const float *)args.weight)[slot], args.width);
    dot = warp_sum(dot);
    if (threadIdx.x % LANES == 0)
        ((float *)args.dweight)[slot] = dot;
}

static bool whole_vectors(int64_t width, const void *first, const void *second, const void *third)
{
    return width % VECTOR == 0 && aligned16(first) && aligned16(second) && aligned16(third);
}

extern "C" status cuda_combine_fwd(stream *queue, const combine_fwd_args *args)
{
    const bool wide = whole_vectors(args->width, args->o, args->y, args->residual);
    const int64_t columns = args->width / (wide ? VECTOR : 1), warps = ceil_div(columns, LANES);
    const int threads = warps < WARPS ? (int)warps * LANES : THREADS;
    const dim3 grid = grid_of(args->tokens, ceil_div(columns, THREADS));
    if (wide)
        return LAUNCH(queue, combine_fwd_kernel<VECTOR>, grid, threads, 0, *args);
    return LAUNCH(queue, combine_fwd_kernel<1>, grid, threads, 0, *args);
}

extern "C" status cuda_combine_bwd(stream *queue, const combine_bwd_args *args)
{
    const dim3 grid = grid_of(ceil_div(args->tokens * args->top_k, WARPS));
    if (whole_vectors(args->width, args->o, args->dy, args->do_))
        return LAUNCH(queue, combine_bwd_kernel<VECTOR>, grid, THREADS, 0, *args);
    return LAUNCH(queue, combine_bwd_kernel<1>, grid, THREADS, 0, *args);
}
