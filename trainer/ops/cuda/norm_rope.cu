/* norm_rope.cu: RMSNorm of heads and their rotation (norm_rope.h) on CUDA.
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
    for (int with = GROUP / 2; with > 0; with /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, with);
    return x;
}

/* Rotates (low, high) by the angle; with -s, back. */
static __device__ __forceinline__ void rotate_pair(float &low, float &high, float c, float s)
{
    const float keep = low;
    low = keep * c - high * s;
    high = high * c + keep * s;
}

/* ---- forward ---- */

static __global__ void __launch_bounds__(THREADS) fwd_kernel(fwd a)
{
    const unsigned i = blockIdx.x * GROUPS + threadIdx.x / GROUP;
    const int at = (int)(threadIdx.x % GROUP) * VECTOR;
    const bool live = i < a.n && at < a.half; /* the other lanes only take part in the sum */
    const int64_t first = (int64_t)i * 2 * a.half + at;
    float low[VECTOR] = {}, high[VECTOR] = {};
    if (live) {
        load_vector(low, a.x + first);
        load_vector(high, a.x + first + a.half);
    }
    float square = 0;
#pragma unroll
    for (int e = 0; e < VECTOR; e++)
        square += low[e] * low[e] + high[e] * high[e];
    const float r = rsqrtf(group_sum(square) / (float)(2 * a.half) + a.eps);
    if (!live)
        return;
    if (at == 0)
        a.rstd[i] = r;
    const int64_t angle = (int64_t)(i / a.heads) * a.half + at;
    float w[2][VECTOR], c[VECTOR], s[VECTOR];
    load_vector(w[0], a.w + at);
    load_vector(w[1], a.w + at + a.half);
    load<VECTOR>(c, a.cosine + angle);
    load<VECTOR>(s, a.sine + angle);
#pragma unroll
    for (int e = 0; e < VECTOR; e++) {
        low[e] = w[0][e] * (low[e] * r);
        high[e] = w[1][e] * (high[e] * r);
        rotate_pair(low[e], high[e], c[e], s[e]);
    }
    store_vector(a.y + first, low);
    store_vector(a.y + first + a.half, high);
}

/* For any even length. */
static __global__ void __launch_bounds__(THREADS) fwd_loop_kernel(fwd a)
{
    const unsigned i = blockIdx.x * WARPS + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    if (i >= a.n)
        return;
    const bf16 *x = a.x + (int64_t)i * 2 * a.half;
    bf16 *y = a.y + (int64_t)i * 2 * a.half;
    const float *c = a.cosine + (int64_t)(i / a.heads) * a.half;
    const float *s = a.sine + (int64_t)(i / a.heads) * a.half;
    float square = 0;
    for (int j = lane; j < 2 * a.half; j += LANES)
        square += to_float(x[j]) * to_float(x[j]);
    const float r = rsqrtf(warp_sum(square) / (float)(2 * a.half) + a.eps);
    if (lane == 0)
        a.rstd[i] = r;
    for (int j = lane; j < a.half; j += LANES) {
        float low = to_float(a.w[j]) * (to_float(x[j]) * r);
        float high = to_float(a.w[j + a.half]) * (to_float(x[j + a.half]) * r);
        rotate_pair(low, high, c[j], s[j]);
        y[j] = to_bf16(low);
        y[j + a.half] = to_bf16(high);
    }
}

/* Whether half a head is made of pieces of eight elements, so that a lane can hold a pair of
 * pieces. */
static bool takes_pieces(int64_t half)
{
    return half % VECTOR == 0 && 2 * half <= HEAD_MOST;
}

