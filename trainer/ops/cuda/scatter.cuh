/* scatter.cuh: sums many rows into one with the same bits every time: y[index[c]] += weight[c] x[c
 * / per], for every item c.
 *
 * Each target gets a list of its items: the items are counted, the lists are laid out one after the
 * other, and the items are put into them. Which list lies where, and in which order items arrive in
 * it, is left to integer atomics; a list is sorted before it is summed, so that sums see items in
 * ascending order. A short list is summed by one warp in that order. A long one is summed by the
 * eight warps of a block, an eighth of the list each, whose sums are added in order.
 *
 * Bytes: each row of x once per item; y read and written once per target that occurs; and 16 bytes
 * an item and 16 a target row for the lists. Items with a negative index or weight 0 count for
 * nothing. */
#ifndef TESSERA_TRAINER_OPS_CUDA_SCATTER_CUH
#define TESSERA_TRAINER_OPS_CUDA_SCATTER_CUH

#include "trainer/ops/cuda/kernel_launch.cuh"

template <class Y> struct scatter_args {
    int64_t items, width, y_rows;
    int per; /* items that belong to one row of x */
    const int32_t *index;
    const bf16 *x;
    Y *y;
    const float *weight; /* NULL: all 1 */
};

/* The lists, in scratch. */
typedef struct scatter_lists {
    int32_t *count, *filled, *start; /* [y_rows] */
    /* [1]: laid: items in lists so far; n_long: how many long lists there are. */
    int32_t *laid, *n_long;
    int32_t *list;  /* [items] */
    int32_t *longs; /* [items / 32]: targets of long lists */
} scatter_lists;

enum {
    SCATTER_THREADS = 256,
    SCATTER_WARPS = SCATTER_THREADS / LANES,
    SHORT_LIST = LANES, /* one item per lane */
    WINDOW = 1024,      /* items of a long list that are sorted at once */
    /* Blocks that walk over all long lists: four on each multiprocessor of an H200. */
    LONG_BLOCKS = 132 * 4
};

/* The target of item c, or -1 if it has none. Weighted items have no negative index. */
template <class Y>
static __device__ __forceinline__ int32_t target_of(const scatter_args<Y> &a, int64_t c)
{
    const int32_t to = a.index[c];
    DEVICE_CHECK(to < a.y_rows && (to >= 0 || !a.weight));
    return a.weight && a.weight[c] == 0 ? -1 : to;
}

template <class Y> static __global__ void count_kernel(scatter_args<Y> a, scatter_lists l)
{
    const int64_t c = (int64_t)blockIdx.x * SCATTER_THREADS + threadIdx.x;
    const int32_t to = c < a.items ? target_of(a, c) : -1;
    if (to >= 0)
        atomicAdd(l.count + to, 1);
}

static __global__ void start_kernel(int64_t y_rows, scatter_lists l)
{
    const int64_t to = (int64_t)blockIdx.x * SCATTER_THREADS + threadIdx.x;
    const int32_t count = to < y_rows ? l.count[to] : 0;
    if (count == 0)
        return;
    l.start[to] = atomicAdd(l.laid, count);
    if (count > SHORT_LIST)
        l.longs[atomicAdd(l.n_long, 1)] = (int32_t)to;
}

template <class Y> static __global__ void fill_kernel(scatter_args<Y> a, scatter_lists l)
{
    const int64_t c = (int64_t)blockIdx.x * SCATTER_THREADS + threadIdx.x;
    const int32_t to = c < a.items ? target_of(a, c) : -1;
    if (to >= 0)
        l.list[l.start[to] + atomicAdd(l.filled + to, 1)] = (int32_t)c;
}

/* sum += the items [from, end) of a sorted list, for the columns from j on. */
template <class Y, int WIDTH>
static __device__ __forceinline__ void add_items(const scatter_args<Y> &a, const int32_t *sorted,
                                                 int from, int end, int64_t j, float (&sum)[WIDTH])
{
#pragma unroll 4
    for (int i = from; i < end; i++) {
        const int32_t c = sorted[i];
        const float w = a.weight ? a.weight[c] : 1;
        float x[WIDTH];
        load<WIDTH>(x, a.x + c / a.per * a.width + j);
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            sum[k] += w * x[k];
    }
}

template <class Y, int WIDTH>
static __device__ __forceinline__ void add_to(Y *at, const float (&sum)[WIDTH])
{
    float y[WIDTH];
    load<WIDTH>(y, at);
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        y[k] += sum[k];
    store<WIDTH>(at, y);
}

/* Sums the short lists, a warp each. Warps are numbered by target with by_target, else by place in
 * the lists, where only the warp at a list's first place works; the caller chooses whichever are
 * fewer. */
template <class Y, int WIDTH>
static __global__ void short_kernel(scatter_args<Y> a, scatter_lists l, bool by_target)
{
    __shared__ int32_t sorted[SCATTER_WARPS][SHORT_LIST];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int64_t at = (int64_t)blockIdx.x * SCATTER_WARPS + warp;
    if (at >= (by_target ? a.y_rows : *l.laid))
        return;
    const int32_t to = by_target ? (int32_t)at : a.index[l.list[at]], count = l.count[to];
    if (count == 0 || count > SHORT_LIST || (!by_target && l.start[to] != at))
        return;
    const int32_t mine = lane < count ? l.list[l.start[to] + lane] : INT32_MAX;
    int rank = 0;
    for (int i = 0; i < count; i++)
        rank += __shfl_sync(0xffffffffu, mine, i) < mine;
    if (lane < count)
        sorted[warp][rank] = mine;
    __syncwarp();
    for (int64_t j = lane * WIDTH; j < a.width; j += LANES * WIDTH) {
        float sum[WIDTH] = {};
        add_items<Y, WIDTH>(a, sorted[warp], 0, count, j, sum);
        add_to<Y, WIDTH>(a.y + to * a.width + j, sum);
    }
}

