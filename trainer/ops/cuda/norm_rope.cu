/* SPDX-License-Identifier: Apache-2.0 */
/* norm_rope.cu: RMSNorm of heads and their rotation (norm.h) on CUDA.
 *
 * Eight lanes own a head of up to 128. A lane holds a piece of the first half and the piece of the
 * second half that it is rotated with, so the rotation needs no other lane. Each element is read
 * and written once, 4 bytes forward and 6 backward (8 and 10 where norm and rotation are separate),
 * and the tables are read once a token, 4 bytes an angle, which its heads share in the caches. The
 * backward walks over its part of the heads with the columns' sums for dw in registers, as norm.cu
 * does. Sums and products are in float; y and dx are rounded once. Heads of other lengths take
 * plain loops, a warp a head. */
#include "trainer/ops/cuda/columns.cuh"

enum {
    THREADS = 256,
    GROUP = 8,                      /* lanes that hold a head */
    GROUPS = THREADS / GROUP,       /* heads that a block works on at once */
    HEAD_MOST = 2 * GROUP * VECTOR, /* 128 */
    WARPS = THREADS / LANES,
    /* The parts that the backward cuts the heads into, by shape alone: two of these blocks on each
     * multiprocessor of an H200. */
    PARTS_MOST = 2 * 132,
    PART_LEAST = 256
};

typedef struct fwd {
    unsigned n, heads; /* n: heads in all; heads: heads of a token */
    int half;
    float eps;
    const bf16 *x, *w;
    const float *cosine, *sine;
    bf16 *y;
    float *rstd;
} fwd;

typedef struct bwd {
    unsigned n, heads, part; /* part: heads that a block walks over */
    int half;
    const bf16 *x, *w, *dy;
    const float *cosine, *sine, *rstd;
    bf16 *dx;
    float *partial; /* partial sums of dw: [parts, head_dim] */
} bwd;

static __device__ __forceinline__ float group_sum(float x)
{
#pragma unroll
    for (int offset = GROUP / 2; offset > 0; offset /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

/* Rotates (low, high) by the angle; with -s, back. */
static __device__ __forceinline__ void rotate_pair(float &low, float &high, float cosine,
                                                   float sine)
{
    const float keep = low;
    low = keep * cosine - high * sine;
    high = high * cosine + keep * sine;
}

/* ---- forward ---- */

static __global__ void __launch_bounds__(THREADS) fwd_kernel(fwd args)
{
    const unsigned i = blockIdx.x * GROUPS + threadIdx.x / GROUP;
    const int at = (int)(threadIdx.x % GROUP) * VECTOR;
    const bool live = i < args.n && at < args.half; /* the other lanes only take part in the sum */
    const int64_t first = (int64_t)i * 2 * args.half + at;
    float low[VECTOR] = {}, high[VECTOR] = {};
    if (live) {
        load_vector(low, args.x + first);
        load_vector(high, args.x + first + args.half);
    }
    float square = 0;
#pragma unroll
    for (int j = 0; j < VECTOR; j++)
        square += low[j] * low[j] + high[j] * high[j];
    const float r = rsqrtf(group_sum(square) / (float)(2 * args.half) + args.eps);
    if (!live)
        return;
    if (at == 0)
        args.rstd[i] = r;
    const int64_t angle = (int64_t)(i / args.heads) * args.half + at;
    float w[2][VECTOR], cosines[VECTOR], sines[VECTOR];
    load_vector(w[0], args.w + at);
    load_vector(w[1], args.w + at + args.half);
    load<VECTOR>(cosines, args.cosine + angle);
    load<VECTOR>(sines, args.sine + angle);
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
        low[j] = w[0][j] * (low[j] * r);
        high[j] = w[1][j] * (high[j] * r);
        rotate_pair(low[j], high[j], cosines[j], sines[j]);
    }
    store_vector(args.y + first, low);
    store_vector(args.y + first + args.half, high);
}

/* For any even length. */
static __global__ void __launch_bounds__(THREADS) fwd_loop_kernel(fwd args)
{
    const unsigned i = blockIdx.x * WARPS + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    if (i >= args.n)
        return;
    const bf16 *x = args.x + (int64_t)i * 2 * args.half;
    bf16 *y = args.y + (int64_t)i * 2 * args.half;
    const float *cosines = args.cosine + (int64_t)(i / args.heads) * args.half;
    const float *sines = args.sine + (int64_t)(i / args.heads) * args.half;
    float square = 0;
    for (int j = lane; j < 2 * args.half; j += LANES)
        square += to_float(x[j]) * to_float(x[j]);
    const float r = rsqrtf(warp_sum(square) / (float)(2 * args.half) + args.eps);
    if (lane == 0)
        args.rstd[i] = r;
    for (int j = lane; j < args.half; j += LANES) {
        float low = to_float(args.w[j]) * (to_float(x[j]) * r);
        float high = to_float(args.w[j + args.half]) * (to_float(x[j + args.half]) * r);
        rotate_pair(low, high, cosines[j], sines[j]);
        y[j] = to_bf16(low);
        y[j + args.half] = to_bf16(high);
    }
}

/* Whether half a head is made of pieces of eight elements, so that a lane can hold a pair of
 * pieces. */
static bool takes_pieces(int64_t half)
{
    return half % VECTOR == 0 && 2 * half <= HEAD_MOST;
}

extern "C" status cuda_norm_rope_fwd(stream *queue, const norm_rope_fwd_args *args)
{
    int64_t half = 0;
    TRY(norm_rope_half_dim(args->rows, args->heads, args->head_dim, &half));
    const fwd all = {(unsigned)(args->rows * args->heads),
                     (unsigned)args->heads,
                     (int)half,
                     (float)args->eps,
                     (const bf16 *)args->x,
                     (const bf16 *)args->w,
                     (const float *)args->cos,
                     (const float *)args->sin,
                     (bf16 *)args->y,
                     (float *)args->rstd};
    if (takes_pieces(half) && aligned16(args->x, args->w, args->cos, args->sin, args->y))
        return LAUNCH(queue, fwd_kernel, grid_of(ceil_div(all.n, GROUPS)), THREADS, 0, all);
    return LAUNCH(queue, fwd_loop_kernel, grid_of(ceil_div(all.n, WARPS)), THREADS, 0, all);
}

/* ---- backward ----
 * dn = dy turned back, g = dn w, xhat = x r:  dx = r (g - xhat mean(g xhat)); dw += dn xhat. */

/* What a lane needs of a head, as it lies in memory. */
typedef struct pieces {
    uint4 x[2], dy[2];
    float r;
} pieces;

static __device__ __forceinline__ pieces load_pieces(const bwd &args, unsigned index, int at)
{
    pieces cut = {};
    if (index >= args.n || at >= args.half)
        return cut;
    const int64_t first = (int64_t)index * 2 * args.half + at;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        cut.x[k] = *(const uint4 *)(args.x + first + k * args.half);
        cut.dy[k] = *(const uint4 *)(args.dy + first + k * args.half);
    }
    cut.r = args.rstd[index];
    return cut;
}

