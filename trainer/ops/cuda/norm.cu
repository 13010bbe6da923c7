/* norm.cu: RMSNorm and LayerNorm (norm.h) on CUDA.
 *
 * Forward: a group of threads (half a warp, a warp or, for wide rows, a block) holds a row in
 * registers, so that each element is read once and written once, 4 bytes in all. Backward: a block
 * walks over its part of the rows, starts loading the next row before it works on this one, and
 * keeps its columns' sums for dw and db in registers: 6 bytes an element (8 with dx_accumulate),
 * and partial sums that add under 5 %. Rows of odd lengths take plain loops that read them again
 * from the caches. Sums, statistics and products are in float; y and dx are rounded once. */
#include "trainer/ops/cuda/columns.cuh"

enum {
    THREADS = 256,
    HEAD_GROUP = 16, /* lanes that hold a row of up to 128 elements: the heads of q and k norm */
    HEAD_MOST = HEAD_GROUP * VECTOR,
    WIDE_VECTORS = 640, /* vectors of the longest row that is kept in registers: 5120 elements */
    /* The parts that the backward cuts the rows into, by shape alone: as many as an H200's 132
     * multiprocessors hold of blocks with 80 registers a thread, and fewer where parts would be
     * short. */
    MULTIPROCESSORS = 132,
    RESIDENT_THREADS = 768,
    PART_ROWS_LEAST = 8,
    HEAD_PART_ROWS_LEAST = 64
};

/* The arguments of both norms; for RMSNorm mean and b are left out. */
typedef struct fwd {
    int64_t rows, n;
    float eps;
    const bf16 *x, *w, *b;
    bf16 *y;
    float *mean, *rstd;
} fwd;

typedef struct bwd {
    int64_t rows, n, part_rows;
    const bf16 *x, *w, *dy;
    const float *mean, *rstd;
    bf16 *dx;
    bool accumulate;
    float *partial; /* partial sums: [parts, n] for dw, or [parts, 2, n] for dw and db */
} bwd;

/* The sum over the GROUP neighbouring threads that hold a row. A group that is wider than a warp is
 * the whole block. */
template <int GROUP> static __device__ __forceinline__ float group_sum(float x)
{
    if constexpr (GROUP > LANES) {
        return block_sum<GROUP / LANES>(x);
    } else {
#pragma unroll
        for (int with = GROUP / 2; with > 0; with /= 2)
            x += __shfl_xor_sync(0xffffffffu, x, with);
        return x;
    }
}

/* ---- forward ---- */

/* Each thread holds V vectors of a row. */
template <bool LAYER, int GROUP, int V>
static __global__ void __launch_bounds__(THREADS) fwd_kernel(fwd a)
{
    const int64_t row = (int64_t)blockIdx.x * (blockDim.x / GROUP) + threadIdx.x / GROUP;
    const int lane = threadIdx.x % GROUP, vectors = (int)(a.n / VECTOR);
    const bool live = row < a.rows; /* the other threads only take part in the sums */
    const bf16 *x = a.x + row * a.n;
    float v[V][VECTOR] = {};
#pragma unroll
    for (int k = 0; k < V; k++)
        if (live && lane + k * GROUP < vectors)
            load_vector(v[k], x + (lane + k * GROUP) * VECTOR);
    float mu = 0, square = 0;
    if constexpr (LAYER) {
#pragma unroll
        for (int k = 0; k < V; k++)
#pragma unroll
            for (int e = 0; e < VECTOR; e++)
                mu += v[k][e];
        mu = group_sum<GROUP>(mu) / (float)a.n;
    }
#pragma unroll
    for (int k = 0; k < V; k++)
        if (lane + k * GROUP < vectors)
#pragma unroll
            for (int e = 0; e < VECTOR; e++)
                square += (v[k][e] - mu) * (v[k][e] - mu);
    const float r = rsqrtf(group_sum<GROUP>(square) / (float)a.n + a.eps);
    if (!live)
        return;
    if (lane == 0) {
        a.rstd[row] = r;
        if (LAYER)
            a.mean[row] = mu;
    }
#pragma unroll
    for (int k = 0; k < V; k++) {
        const int at = (lane + k * GROUP) * VECTOR;
        if (at >= a.n)
            break;
        float w[VECTOR], b[VECTOR] = {};
        load_vector(w, a.w + at);
        if (LAYER)
            load_vector(b, a.b + at);
#pragma unroll
        for (int e = 0; e < VECTOR; e++)
            v[k][e] = w[e] * ((v[k][e] - mu) * r) + b[e];
        store_vector(a.y + row * a.n + at, v[k]);
    }
}

