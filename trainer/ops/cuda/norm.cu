/* SPDX-License-Identifier: Apache-2.0 */
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
        for (int offset = GROUP / 2; offset > 0; offset /= 2)
            x += __shfl_xor_sync(0xffffffffu, x, offset);
        return x;
    }
}

/* ---- forward ---- */

/* Each thread holds V vectors of a row. */
template <bool LAYER, int GROUP, int V>
static __global__ void __launch_bounds__(THREADS) fwd_kernel(fwd args)
{
    const int64_t row = (int64_t)blockIdx.x * (blockDim.x / GROUP) + threadIdx.x / GROUP;
    const int lane = threadIdx.x % GROUP, vectors = (int)(args.n / VECTOR);
    const bool live = row < args.rows; /* the other threads only take part in the sums */
    const bf16 *x = args.x + row * args.n;
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
            for (int i = 0; i < VECTOR; i++)
                mu += v[k][i];
        mu = group_sum<GROUP>(mu) / (float)args.n;
    }
#pragma unroll
    for (int k = 0; k < V; k++)
        if (lane + k * GROUP < vectors)
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                square += (v[k][i] - mu) * (v[k][i] - mu);
    const float r = rsqrtf(group_sum<GROUP>(square) / (float)args.n + args.eps);
    if (!live)
        return;
    if (lane == 0) {
        args.rstd[row] = r;
        if (LAYER)
            args.mean[row] = mu;
    }
#pragma unroll
    for (int k = 0; k < V; k++) {
        const int at = (lane + k * GROUP) * VECTOR;
        if (at >= args.n)
            break;
        float w[VECTOR], b[VECTOR] = {};
        load_vector(w, args.w + at);
        if (LAYER)
            load_vector(b, args.b + at);
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            v[k][i] = w[i] * ((v[k][i] - mu) * r) + b[i];
        store_vector(args.y + row * args.n + at, v[k]);
    }
}

/* For any length: a warp owns a row. */
template <bool LAYER> static __global__ void fwd_loop_kernel(fwd args)
{
    const int64_t row = (int64_t)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    if (row >= args.rows)
        return;
    const bf16 *x = args.x + row * args.n;
    float mu = 0, square = 0;
    for (int64_t j = lane; j < args.n && LAYER; j += LANES)
        mu += to_float(x[j]);
    mu = warp_sum(mu) / (float)args.n;
    for (int64_t j = lane; j < args.n; j += LANES)
        square += (to_float(x[j]) - mu) * (to_float(x[j]) - mu);
    const float r = rsqrtf(warp_sum(square) / (float)args.n + args.eps);
    if (lane == 0) {
        args.rstd[row] = r;
        if (LAYER)
            args.mean[row] = mu;
    }
    for (int64_t j = lane; j < args.n; j += LANES)
        args.y[row * args.n + j] = to_bf16(to_float(args.w[j]) * ((to_float(x[j]) - mu) * r) +
                                           (LAYER ? to_float(args.b[j]) : 0));
}

template <bool LAYER, int GROUP, int V> static status fwd_launch(stream *queue, const fwd *args)
{
    const int threads = GROUP > LANES ? GROUP : THREADS;
    return LAUNCH(queue, (fwd_kernel<LAYER, GROUP, V>),
                  grid_of(ceil_div(args->rows, threads / GROUP)), threads, 0, *args);
}

template <bool LAYER> static status fwd_run(stream *queue, const fwd *args)
{
    const int64_t vectors = args->n / VECTOR;
    if (args->n % VECTOR != 0 || vectors > WIDE_VECTORS ||
        !aligned16(args->x, args->w, args->b, args->y))
        return LAUNCH(queue, fwd_loop_kernel<LAYER>, grid_of(ceil_div(args->rows, THREADS / LANES)),
                      THREADS, 0, *args);
    if (vectors <= HEAD_GROUP)
        return fwd_launch<LAYER, HEAD_GROUP, 1>(queue, args);
    if (vectors <= 64)
        return fwd_launch<LAYER, 32, 2>(queue, args);
    if (vectors <= 160) /* 1152: the vision tower's 144 */
        return fwd_launch<LAYER, 32, 5>(queue, args);
    if (vectors <= 256) /* 2048: the text tower's 256 */
        return fwd_launch<LAYER, 32, 8>(queue, args);
    return fwd_launch<LAYER, 128, 5>(queue, args); /* 4608: the mergers' 576 */
}

extern "C" status cuda_rmsnorm_fwd(stream *queue, const rmsnorm_fwd_args *args)
{
    fwd all = {args->rows,
               args->n,
               (float)args->eps,
               (const bf16 *)args->x,
               (const bf16 *)args->w,
               NULL,
               (bf16 *)args->y,
               NULL,
               (float *)args->rstd};
    return fwd_run<false>(queue, &all);
}