static __global__ void __launch_bounds__(THREADS, 2) bwd_kernel(bwd args)
{
    alignas(16) __shared__ float sums[GROUPS][HEAD_MOST]; /* stored 16 bytes at a time */
    const int group = threadIdx.x / GROUP, at = (int)(threadIdx.x % GROUP) * VECTOR;
    const unsigned first = blockIdx.x * args.part, end = min(first + args.part, args.n);
    uint4 w[2] = {};
    float dw[2][VECTOR] = {};
    if (at < args.half) {
        w[0] = *(const uint4 *)(args.w + at);
        w[1] = *(const uint4 *)(args.w + at + args.half);
    }
    pieces next = load_pieces(args, first + group < end ? first + group : args.n, at);
    for (unsigned base = first; base < end; base += GROUPS) {
        const unsigned i = base + group;
        const bool live = i < end && at < args.half;
        const pieces cut = next;
        next = load_pieces(args, i + GROUPS < end ? i + GROUPS : args.n, at);
        float x[2][VECTOR], g[2][VECTOR], cosines[VECTOR] = {}, sines[VECTOR] = {}, dot = 0;
        if (live) {
            const int64_t angle = (int64_t)(i / args.heads) * args.half + at;
            load<VECTOR>(cosines, args.cosine + angle);
            load<VECTOR>(sines, args.sine + angle);
        }
        float weight[2][VECTOR];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            unpack8(x[k], cut.x[k]);
            unpack8(g[k], cut.dy[k]);
            unpack8(weight[k], w[k]);
        }
#pragma unroll
        for (int element = 0; element < VECTOR; element++) {
            rotate_pair(g[0][element], g[1][element], cosines[element], -sines[element]);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                x[k][element] *= cut.r;
                if (live)
                    dw[k][element] += g[k][element] * x[k][element];
                g[k][element] *= weight[k][element];
                dot += g[k][element] * x[k][element];
            }
        }
        dot = group_sum(dot) / (float)(2 * args.half);
        if (!live)
            continue;