/* Sorts found[0, n) into `sorted`, ascending; each thread finds the rank of some of them. */
static __device__ __forceinline__ void rank_sort(const int32_t *found, int n, int32_t *sorted)
{
    for (int i = threadIdx.x; i < n; i += SCATTER_THREADS) {
        const int32_t mine = found[i];
        int rank = 0;
        for (int k = 0; k < n; k++)
            rank += found[k] < mine;
        sorted[rank] = mine;
    }
}

/* A block takes 32 WIDTH columns of a long list at a time. A list longer than WINDOW is not read;
 * instead the items themselves are searched, WINDOW at a time. */
template <class Y, int WIDTH>
static __global__ void __launch_bounds__(SCATTER_THREADS)
    long_kernel(scatter_args<Y> a, scatter_lists l)
{
    __shared__ int32_t found[WINDOW], sorted[WINDOW];
    __shared__ float sums[SCATTER_WARPS][LANES * WIDTH];
    __shared__ int n;
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int64_t chunks = (a.width + LANES * WIDTH - 1) / (LANES * WIDTH);
    for (int64_t u = blockIdx.x; u < *l.n_long * chunks; u += gridDim.x) {
        const int32_t to = l.longs[u / chunks], count = l.count[to], start = l.start[to];
        const int64_t j = (u % chunks * LANES + lane) * WIDTH;
        const bool whole = count <= WINDOW, mine = j < a.width;
        const int64_t end = whole ? 1 : a.items;
        float sum[WIDTH] = {};
        for (int64_t from = 0; from < end; from += WINDOW) {
            if (threadIdx.x == 0)
                n = whole ? count : 0;
            __syncthreads();
            for (int i = threadIdx.x; i < (whole ? count : WINDOW); i += SCATTER_THREADS) {
                if (whole)
                    found[i] = l.list[start + i];
                else if (from + i < a.items && target_of(a, from + i) == to)
                    found[atomicAdd(&n, 1)] = (int32_t)(from + i);
            }
            __syncthreads();
            const int now = n, share = (now + SCATTER_WARPS - 1) / SCATTER_WARPS;
            rank_sort(found, now, sorted);
            __syncthreads();
            if (mine)
                add_items<Y, WIDTH>(a, sorted, min(warp * share, now), min((warp + 1) * share, now),
                                    j, sum);
            /* The next round passes barriers before it overwrites shared memory, so none is needed
             * here. */
        }
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            sums[warp][k * LANES + lane] = sum[k];
        __syncthreads();
        if (warp == 0 && mine) {
#pragma unroll
            for (int w = 1; w < SCATTER_WARPS; w++)
#pragma unroll
                for (int k = 0; k < WIDTH; k++)
                    sum[k] += sums[w][k * LANES + lane];
            add_to<Y, WIDTH>(a.y + to * a.width + j, sum);
        }
    }
}

template <class Y, int WIDTH>
static status scatter_lists_sum(stream *s, const scatter_args<Y> *a, const scatter_lists *l)
{
    const bool by_target = a->y_rows < a->items;
    const int64_t warps = by_target ? a->y_rows : a->items;
    TRY(LAUNCH(s, (short_kernel<Y, WIDTH>), grid_of(ceil_div(warps, SCATTER_WARPS)),
               SCATTER_THREADS, 0, *a, *l, by_target));
    if (a->items <= SHORT_LIST)
        return ST_OK;
    return LAUNCH(s, (long_kernel<Y, WIDTH>), LONG_BLOCKS, SCATTER_THREADS, 0, *a, *l);
}

template <class Y> static status scatter_sums(stream *s, const scatter_args<Y> *a)
{
    if (a->items == 0 || a->y_rows == 0 || a->width == 0)
        return ST_OK;
    const int64_t longs = a->items / SHORT_LIST;
    void *scratch = NULL;
    TRY(cuda_scratch(s, (size_t)(3 * a->y_rows + 2 + a->items + longs) * sizeof(int32_t),
                     &scratch));
    scatter_lists l = {};
    l.count = (int32_t *)scratch;
    l.filled = l.count + a->y_rows;
    l.laid = l.filled + a->y_rows;
    l.n_long = l.laid + 1;
    l.start = l.n_long + 1;
    l.list = l.start + a->y_rows;
    l.longs = l.list + a->items;
    const size_t zeros = (size_t)(2 * a->y_rows + 2) * sizeof(int32_t);
    CUDA_TRY(cudaMemsetAsync(scratch, 0, zeros, cuda_handle(s)), ST_BAD_DEVICE, "cudaMemsetAsync");
    const dim3 over_items = grid_of(ceil_div(a->items, SCATTER_THREADS));
    TRY(LAUNCH(s, count_kernel<Y>, over_items, SCATTER_THREADS, 0, *a, l));
    TRY(LAUNCH(s, start_kernel, grid_of(ceil_div(a->y_rows, SCATTER_THREADS)), SCATTER_THREADS, 0,
               a->y_rows, l));
    TRY(LAUNCH(s, fill_kernel<Y>, over_items, SCATTER_THREADS, 0, *a, l));
    if (a->width % VECTOR == 0 && aligned16(a->x, a->y))
        return scatter_lists_sum<Y, VECTOR>(s, a, &l);
    return scatter_lists_sum<Y, 1>(s, a, &l);
}

#endif
