/* SPDX-License-Identifier: Apache-2.0 */
/* rows.cu: the ops of rows.h on CUDA in which each row of y has one writer: gather, scatter to
 * distinct rows, and weighted sums. Below: many rows summed into one, and patches of pictures.
 *
 * Bytes an element of y: gather 4 (2 for a row that is zeroed, less for one that stays; 2 + 2 /
 * copies where places are given), scatter 6 (10 into float), rows_weighted 4, since the table comes
 * from the L2 cache. A block covers whole rows, a thread moves 16 bytes, and all threads of a row
 * read its index at the same time. */
#include "trainer/ops/cuda/kernel_launch.cuh"

/* ---- scattering ---- */

/* Sums many rows into one with the same bits every time: y[index[c]] += weight[c] x[c
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

/* ---- gathering ---- */

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

/* ---- patches ---- */

/* Patch_input (pointwise.h) on CUDA.
 *
 * A thread turns 8 pixels into 16 bytes of bf16, and stores them twice for a still picture, once
 * per frame. Bytes per patch: 768 read (1536 for a video) and 3072 written; DRAM is the limit. It
 * computes (x - 127.5) * (1 / 127.5) in float, which rounds to the same bf16 as the quotient for
 * all 256 values. */

enum {
    THREADS = 256,
    PIXELS = VECTOR, /* pixels of a thread: 8 bytes in, 16 out */
    CHANNEL = 256,   /* bytes of one colour of a patch of one frame: 16 x 16 */
    PATCH_STILL = 3 * CHANNEL,
    PATCH_VIDEO = 2 * PATCH_STILL
};

static __device__ inline uint4 normalise_bytes(uint2 bytes)
{
    const float middle = 127.5f;
    float out[PIXELS];
#pragma unroll
    for (int i = 0; i < PIXELS; i++) {
        const unsigned word = i < 4 ? bytes.x : bytes.y;
        out[i] = ((float)(word >> i % 4 * 8 & 255) - middle) * (1 / middle);
    }
    return pack8(out);
}

/* Does 8 pixels of the input. */
template <bool VIDEO>
static __global__ void __launch_bounds__(THREADS) patch_kernel(patch_input_args args)
{
    const int64_t piece = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t patch_bytes = VIDEO ? PATCH_VIDEO : PATCH_STILL;
    if (piece * PIXELS >= args.patches * patch_bytes)
        return;
    const uint4 out = normalise_bytes(((const uint2 *)args.pixels)[piece]);
    bf16 *to = (bf16 *)args.out;
    if (VIDEO) {
        *(uint4 *)(to + piece * PIXELS) = out;
        return;
    }
    /* Channel c of patch p begins at (p * 3 + c) * CHANNEL and goes to twice that: two frames. */
    const int64_t channel = piece * PIXELS / CHANNEL, at = piece * PIXELS % CHANNEL;
    *(uint4 *)(to + 2 * channel * CHANNEL + at) = out;
    *(uint4 *)(to + (2 * channel + 1) * CHANNEL + at) = out;
}

extern "C" status cuda_patch_input(stream *queue, const patch_input_args *args)
{
    if (!aligned16(args->pixels) || !aligned16(args->out))
        return FAIL(
            ST_BAD_INPUT,
            "patch_input: the pixels are at %p and the output at %p; both addresses must be "
            "multiples of 16",
            (const void *)args->pixels, args->out);
    const int64_t patch_bytes = args->video ? PATCH_VIDEO : PATCH_STILL;
    const dim3 grid = grid_of(ceil_div(args->patches * patch_bytes, PIXELS * THREADS));
    return args->video ? LAUNCH(queue, patch_kernel<true>, grid, THREADS, 0, *args)
                       : LAUNCH(queue, patch_kernel<false>, grid, THREADS, 0, *args);
}
