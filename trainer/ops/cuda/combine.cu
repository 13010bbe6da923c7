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
static __global__ void __launch_bounds__(THREADS, 4) combine_fwd_kernel(combine_fwd_args a)
{
    const int64_t t = blockIdx.x, at = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
    const int k = (int)a.top_k;
    if (at >= a.width)
        return;
    const float *weight = (const float *)a.weight;
    const bf16 *o = (const bf16 *)a.o + at;
    float sum[N] = {}, x[N];
    if (a.residual)
        unpack(sum, *(const piece<N> *)((const bf16 *)a.residual + t * a.width + at));
    for (int k0 = 0; k0 < k; k0 += ROWS) {
        int from[ROWS];
        float w[ROWS];
        piece<N> row[ROWS];
        /* Loads follow each other without a branch, so that all rows are on their way before the
         * first is added. A slot without a row reads row 0, which then counts for nothing. */
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            const int64_t slot = t * k + (k0 + j < k ? k0 + j : 0);
            from[j] = k0 + j < k ? __ldg(a.slot_row + slot) : -1;
            w[j] = weight ? __ldg(weight + slot) : 1.0f;
        }
#pragma unroll
        for (int j = 0; j < ROWS; j++)
            row[j] = load_piece<N>(o + (int64_t)(from[j] < 0 ? 0 : from[j]) * a.width);
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            unpack(x, row[j]);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] += from[j] < 0 ? 0.0f : w[j] * x[i];
        }
    }
    *(piece<N> *)((bf16 *)a.y + t * a.width + at) = pack(sum);
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
static __global__ void __launch_bounds__(THREADS) combine_bwd_kernel(combine_bwd_args a)
{
    const int64_t slot = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES;
    if (slot >= a.tokens * a.top_k)
        return;
    const int64_t row = a.slot_row[slot];
    float dot = 0;
    if (row >= 0)
        dot = slot_bwd<N>((bf16 *)a.do_ + row * a.width, (const bf16 *)a.o + row * a.width,
                          (const bf16 *)a.dy + slot / a.top_k * a.width,
                          ((const float *)a.weight)[slot], a.width);
    dot = warp_sum(dot);
    if (threadIdx.x % LANES == 0)
        ((float *)a.dweight)[slot] = dot;
}

static bool whole_vectors(int64_t width, const void *a, const void *b, const void *c)
{
    return width % VECTOR == 0 && aligned16(a) && aligned16(b) && aligned16(c);
}

extern "C" status cuda_combine_fwd(stream *s, const combine_fwd_args *a)
{
    const bool wide = whole_vectors(a->width, a->o, a->y, a->residual);
    const int64_t columns = a->width / (wide ? VECTOR : 1), warps = ceil_div(columns, LANES);
    const int threads = warps < WARPS ? (int)warps * LANES : THREADS;
    const dim3 grid = grid_of(a->tokens, ceil_div(columns, THREADS));
    if (wide)
        return LAUNCH(s, combine_fwd_kernel<VECTOR>, grid, threads, 0, *a);
    return LAUNCH(s, combine_fwd_kernel<1>, grid, threads, 0, *a);
}

extern "C" status cuda_combine_bwd(stream *s, const combine_bwd_args *a)
{
    const dim3 grid = grid_of(ceil_div(a->tokens * a->top_k, WARPS));
    if (whole_vectors(a->width, a->o, a->dy, a->do_))
        return LAUNCH(s, combine_bwd_kernel<VECTOR>, grid, THREADS, 0, *a);
    return LAUNCH(s, combine_bwd_kernel<1>, grid, THREADS, 0, *a);
}