/* For any length: a warp owns a row. */
template <bool LAYER> static __global__ void fwd_loop_kernel(fwd a)
{
    const int64_t row = (int64_t)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    if (row >= a.rows)
        return;
    const bf16 *x = a.x + row * a.n;
    float mu = 0, square = 0;
    for (int64_t j = lane; j < a.n && LAYER; j += LANES)
        mu += to_float(x[j]);
    mu = warp_sum(mu) / (float)a.n;
    for (int64_t j = lane; j < a.n; j += LANES)
        square += (to_float(x[j]) - mu) * (to_float(x[j]) - mu);
    const float r = rsqrtf(warp_sum(square) / (float)a.n + a.eps);
    if (lane == 0) {
        a.rstd[row] = r;
        if (LAYER)
            a.mean[row] = mu;
    }
    for (int64_t j = lane; j < a.n; j += LANES)
        a.y[row * a.n + j] = to_bf16(to_float(a.w[j]) * ((to_float(x[j]) - mu) * r) +
                                     (LAYER ? to_float(a.b[j]) : 0));
}

template <bool LAYER, int GROUP, int V> static status fwd_launch(stream *s, const fwd *a)
{
    const int threads = GROUP > LANES ? GROUP : THREADS;
    return LAUNCH(s, (fwd_kernel<LAYER, GROUP, V>), grid_of(ceil_div(a->rows, threads / GROUP)),
                  threads, 0, *a);
}

template <bool LAYER> static status fwd_run(stream *s, const fwd *a)
{
    const int64_t vectors = a->n / VECTOR;
    if (a->n % VECTOR != 0 || vectors > WIDE_VECTORS || !aligned16(a->x, a->w, a->b, a->y))
        return LAUNCH(s, fwd_loop_kernel<LAYER>, grid_of(ceil_div(a->rows, THREADS / LANES)),
                      THREADS, 0, *a);
    if (vectors <= HEAD_GROUP)
        return fwd_launch<LAYER, HEAD_GROUP, 1>(s, a);
    if (vectors <= 64)
        return fwd_launch<LAYER, 32, 2>(s, a);
    if (vectors <= 160) /* 1152: the vision tower's 144 */
        return fwd_launch<LAYER, 32, 5>(s, a);
    if (vectors <= 256) /* 2048: the text tower's 256 */
        return fwd_launch<LAYER, 32, 8>(s, a);
    return fwd_launch<LAYER, 128, 5>(s, a); /* 4608: the mergers' 576 */
}

extern "C" status cuda_rmsnorm_fwd(stream *s, const rmsnorm_fwd_args *a)
{
    fwd f = {a->rows, a->n,         (float)a->eps, (const bf16 *)a->x, (const bf16 *)a->w,
             NULL,    (bf16 *)a->y, NULL,          (float *)a->rstd};
    return fwd_run<false>(s, &f);
}

extern "C" status cuda_layernorm_fwd(stream *s, const layernorm_fwd_args *a)
{
    fwd f = {a->rows,
             a->n,
             (float)a->eps,
             (const bf16 *)a->x,
             (const bf16 *)a->w,
             (const bf16 *)a->b,
             (bf16 *)a->y,
             (float *)a->mean,
             (float *)a->rstd};
    return fwd_run<true>(s, &f);
}

/* ---- backward ----
 * g = dy w, xhat = (x - mean) r:  dx = r (g - mean(g) - xhat mean(g xhat)), RMSNorm without
 * mean(g); dw += dy xhat, db += dy. */

/* What a thread needs of a row, as it lies in memory. */
typedef struct piece {
    uint4 x, dy, dx;
    float mean, r;
} piece;

template <bool LAYER>
static __device__ __forceinline__ piece load_piece(const bwd &a, int64_t row, int at)
{
    piece p = {};
    if (at < a.n) {
        const int64_t i = row * a.n + at;
        p.x = *(const uint4 *)(a.x + i);
        p.dy = *(const uint4 *)(a.dy + i);
        if (a.accumulate)
            p.dx = *(const uint4 *)(a.dx + i);
    }
    p.r = a.rstd[row];
    p.mean = LAYER ? a.mean[row] : 0;
    return p;
}

/* The two sums of a row: of g (LayerNorm only) and of g xhat. */
template <bool LAYER>
static __device__ __forceinline__ float2 piece_sums(const piece &p, const float (&w)[VECTOR])
{
    float x[VECTOR], dy[VECTOR];
    unpack8(x, p.x);
    unpack8(dy, p.dy);
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int e = 0; e < VECTOR; e++) {
        float g = dy[e] * w[e];
        if (LAYER)
            sum.x += g;
        sum.y += g * ((x[e] - p.mean) * p.r);
    }
    return sum;
}