#pragma unroll
        for (int k = 0; k < 2; k++) {
#pragma unroll
            for (int element = 0; element < VECTOR; element++)
                g[k][element] = cut.r * (g[k][element] - x[k][element] * dot);
            store_vector(args.dx + (int64_t)i * 2 * args.half + at + k * args.half, g[k]);
        }
    }
    if (at < args.half)
#pragma unroll
        for (int k = 0; k < 2; k++)
            store<VECTOR>(&sums[group][at + k * args.half], dw[k]);
    __syncthreads();
    const int j = threadIdx.x;
    if (j >= 2 * args.half)
        return;
    float sum = 0;
#pragma unroll
    for (int at_group = 0; at_group < GROUPS; at_group++)
        sum += sums[at_group][j];
    args.partial[(int64_t)blockIdx.x * 2 * args.half + j] = sum;
}

/* For any even length: a warp works on one head at a time, and each lane adds its columns to the
 * warp's sums. */
static __global__ void __launch_bounds__(THREADS) bwd_loop_kernel(bwd args)
{
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const unsigned first = blockIdx.x * args.part, end = min(first + args.part, args.n);
    float *dw = args.partial + ((int64_t)blockIdx.x * WARPS + warp) * 2 * args.half;
    for (int j = lane; j < args.half; j += LANES)
        dw[j] = dw[j + args.half] = 0;
    for (unsigned i = first + warp; i < end; i += WARPS) {
        const bf16 *x = args.x + (int64_t)i * 2 * args.half,
                   *dy = args.dy + (int64_t)i * 2 * args.half;
        bf16 *dx = args.dx + (int64_t)i * 2 * args.half;
        const float *cosines = args.cosine + (int64_t)(i / args.heads) * args.half;
        const float *sines = args.sine + (int64_t)(i / args.heads) * args.half;
        const float r = args.rstd[i];
        float dot = 0;
        for (int j = lane; j < args.half; j += LANES) {
            float low = to_float(dy[j]), high = to_float(dy[j + args.half]);
            rotate_pair(low, high, cosines[j], -sines[j]);
            const float xl = to_float(x[j]) * r, xh = to_float(x[j + args.half]) * r;
            dw[j] += low * xl;
            dw[j + args.half] += high * xh;
            dot += low * to_float(args.w[j]) * xl + high * to_float(args.w[j + args.half]) * xh;
        }
        dot = warp_sum(dot) / (float)(2 * args.half);
        for (int j = lane; j < args.half; j += LANES) {
            float low = to_float(dy[j]), high = to_float(dy[j + args.half]);
            rotate_pair(low, high, cosines[j], -sines[j]);
            const float xl = to_float(x[j]) * r, xh = to_float(x[j + args.half]) * r;
            dx[j] = to_bf16(r * (low * to_float(args.w[j]) - xl * dot));
            dx[j + args.half] = to_bf16(r * (high * to_float(args.w[j + args.half]) - xh * dot));
        }
    }
}

extern "C" status cuda_norm_rope_bwd(stream *queue, const norm_rope_bwd_args *args)
{
    int64_t half = 0;
    void *partial = NULL;
    TRY(norm_rope_half_dim(args->rows, args->heads, args->head_dim, &half));
    const int64_t n = args->rows * args->heads, head_dim = args->head_dim;
    if (n == 0)
        return ST_OK;
    const bool vectors =
        takes_pieces(half) && aligned16(args->x, args->w, args->cos, args->sin, args->dy, args->dx);
    const int64_t each = ceil_div(n, PARTS_MOST), least = PART_LEAST;
    const int64_t part = each < least ? least : each;
    const int64_t blocks = ceil_div(n, part), parts = vectors ? blocks : blocks * WARPS;
    TRY(cuda_scratch(queue, (size_t)(parts * head_dim) * sizeof(float), &partial));
    const bwd all = {(unsigned)n,
                     (unsigned)args->heads,
                     (unsigned)part,
                     (int)half,
                     (const bf16 *)args->x,
                     (const bf16 *)args->w,
                     (const bf16 *)args->dy,
                     (const float *)args->cos,
                     (const float *)args->sin,
                     (const float *)args->rstd,
                     (bf16 *)args->dx,
                     (float *)partial};
    if (vectors)
        TRY(LAUNCH(queue, bwd_kernel, grid_of(blocks), THREADS, 0, all));
    else
        TRY(LAUNCH(queue, bwd_loop_kernel, grid_of(blocks), THREADS, 0, all));
    return columns_add(queue, parts, head_dim, head_dim, all.partial, (float *)args->dw);
}
