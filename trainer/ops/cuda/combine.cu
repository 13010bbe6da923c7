/* combine.cu: combine_fwd and combine_bwd of route.h on CUDA: the mix of the experts' rows.
 *
 * Forward: a thread owns 8 columns of a token, and starts loading all K rows before it adds the
 * first. Bytes per token: 2 K W read, 2 W written, and 2 W more read with a residual. Backward: a
 * warp owns a slot: 2 W read, 2 W written, and dy [W] once per slot, which comes from L1 and L2
 * after the token's first slot. DRAM is the limit. Sums are in float over ascending k, with one
 * rounding at the end. */
#include "trainer/ops/cuda/piece.cuh"
#include "trainer/ops/route.h"

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