extern "C" status cuda_layernorm_fwd(stream *queue, const layernorm_fwd_args *args)
{
    fwd all = {args->rows,
               args->n,
               (float)args->eps,
               (const bf16 *)args->x,
               (const bf16 *)args->w,
               (const bf16 *)args->b,
               (bf16 *)args->y,
               (float *)args->mean,
               (float *)args->rstd};
    return fwd_run<true>(queue, &all);
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
static __device__ __forceinline__ piece load_piece(const bwd &args, int64_t row, int at)
{
    piece at_piece = {};
    if (at < args.n) {
        const int64_t i = row * args.n + at;
        at_piece.x = *(const uint4 *)(args.x + i);
        at_piece.dy = *(const uint4 *)(args.dy + i);
        if (args.accumulate)
            at_piece.dx = *(const uint4 *)(args.dx + i);
    }
    at_piece.r = args.rstd[row];
    at_piece.mean = LAYER ? args.mean[row] : 0;
    return at_piece;
}

/* The two sums of a row: of g (LayerNorm only) and of g xhat. */
template <bool LAYER>
static __device__ __forceinline__ float2 piece_sums(const piece &at_piece, const float (&w)[VECTOR])
{
    float x[VECTOR], dy[VECTOR];
    unpack8(x, at_piece.x);
    unpack8(dy, at_piece.dy);
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        float g = dy[i] * w[i];
        if (LAYER)
            sum.x += g;
        sum.y += g * ((x[i] - at_piece.mean) * at_piece.r);
    }
    return sum;
}

/* Writes dx of a row. mean: the two sums over the row, divided by its length. */
template <bool LAYER>
static __device__ __forceinline__ void
piece_finish(const bwd &args, const piece &at_piece, int64_t row, int at, const float (&w)[VECTOR],
             float2 mean, float (&dw)[VECTOR], float (&db)[VECTOR])
{
    float x[VECTOR], dy[VECTOR], out[VECTOR];
    unpack8(x, at_piece.x);
    unpack8(dy, at_piece.dy);
    unpack8(out, at_piece.dx); /* zeros where dx is not added to */
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        float xhat = (x[i] - at_piece.mean) * at_piece.r;
        out[i] += at_piece.r * (dy[i] * w[i] - mean.x - xhat * mean.y);
        dw[i] += dy[i] * xhat;
        if (LAYER)
            db[i] += dy[i];
    }
    store_vector(args.dx + row * args.n + at, out);
}

/* A block works on one row at a time, and each thread on one vector of it. */
template <bool LAYER, int MOST> static __global__ void __launch_bounds__(MOST) bwd_kernel(bwd args)
{
    /* Used in turn, so that one barrier per row is enough. */
    __shared__ float2 sums[2][MOST / LANES];
    const int at = (int)threadIdx.x * VECTOR, lane = threadIdx.x % LANES;
    const int warp = threadIdx.x / LANES, warps = blockDim.x / LANES;
    const int64_t first = blockIdx.x * args.part_rows, end = min(first + args.part_rows, args.rows);
    float w[VECTOR] = {}, dw[VECTOR] = {}, db[VECTOR] = {};
    if (at < args.n)
        load_vector(w, args.w + at);
    piece next = load_piece<LAYER>(args, first, at);
    for (int64_t row = first; row < end; row++) {
        const piece at_piece = next;
        if (row + 1 < end)
            next = load_piece<LAYER>(args, row + 1, at);
        float2 sum = piece_sums<LAYER>(at_piece, w);
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
        sum.x /= (float)args.n;
        sum.y /= (float)args.n;
        if (at < args.n)
            piece_finish<LAYER>(args, at_piece, row, at, w, sum, dw, db);
    }
    if (at >= args.n)
        return;
    float *partial = args.partial + blockIdx.x * (LAYER ? 2 : 1) * args.n + at;
    store<VECTOR>(partial, dw);
    if (LAYER)
        store<VECTOR>(partial + args.n, db);
}

/* RMSNorm of heads: 16 lanes work on one row at a time, and the 16 groups of a block add their sums
 * in order at the end. */