extern "C" status cuda_norm_rope_fwd(stream *s, const norm_rope_fwd_args *a)
{
    int64_t half = 0;
    TRY(norm_rope_half_dim(a->rows, a->heads, a->head_dim, &half));
    const fwd f = {(unsigned)(a->rows * a->heads),
                   (unsigned)a->heads,
                   (int)half,
                   (float)a->eps,
                   (const bf16 *)a->x,
                   (const bf16 *)a->w,
                   (const float *)a->cos,
                   (const float *)a->sin,
                   (bf16 *)a->y,
                   (float *)a->rstd};
    if (takes_pieces(half) && aligned16(a->x, a->w, a->cos, a->sin, a->y))
        return LAUNCH(s, fwd_kernel, grid_of(ceil_div(f.n, GROUPS)), THREADS, 0, f);
    return LAUNCH(s, fwd_loop_kernel, grid_of(ceil_div(f.n, WARPS)), THREADS, 0, f);
}

/* ---- backward ----
 * dn = dy turned back, g = dn w, xhat = x r:  dx = r (g - xhat mean(g xhat)); dw += dn xhat. */

/* What a lane needs of a head, as it lies in memory. */
typedef struct pieces {
    uint4 x[2], dy[2];
    float r;
} pieces;

static __device__ __forceinline__ pieces load_pieces(const bwd &a, unsigned i, int at)
{
    pieces p = {};
    if (i >= a.n || at >= a.half)
        return p;
    const int64_t first = (int64_t)i * 2 * a.half + at;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        p.x[k] = *(const uint4 *)(a.x + first + k * a.half);
        p.dy[k] = *(const uint4 *)(a.dy + first + k * a.half);
    }
    p.r = a.rstd[i];
    return p;
}

static __global__ void __launch_bounds__(THREADS, 2) bwd_kernel(bwd a)
{
    alignas(16) __shared__ float sums[GROUPS][HEAD_MOST]; /* stored 16 bytes at a time */
    const int group = threadIdx.x / GROUP, at = (int)(threadIdx.x % GROUP) * VECTOR;
    const unsigned first = blockIdx.x * a.part, end = min(first + a.part, a.n);
    uint4 w[2] = {};
    float dw[2][VECTOR] = {};
    if (at < a.half) {
        w[0] = *(const uint4 *)(a.w + at);
        w[1] = *(const uint4 *)(a.w + at + a.half);
    }
    pieces next = load_pieces(a, first + group < end ? first + group : a.n, at);
    for (unsigned base = first; base < end; base += GROUPS) {
        const unsigned i = base + group;
        const bool live = i < end && at < a.half;
        const pieces p = next;
        next = load_pieces(a, i + GROUPS < end ? i + GROUPS : a.n, at);
        float x[2][VECTOR], g[2][VECTOR], c[VECTOR] = {}, s[VECTOR] = {}, dot = 0;
        if (live) {
            const int64_t angle = (int64_t)(i / a.heads) * a.half + at;
            load<VECTOR>(c, a.cosine + angle);
            load<VECTOR>(s, a.sine + angle);
        }
        float weight[2][VECTOR];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            unpack8(x[k], p.x[k]);
            unpack8(g[k], p.dy[k]);
            unpack8(weight[k], w[k]);
        }
#pragma unroll
        for (int e = 0; e < VECTOR; e++) {
            rotate_pair(g[0][e], g[1][e], c[e], -s[e]);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                x[k][e] *= p.r;
                if (live)
                    dw[k][e] += g[k][e] * x[k][e];
                g[k][e] *= weight[k][e];
                dot += g[k][e] * x[k][e];
            }
        }
        dot = group_sum(dot) / (float)(2 * a.half);
        if (!live)
            continue;
#pragma unroll
        for (int k = 0; k < 2; k++) {
#pragma unroll
            for (int e = 0; e < VECTOR; e++)
                g[k][e] = p.r * (g[k][e] - x[k][e] * dot);
            store_vector(a.dx + (int64_t)i * 2 * a.half + at + k * a.half, g[k]);
        }
    }
    if (at < a.half)
