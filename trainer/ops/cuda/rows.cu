/* rows.cu: the ops of rows.h on CUDA in which each row of y has one writer: gather, scatter to
 * distinct rows, and weighted sums. scatter.cuh sums many rows into one.
 *
 * Bytes an element: gather 4 (2 for a row that is zeroed, less for one that stays), scatter 6 (10
 * into float), rows_weighted 4, since the table comes from the L2 cache. A block covers whole rows,
 * a thread moves 16 bytes, and all threads of a row read its index at the same time. */
#include "trainer/ops/cuda/kernel_launch.cuh"
#include "trainer/ops/cuda/scatter.cuh"

enum { CORNERS = 4 };

/* ---- gather; T is what a thread moves at once ---- */

template <class T> static __global__ void gather_kernel(rows_gather_args a, int64_t pieces)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= a.n)
        return;
    const int32_t from = a.index[i];
    if (from < 0 && a.keep)
        return;
    const T *x = (const T *)a.x + from * pieces;
    T *y = (T *)a.y + i * pieces;
    for (int64_t j = threadIdx.x; j < pieces; j += blockDim.x)
        y[j] = from >= 0 ? x[j] : T{};
}

extern "C" status cuda_rows_gather(stream *s, const rows_gather_args *a)
{
    const int64_t pieces = a->width / VECTOR;
    if (a->width % VECTOR == 0 && aligned16(a->x, a->y))
        return LAUNCH(s, gather_kernel<uint4>, tile_grid(a->n, pieces), tile_block(pieces), 0, *a,
                      pieces);
    return LAUNCH(s, gather_kernel<unsigned short>, tile_grid(a->n, a->width), tile_block(a->width),
                  0, *a, a->width);
}

/* ---- scatter of distinct rows ---- */

template <class Y, int WIDTH> static __global__ void distinct_kernel(rows_scatter_args a)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= a.n)
        return;
    const int32_t to = a.index[i];
    DEVICE_CHECK(to < a.y_rows);
    if (to < 0)
        return;
    for (int64_t j = threadIdx.x * WIDTH; j < a.width; j += blockDim.x * WIDTH) {
        float x[WIDTH], y[WIDTH];
        Y *at = (Y *)a.y + to * a.width + j;
        load<WIDTH>(x, (const bf16 *)a.x + i * a.width + j);
        load<WIDTH>(y, at);
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            y[k] += x[k];
        store<WIDTH>(at, y);
    }
}

template <class Y> static status scatter(stream *s, const rows_scatter_args *a)
{
    const bool wide = a->width % VECTOR == 0 && aligned16(a->x, a->y);
    const int64_t pieces = wide ? a->width / VECTOR : a->width;
    if (!a->distinct) {
        scatter_args<Y> all = {a->n,     a->width,           a->y_rows, 1,
                               a->index, (const bf16 *)a->x, (Y *)a->y, NULL};
        return scatter_sums(s, &all);
    }
    if (wide)
        return LAUNCH(s, (distinct_kernel<Y, VECTOR>), tile_grid(a->n, pieces), tile_block(pieces),
                      0, *a);
    return LAUNCH(s, (distinct_kernel<Y, 1>), tile_grid(a->n, pieces), tile_block(pieces), 0, *a);
}

extern "C" status cuda_rows_scatter(stream *s, const rows_scatter_args *a)
{
    return a->y_acc ? scatter<float>(s, a) : scatter<bf16>(s, a);
}

/* ---- weighted sums of four table rows ---- */

template <int WIDTH> static __global__ void weighted_kernel(rows_weighted_args a)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= a.n)
        return;
    const float *weight = (const float *)a.weight + i * CORNERS;
    const int32_t *index = a.index + i * CORNERS;
    for (int64_t j = threadIdx.x * WIDTH; j < a.width; j += blockDim.x * WIDTH) {
        float x[CORNERS][WIDTH], sum[WIDTH] = {}, y[WIDTH];
        bf16 *at = (bf16 *)a.y + i * a.width + j;
        load<WIDTH>(y, at);
#pragma unroll
        for (int q = 0; q < CORNERS; q++) {
            DEVICE_CHECK(index[q] >= 0 && index[q] < a.table_rows);
            load<WIDTH>(x[q], (const bf16 *)a.table + index[q] * a.width + j);
        }
#pragma unroll
        for (int q = 0; q < CORNERS; q++)
#pragma unroll
            for (int k = 0; k < WIDTH; k++)
                sum[k] += weight[q] * x[q][k];
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            y[k] += sum[k];
        store<WIDTH>(at, y);
    }
}

extern "C" status cuda_rows_weighted(stream *s, const rows_weighted_args *a)
{
    const int64_t pieces = a->width / VECTOR;
    if (a->width % VECTOR == 0 && aligned16(a->table, a->y))
        return LAUNCH(s, weighted_kernel<VECTOR>, tile_grid(a->n, pieces), tile_block(pieces), 0,
                      *a);
    return LAUNCH(s, weighted_kernel<1>, tile_grid(a->n, a->width), tile_block(a->width), 0, *a);
}

extern "C" status cuda_rows_weighted_bwd(stream *s, const rows_weighted_bwd_args *a)
{
    scatter_args<float> all = {
        a->n * CORNERS,      a->width,           a->table_rows,           CORNERS, a->index,
        (const bf16 *)a->dy, (float *)a->dtable, (const float *)a->weight};
    return scatter_sums(s, &all);
}