/* Writes dx of a row. mean: the two sums over the row, divided by its length. */
template <bool LAYER>
static __device__ __forceinline__ void piece_finish(const bwd &a, const piece &p, int64_t row,
                                                    int at, const float (&w)[VECTOR], float2 mean,
                                                    float (&dw)[VECTOR], float (&db)[VECTOR])
{
    float x[VECTOR], dy[VECTOR], out[VECTOR];
    unpack8(x, p.x);
    unpack8(dy, p.dy);
    unpack8(out, p.dx); /* zeros where dx is not added to */
#pragma unroll
    for (int e = 0; e < VECTOR; e++) {
        float xhat = (x[e] - p.mean) * p.r;
        out[e] += p.r * (dy[e] * w[e] - mean.x - xhat * mean.y);
        dw[e] += dy[e] * xhat;
        if (LAYER)
            db[e] += dy[e];
    }
    store_vector(a.dx + row * a.n + at, out);
}

/* A block works on one row at a time, and each thread on one vector of it. */
template <bool LAYER, int MOST> static __global__ void __launch_bounds__(MOST) bwd_kernel(bwd a)
{
    /* Used in turn, so that one barrier per row is enough. */
    __shared__ float2 sums[2][MOST / LANES];
    const int at = (int)threadIdx.x * VECTOR, lane = threadIdx.x % LANES;
    const int warp = threadIdx.x / LANES, warps = blockDim.x / LANES;
    const int64_t first = blockIdx.x * a.part_rows, end = min(first + a.part_rows, a.rows);
    float w[VECTOR] = {}, dw[VECTOR] = {}, db[VECTOR] = {};
    if (at < a.n)
        load_vector(w, a.w + at);
    piece next = load_piece<LAYER>(a, first, at);
    for (int64_t row = first; row < end; row++) {
        const piece p = next;
        if (row + 1 < end)
            next = load_piece<LAYER>(a, row + 1, at);
        float2 sum = piece_sums<LAYER>(p, w);
        if (LAYER)
            sum.x = warp_sum(sum.x);
        sum.y = warp_sum(sum.y);
        float2 *turn = sums[row % 2];
        if (lane == 0)
            turn[warp] = sum;
        __syncthreads();
        sum = make_float2(0, 0);
        for (int i = 0; i < warps; i++) {
            sum.x += turn[i].x;
            sum.y += turn[i].y;
        }
        sum.x /= (float)a.n;
        sum.y /= (float)a.n;
        if (at < a.n)
            piece_finish<LAYER>(a, p, row, at, w, sum, dw, db);
    }
    if (at >= a.n)
        return;
    float *partial = a.partial + blockIdx.x * (LAYER ? 2 : 1) * a.n + at;
    store<VECTOR>(partial, dw);
    if (LAYER)
        store<VECTOR>(partial + a.n, db);
}

/* RMSNorm of heads: 16 lanes work on one row at a time, and the 16 groups of a block add their sums
 * in order at the end. */
static __global__ void __launch_bounds__(THREADS) bwd_heads_kernel(bwd a)
{
    enum { GROUPS = THREADS / HEAD_GROUP };
    __shared__ float sums[GROUPS][HEAD_MOST];
    const int at = (int)(threadIdx.x % HEAD_GROUP) * VECTOR, group = threadIdx.x / HEAD_GROUP;
    const int64_t first = blockIdx.x * a.part_rows, end = min(first + a.part_rows, a.rows);
    float w[VECTOR] = {}, dw[VECTOR] = {}, unused[VECTOR] = {};
    if (at < a.n)
        load_vector(w, a.w + at);
    piece next = {};
    if (first + group < end)
        next = load_piece<false>(a, first + group, at);
    for (int64_t base = first; base < end; base += GROUPS) {
        const int64_t row = base + group;
        const piece p = next;
        if (row + GROUPS < end)
            next = load_piece<false>(a, row + GROUPS, at);
        float2 sum = piece_sums<false>(p, w);
        sum.y = group_sum<HEAD_GROUP>(sum.y) / (float)a.n;
        if (row < end && at < a.n)
            piece_finish<false>(a, p, row, at, w, sum, dw, unused);
    }
#pragma unroll
    for (int e = 0; e < VECTOR; e++)
        sums[group][at + e] = dw[e];
    __syncthreads();
    const int j = threadIdx.x;
    if (j >= a.n)
        return;
    float sum = 0;
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        sum += sums[g][j];
    a.partial[blockIdx.x * a.n + j] = sum;
}

/* For any length: a block works on one row at a time, and each thread adds its columns to the
 * partial sums. */