static __global__ void __launch_bounds__(THREADS) bwd_heads_kernel(bwd args)
{
    enum { GROUPS = THREADS / HEAD_GROUP };
    __shared__ float sums[GROUPS][HEAD_MOST];
    const int at = (int)(threadIdx.x % HEAD_GROUP) * VECTOR, group = threadIdx.x / HEAD_GROUP;
    const int64_t first = blockIdx.x * args.part_rows, end = min(first + args.part_rows, args.rows);
    float w[VECTOR] = {}, dw[VECTOR] = {}, unused[VECTOR] = {};
    if (at < args.n)
        load_vector(w, args.w + at);
    piece next = {};
    if (first + group < end)
        next = load_piece<false>(args, first + group, at);
    for (int64_t base = first; base < end; base += GROUPS) {
        const int64_t row = base + group;
        const piece at_piece = next;
        if (row + GROUPS < end)
            next = load_piece<false>(args, row + GROUPS, at);
        float2 sum = piece_sums<false>(at_piece, w);
        sum.y = group_sum<HEAD_GROUP>(sum.y) / (float)args.n;
        if (row < end && at < args.n)
            piece_finish<false>(args, at_piece, row, at, w, sum, dw, unused);
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        sums[group][at + i] = dw[i];
    __syncthreads();
    const int j = threadIdx.x;
    if (j >= args.n)
        return;
    float sum = 0;
#pragma unroll
    for (int k = 0; k < GROUPS; k++)
        sum += sums[k][j];
    args.partial[blockIdx.x * args.n + j] = sum;
}

/* For any length: a block works on one row at a time, and each thread adds its columns to the
 * partial sums. */
template <bool LAYER> static __global__ void __launch_bounds__(THREADS) bwd_loop_kernel(bwd args)
{
    const int64_t first = blockIdx.x * args.part_rows, end = min(first + args.part_rows, args.rows);
    float *dw = args.partial + blockIdx.x * (LAYER ? 2 : 1) * args.n, *db = dw + args.n;
    for (int64_t j = threadIdx.x; j < args.n; j += THREADS) {
        dw[j] = 0;
        if (LAYER)
            db[j] = 0;
    }
    for (int64_t row = first; row < end; row++) {
        const bf16 *x = args.x + row * args.n, *dy = args.dy + row * args.n;
        bf16 *dx = args.dx + row * args.n;
        const float r = args.rstd[row], mu = LAYER ? args.mean[row] : 0;
        float sum = 0, dot = 0;
        for (int64_t j = threadIdx.x; j < args.n; j += THREADS) {
            float g = to_float(dy[j]) * to_float(args.w[j]);
            sum += LAYER ? g : 0;
            dot += g * ((to_float(x[j]) - mu) * r);
        }
        sum = block_sum<THREADS / LANES>(sum) / (float)args.n;
        dot = block_sum<THREADS / LANES>(dot) / (float)args.n;
        for (int64_t j = threadIdx.x; j < args.n; j += THREADS) {
            float xhat = (to_float(x[j]) - mu) * r, up = to_float(dy[j]);
            float old = args.accumulate ? to_float(dx[j]) : 0;
            dx[j] = to_bf16(old + r * (up * to_float(args.w[j]) - sum - xhat * dot));
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

template <bool LAYER> static status bwd_run(stream *queue, bwd args, float *dw, float *db)
{
    const bool vectors = args.n % VECTOR == 0 && args.n / VECTOR <= WIDE_VECTORS &&
                         aligned16(args.x, args.w, args.dy, args.dx);
    const bool heads = vectors && !LAYER && args.n <= HEAD_MOST;
    const int row_threads = (int)(ceil_div(args.n, VECTOR * LANES) * LANES);
    const int threads = heads || !vectors ? THREADS : row_threads;
    const int64_t stride = (LAYER ? 2 : 1) * args.n;
    if (args.rows == 0 || args.n == 0)
        return ST_OK;
    args.part_rows = cut_rows(args.rows, threads, heads ? HEAD_PART_ROWS_LEAST : PART_ROWS_LEAST);
    const int64_t parts = ceil_div(args.rows, args.part_rows);
    void *partial = NULL;
    TRY(cuda_scratch(queue, (size_t)(parts * stride) * sizeof(float), &partial));
    args.partial = (float *)partial;
    auto norm_bwd = heads                ? bwd_heads_kernel
                    : !vectors           ? bwd_loop_kernel<LAYER>
                    : threads <= THREADS ? bwd_kernel<LAYER, THREADS>
                                         : bwd_kernel<LAYER, WIDE_VECTORS>;
    TRY(LAUNCH(queue, norm_bwd, grid_of(parts), threads, 0, args));
    TRY(columns_add(queue, parts, args.n, stride, args.partial, dw));
    return LAYER ? columns_add(queue, parts, args.n, stride, args.partial + args.n, db) : ST_OK;
}

extern "C" status cuda_rmsnorm_bwd(stream *queue, const rmsnorm_bwd_args *args)
{
    bwd all = {};
    all.rows = args->rows;
    all.n = args->n;
    all.x = (const bf16 *)args->x;
    all.w = (const bf16 *)args->w;
    all.dy = (const bf16 *)args->dy;
    all.rstd = (const float *)args->rstd;
    all.dx = (bf16 *)args->dx;
    all.accumulate = args->dx_accumulate;
    return bwd_run<false>(queue, all, (float *)args->dw, NULL);
}

extern "C" status cuda_layernorm_bwd(stream *queue, const layernorm_bwd_args *args)
{
    bwd all = {};
    all.rows = args->rows;
    all.n = args->n;
    all.x = (const bf16 *)args->x;
    all.w = (const bf16 *)args->w;
    all.dy = (const bf16 *)args->dy;
    all.mean = (const float *)args->mean;
    all.rstd = (const float *)args->rstd;
    all.dx = (bf16 *)args->dx;
    all.accumulate = args->dx_accumulate;
    return bwd_run<true>(queue, all, (float *)args->dw, (float *)args->db);
}