#pragma unroll
        for (int k = 0; k < 2; k++)
            store<VECTOR>(&sums[group][at + k * a.half], dw[k]);
    __syncthreads();
    const int j = threadIdx.x;
    if (j >= 2 * a.half)
        return;
    float sum = 0;
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        sum += sums[g][j];
    a.partial[(int64_t)blockIdx.x * 2 * a.half + j] = sum;
}

/* For any even length: a warp works on one head at a time, and each lane adds its columns to the
 * warp's sums. */
static __global__ void __launch_bounds__(THREADS) bwd_loop_kernel(bwd a)
{
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const unsigned first = blockIdx.x * a.part, end = min(first + a.part, a.n);
    float *dw = a.partial + ((int64_t)blockIdx.x * WARPS + warp) * 2 * a.half;
    for (int j = lane; j < a.half; j += LANES)
        dw[j] = dw[j + a.half] = 0;
    for (unsigned i = first + warp; i < end; i += WARPS) {
        const bf16 *x = a.x + (int64_t)i * 2 * a.half, *dy = a.dy + (int64_t)i * 2 * a.half;
        bf16 *dx = a.dx + (int64_t)i * 2 * a.half;
        const float *c = a.cosine + (int64_t)(i / a.heads) * a.half;
        const float *s = a.sine + (int64_t)(i / a.heads) * a.half;
        const float r = a.rstd[i];
        float dot = 0;
        for (int j = lane; j < a.half; j += LANES) {
            float low = to_float(dy[j]), high = to_float(dy[j + a.half]);
            rotate_pair(low, high, c[j], -s[j]);
            const float xl = to_float(x[j]) * r, xh = to_float(x[j + a.half]) * r;
            dw[j] += low * xl;
            dw[j + a.half] += high * xh;
            dot += low * to_float(a.w[j]) * xl + high * to_float(a.w[j + a.half]) * xh;
        }
        dot = warp_sum(dot) / (float)(2 * a.half);
        for (int j = lane; j < a.half; j += LANES) {
            float low = to_float(dy[j]), high = to_float(dy[j + a.half]);
            rotate_pair(low, high, c[j], -s[j]);
            const float xl = to_float(x[j]) * r, xh = to_float(x[j + a.half]) * r;
            dx[j] = to_bf16(r * (low * to_float(a.w[j]) - xl * dot));
            dx[j + a.half] = to_bf16(r * (high * to_float(a.w[j + a.half]) - xh * dot));
        }
    }
}

extern "C" status cuda_norm_rope_bwd(stream *s, const norm_rope_bwd_args *a)
{
    int64_t half = 0;
    void *partial = NULL;
    TRY(norm_rope_half_dim(a->rows, a->heads, a->head_dim, &half));
    const int64_t n = a->rows * a->heads, d = a->head_dim;
    if (n == 0)
        return ST_OK;
    const bool vectors = takes_pieces(half) && aligned16(a->x, a->w, a->cos, a->sin, a->dy, a->dx);
    const int64_t each = ceil_div(n, PARTS_MOST), least = PART_LEAST;
    const int64_t part = each < least ? least : each;
    const int64_t blocks = ceil_div(n, part), parts = vectors ? blocks : blocks * WARPS;
    TRY(cuda_scratch(s, (size_t)(parts * d) * sizeof(float), &partial));
    const bwd b = {
        (unsigned)n,           (unsigned)a->heads,     (unsigned)part,      (int)half,
        (const bf16 *)a->x,    (const bf16 *)a->w,     (const bf16 *)a->dy, (const float *)a->cos,
        (const float *)a->sin, (const float *)a->rstd, (bf16 *)a->dx,       (float *)partial};
    if (vectors)
        TRY(LAUNCH(s, bwd_kernel, grid_of(blocks), THREADS, 0, b));
    else
        TRY(LAUNCH(s, bwd_loop_kernel, grid_of(blocks), THREADS, 0, b));
    return columns_add(s, parts, d, d, b.partial, (float *)a->dw);
}