template <bool LAYER> static __global__ void __launch_bounds__(THREADS) bwd_loop_kernel(bwd a)
{
    const int64_t first = blockIdx.x * a.part_rows, end = min(first + a.part_rows, a.rows);
    float *dw = a.partial + blockIdx.x * (LAYER ? 2 : 1) * a.n, *db = dw + a.n;
    for (int64_t j = threadIdx.x; j < a.n; j += THREADS) {
        dw[j] = 0;
        if (LAYER)
            db[j] = 0;
    }
    for (int64_t row = first; row < end; row++) {
        const bf16 *x = a.x + row * a.n, *dy = a.dy + row * a.n;
        bf16 *dx = a.dx + row * a.n;
        const float r = a.rstd[row], mu = LAYER ? a.mean[row] : 0;
        float sum = 0, dot = 0;
        for (int64_t j = threadIdx.x; j < a.n; j += THREADS) {
            float g = to_float(dy[j]) * to_float(a.w[j]);
            sum += LAYER ? g : 0;
            dot += g * ((to_float(x[j]) - mu) * r);
        }
        sum = block_sum<THREADS / LANES>(sum) / (float)a.n;
        dot = block_sum<THREADS / LANES>(dot) / (float)a.n;
        for (int64_t j = threadIdx.x; j < a.n; j += THREADS) {
            float xhat = (to_float(x[j]) - mu) * r, up = to_float(dy[j]);
            float old = a.accumulate ? to_float(dx[j]) : 0;
            dx[j] = to_bf16(old + r * (up * to_float(a.w[j]) - sum - xhat * dot));
            dw[j] += up * xhat;
            if (LAYER)
                db[j] += up;
        }
    }
}

/* How many rows one part has. */
static int64_t cut_rows(int64_t rows, int threads, int64_t least)
{
    const int blocks = RESIDENT_THREADS / threads;
    const int64_t each = ceil_div(rows, MULTIPROCESSORS * (blocks > 1 ? blocks : 1));
    return each < least ? least : each;
}

template <bool LAYER> static status bwd_run(stream *s, bwd a, float *dw, float *db)
{
    const bool vectors =
        a.n % VECTOR == 0 && a.n / VECTOR <= WIDE_VECTORS && aligned16(a.x, a.w, a.dy, a.dx);
    const bool heads = vectors && !LAYER && a.n <= HEAD_MOST;
    const int row_threads = (int)(ceil_div(a.n, VECTOR * LANES) * LANES);
    const int threads = heads || !vectors ? THREADS : row_threads;
    const int64_t stride = (LAYER ? 2 : 1) * a.n;
    if (a.rows == 0 || a.n == 0)
        return ST_OK;
    a.part_rows = cut_rows(a.rows, threads, heads ? HEAD_PART_ROWS_LEAST : PART_ROWS_LEAST);
    const int64_t parts = ceil_div(a.rows, a.part_rows);
    void *partial = NULL;
    TRY(cuda_scratch(s, (size_t)(parts * stride) * sizeof(float), &partial));
    a.partial = (float *)partial;
    auto norm_bwd = heads                ? bwd_heads_kernel
                    : !vectors           ? bwd_loop_kernel<LAYER>
                    : threads <= THREADS ? bwd_kernel<LAYER, THREADS>
                                         : bwd_kernel<LAYER, WIDE_VECTORS>;
    TRY(LAUNCH(s, norm_bwd, grid_of(parts), threads, 0, a));
    TRY(columns_add(s, parts, a.n, stride, a.partial, dw));
    return LAYER ? columns_add(s, parts, a.n, stride, a.partial + a.n, db) : ST_OK;
}

extern "C" status cuda_rmsnorm_bwd(stream *s, const rmsnorm_bwd_args *a)
{
    bwd b = {};
    b.rows = a->rows;
    b.n = a->n;
    b.x = (const bf16 *)a->x;
    b.w = (const bf16 *)a->w;
    b.dy = (const bf16 *)a->dy;
    b.rstd = (const float *)a->rstd;
    b.dx = (bf16 *)a->dx;
    b.accumulate = a->dx_accumulate;
    return bwd_run<false>(s, b, (float *)a->dw, NULL);
}

extern "C" status cuda_layernorm_bwd(stream *s, const layernorm_bwd_args *a)
{
    bwd b = {};
    b.rows = a->rows;
    b.n = a->n;
    b.x = (const bf16 *)a->x;
    b.w = (const bf16 *)a->w;
    b.dy = (const bf16 *)a->dy;
    b.mean = (const float *)a->mean;
    b.rstd = (const float *)a->rstd;
    b.dx = (bf16 *)a->dx;
    b.accumulate = a->dx_accumulate;
    return bwd_run<true>(s, b, (float *)a->dw, (float *)a->db);
}
