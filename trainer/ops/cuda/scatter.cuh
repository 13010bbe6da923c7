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

/* The target of item `place`, or -1 if it has none. Weighted items have no negative index. */
template <class Y>
static __device__ __forceinline__ int32_t target_of(const scatter_args<Y> &args, int64_t place)
{
    const int32_t to = args.index[place];
    DEVICE_CHECK(to < args.y_rows && (to >= 0 || !args.weight));
    return args.weight && args.weight[place] == 0 ? -1 : to;
}

template <class Y> static __global__ void count_kernel(scatter_args<Y> args, scatter_lists lists)
{
    const int64_t place = (int64_t)blockIdx.x * SCATTER_THREADS + threadIdx.x;
    const int32_t to = place < args.items ? target_of(args, place) : -1;
    if (to >= 0)
        atomicAdd(lists.count + to, 1);
}

static __global__ void start_kernel(int64_t y_rows, scatter_lists lists)
{
    const int64_t to = (int64_t)blockIdx.x * SCATTER_THREADS + threadIdx.x;
    const int32_t count = to < y_rows ? lists.count[to] : 0;
    if (count == 0)
        return;
    lists.start[to] = atomicAdd(lists.laid, count);
    if (count > SHORT_LIST)
        lists.longs[atomicAdd(lists.n_long, 1)] = (int32_t)to;
}

template <class Y> static __global__ void fill_kernel(scatter_args<Y> args, scatter_lists lists)
{
    const int64_t place = (int64_t)blockIdx.x * SCATTER_THREADS + threadIdx.x;
    const int32_t to = place < args.items ? target_of(args, place) : -1;
    if (to >= 0)
        lists.list[lists.start[to] + atomicAdd(lists.filled + to, 1)] = (int32_t)place;
}

