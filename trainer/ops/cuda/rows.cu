/* rows.cu: the ops of rows.h on CUDA in which each row of y has one writer: gather, scatter to
 * distinct rows, and weighted sums. scatter.cuh sums many rows into one.
 *
 * Bytes an element of y: gather 4 (2 for a row that is zeroed, less for one that stays; 2 + 2 /
 * copies where places are given), scatter 6 (10 into float), rows_weighted 4, since the table comes
 * from the L2 cache. A block covers whole rows, a thread moves 16 bytes, and all threads of a row
 * read its index at the same time. */
#include "trainer/ops/cuda/kernel_launch.cuh"
#include "trainer/ops/cuda/scatter.cuh"

enum { CORNERS = 4 };

/* ---- gather; T is what a thread moves at once ---- */

template <class T> static __global__ void gather_kernel(rows_gather_args args, int64_t pieces)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= args.n)
        return;
    const int32_t from = args.index[i];
    if (from < 0 && args.keep)
        return;
    const T *x = (const T *)args.x + from * pieces;
    T *y = (T *)args.y + i * pieces;
    for (int64_t j = threadIdx.x; j < pieces; j += blockDim.x)
        y[j] = from >= 0 ? x[j] : T{};
}

/* A row of x is read once and written to all its places; the same threads zero those of the rows
 * [i copies, (i + 1) copies) of y that have no source. */
template <class T> static __global__ void spread_kernel(rows_gather_args args, int64_t pieces)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= args.n / args.copies)
        return;
    const T *x = (const T *)args.x + i * pieces;
    T *y = (T *)args.y;
    const int64_t first = i * args.copies;
    for (int64_t j = threadIdx.x; j < pieces; j += blockDim.x) {
        const T piece = x[j];
        for (int64_t k = first; k < first + args.copies; k++) {
            const int32_t to = args.places[k];
            DEVICE_CHECK(to < args.n);
            if (to >= 0)
                y[to * pieces + j] = piece;
            if (args.index[k] < 0)
                y[k * pieces + j] = T{};
        }
    }
}

static status spread(stream *queue, const rows_gather_args *args)
{
    const int64_t pieces = args->width / VECTOR, rows = args->n / args->copies;
    if (args->width % VECTOR == 0 && aligned16(args->x, args->y))
        return LAUNCH(queue, spread_kernel<uint4>, tile_grid(rows, pieces), tile_block(pieces), 0,
                      *args, pieces);
    return LAUNCH(queue, spread_kernel<unsigned short>, tile_grid(rows, args->width),
                  tile_block(args->width), 0, *args, args->width);
}

extern "C" status cuda_rows_gather(stream *queue, const rows_gather_args *args)
{
    if (args->places)
        return spread(queue, args);
    const int64_t pieces = args->width / VECTOR;
    if (args->width % VECTOR == 0 && aligned16(args->x, args->y))
        return LAUNCH(queue, gather_kernel<uint4>, tile_grid(args->n, pieces), tile_block(pieces),
                      0, *args, pieces);
    return LAUNCH(queue, gather_kernel<unsigned short>, tile_grid(args->n, args->width),
                  tile_block(args->width), 0, *args, args->width);
}

/* ---- scatter of distinct rows ---- */

template <class Y, int WIDTH> static __global__ void distinct_kernel(rows_scatter_args args)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= args.n)
        return;
    const int32_t to = args.index[i];
    DEVICE_CHECK(to < args.y_rows);
    if (to < 0)
        return;
    for (int64_t j = threadIdx.x * WIDTH; j < args.width; j += blockDim.x * WIDTH) {
        float x[WIDTH], y[WIDTH];
        Y *at = (Y *)args.y + to * args.width + j;
        load<WIDTH>(x, (const bf16 *)args.x + i * args.width + j);
        load<WIDTH>(y, at);
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            y[k] += x[k];
        store<WIDTH>(at, y);
    }
}

template <class Y> static status scatter(stream *queue, const rows_scatter_args *args)
{
    const bool wide = args->width % VECTOR == 0 && aligned16(args->x, args->y);
    const int64_t pieces = wide ? args->width / VECTOR : args->width;
    if (!args->distinct) {
        scatter_args<Y> all = {args->n,     args->width,           args->y_rows, 1,
                               args->index, (const bf16 *)args->x, (Y *)args->y, NULL};
        return scatter_sums(queue, &all);
    }
    if (wide)
        return LAUNCH(queue, (distinct_kernel<Y, VECTOR>), tile_grid(args->n, pieces),
                      tile_block(pieces), 0, *args);
    return LAUNCH(queue, (distinct_kernel<Y, 1>), tile_grid(args->n, pieces), tile_block(pieces), 0,
                  *args);
}

extern "C" status cuda_rows_scatter(stream *queue, const rows_scatter_args *args)
{
    return args->y_acc ? scatter<float>(queue, args) : scatter<bf16>(queue, args);
}

/* ---- weighted sums of four table rows ---- */

template <int WIDTH> static __global__ void weighted_kernel(rows_weighted_args args)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= args.n)
        return;
    const float *weight = (const float *)args.weight + i * CORNERS;
    const int32_t *index = args.index + i * CORNERS;
    for (int64_t j = threadIdx.x * WIDTH; j < args.width; j += blockDim.x * WIDTH) {
        float x[CORNERS][WIDTH], sum[WIDTH] = {}, y[WIDTH];
        bf16 *at = (bf16 *)args.y + i * args.width + j;
        load<WIDTH>(y, at);
#pragma unroll
        for (int piece = 0; piece < CORNERS; piece++) {
            DEVICE_CHECK(index[piece] >= 0 && index[piece] < args.table_rows);
            load<WIDTH>(x[piece], (const bf16 *)args.table + index[piece] * args.width + j);
        }
#pragma unroll
        for (int piece = 0; piece < CORNERS; piece++)
#pragma unroll
            for (int k = 0; k < WIDTH; k++)
                sum[k] += weight[piece] * x[piece][k];
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            y[k] += sum[k];
        store<WIDTH>(at, y);
    }
}

extern "C" status cuda_rows_weighted(stream *queue, const rows_weighted_args *args)
{
    const int64_t pieces = args->width / VECTOR;
    if (args->width % VECTOR == 0 && aligned16(args->table, args->y))
        return LAUNCH(queue, weighted_kernel<VECTOR>, tile_grid(args->n, pieces),
                      tile_block(pieces), 0, *args);
    return LAUNCH(queue, weighted_kernel<1>, tile_grid(args->n, args->width),
                  tile_block(args->width), 0, *args);
}

extern "C" status cuda_rows_weighted_bwd(stream *queue, const rows_weighted_bwd_args *args)
{
    scatter_args<float> all = {args->n * CORNERS,     args->width,
                               args->table_rows,      CORNERS,
                               args->index,           (const bf16 *)args->dy,
                               (float *)args->dtable, (const float *)args->weight};
    return scatter_sums(queue, &all);
}