/* sum += the items [from, end) of a sorted list, for the columns from `first_column` on. */
template <class Y, int WIDTH>
static __device__ __forceinline__ void add_items(const scatter_args<Y> &args, const int32_t *sorted,
                                                 int from, int end, int64_t first_column,
                                                 float (&sum)[WIDTH])
{
#pragma unroll 4
    for (int i = from; i < end; i++) {
        const int32_t place = sorted[i];
        const float w = args.weight ? args.weight[place] : 1;
        float x[WIDTH];
        load<WIDTH>(x, args.x + place / args.per * args.width + first_column);
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
static __global__ void short_kernel(scatter_args<Y> args, scatter_lists lists, bool by_target)
{
    __shared__ int32_t sorted[SCATTER_WARPS][SHORT_LIST];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int64_t at = (int64_t)blockIdx.x * SCATTER_WARPS + warp;
    if (at >= (by_target ? args.y_rows : *lists.laid))
        return;
    const int32_t to = by_target ? (int32_t)at : args.index[lists.list[at]],
                  count = lists.count[to];
    if (count == 0 || count > SHORT_LIST || (!by_target && lists.start[to] != at))
        return;
    const int32_t mine = lane < count ? lists.list[lists.start[to] + lane] : INT32_MAX;
    int rank = 0;
    for (int i = 0; i < count; i++)
        rank += __shfl_sync(0xffffffffu, mine, i) < mine;
    if (lane < count)
        sorted[warp][rank] = mine;
    __syncwarp();
    for (int64_t j = lane * WIDTH; j < args.width; j += LANES * WIDTH) {
        float sum[WIDTH] = {};
        add_items<Y, WIDTH>(args, sorted[warp], 0, count, j, sum);
        add_to<Y, WIDTH>(args.y + to * args.width + j, sum);
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
    long_kernel(scatter_args<Y> args, scatter_lists lists)
{
    __shared__ int32_t found[WINDOW], sorted[WINDOW];
    __shared__ float sums[SCATTER_WARPS][LANES * WIDTH];
    __shared__ int n;
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int64_t chunks = (args.width + LANES * WIDTH - 1) / (LANES * WIDTH);
    for (int64_t unit = blockIdx.x; unit < *lists.n_long * chunks; unit += gridDim.x) {
        const int32_t to = lists.longs[unit / chunks], count = lists.count[to],
                      start = lists.start[to];
        const int64_t j = (unit % chunks * LANES + lane) * WIDTH;
        const bool whole = count <= WINDOW, mine = j < args.width;
        const int64_t end = whole ? 1 : args.items;
        float sum[WIDTH] = {};
        for (int64_t from = 0; from < end; from += WINDOW) {
            if (threadIdx.x == 0)
                n = whole ? count : 0;
            __syncthreads();
            for (int i = threadIdx.x; i < (whole ? count : WINDOW); i += SCATTER_THREADS) {
                if (whole)
                    found[i] = lists.list[start + i];
                else if (from + i < args.items && target_of(args, from + i) == to)
                    found[atomicAdd(&n, 1)] = (int32_t)(from + i);
            }
            __syncthreads();
            const int now = n, share = (now + SCATTER_WARPS - 1) / SCATTER_WARPS;
            rank_sort(found, now, sorted);
            __syncthreads();
            if (mine)
                add_items<Y, WIDTH>(args, sorted, min(warp * share, now),
                                    min((warp + 1) * share, now), j, sum);
            /* The next round passes barriers before it overwrites shared memory, so none is needed
             * here. */
        }
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            sums[warp][k * LANES + lane] = sum[k];
        __syncthreads();
        if (warp == 0 && mine) {
#pragma unroll
            for (int part = 1; part < SCATTER_WARPS; part++)
#pragma unroll
                for (int k = 0; k < WIDTH; k++)
                    sum[k] += sums[part][k * LANES + lane];
            add_to<Y, WIDTH>(args.y + to * args.width + j, sum);
        }
    }
}

template <class Y, int WIDTH>
static status scatter_lists_sum(stream *queue, const scatter_args<Y> *args,
                                const scatter_lists *lists)
{
    const bool by_target = args->y_rows < args->items;
    const int64_t warps = by_target ? args->y_rows : args->items;
    TRY(LAUNCH(queue, (short_kernel<Y, WIDTH>), grid_of(ceil_div(warps, SCATTER_WARPS)),
               SCATTER_THREADS, 0, *args, *lists, by_target));
    if (args->items <= SHORT_LIST)
        return ST_OK;
    return LAUNCH(queue, (long_kernel<Y, WIDTH>), LONG_BLOCKS, SCATTER_THREADS, 0, *args, *lists);
}

template <class Y> static status scatter_sums(stream *queue, const scatter_args<Y> *args)
{
    if (args->items == 0 || args->y_rows == 0 || args->width == 0)
        return ST_OK;
    const int64_t longs = args->items / SHORT_LIST;
    void *scratch = NULL;
    TRY(cuda_scratch(queue, (size_t)(3 * args->y_rows + 2 + args->items + longs) * sizeof(int32_t),
                     &scratch));
    scatter_lists lists = {};
    lists.count = (int32_t *)scratch;
    lists.filled = lists.count + args->y_rows;
    lists.laid = lists.filled + args->y_rows;
    lists.n_long = lists.laid + 1;
    lists.start = lists.n_long + 1;
    lists.list = lists.start + args->y_rows;
    lists.longs = lists.list + args->items;
    const size_t zeros = (size_t)(2 * args->y_rows + 2) * sizeof(int32_t);
    CUDA_TRY(cudaMemsetAsync(scratch, 0, zeros, cuda_handle(queue)), ST_BAD_DEVICE,
             "cudaMemsetAsync");
    const dim3 over_items = grid_of(ceil_div(args->items, SCATTER_THREADS));
    TRY(LAUNCH(queue, count_kernel<Y>, over_items, SCATTER_THREADS, 0, *args, lists));
    TRY(LAUNCH(queue, start_kernel, grid_of(ceil_div(args->y_rows, SCATTER_THREADS)),
               SCATTER_THREADS, 0, args->y_rows, lists));
    TRY(LAUNCH(queue, fill_kernel<Y>, over_items, SCATTER_THREADS, 0, *args, lists));
    if (args->width % VECTOR == 0 && aligned16(args->x, args->y))
        return scatter_lists_sum<Y, VECTOR>(queue, args, &lists);
    return scatter_lists_sum<Y, 1>(queue, args, &lists);
}

#endif
