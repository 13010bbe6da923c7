/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_gemm.cu: grouped_gemm (gemm.h) on CUDA: its checks, and the choice of the kernel:
 * Hopper's (grouped_hopper.cuh) where the device has chosen it (training.experts) and rows are
 * whole 16-byte pieces, otherwise the portable one below. Both read the groups'
 * offsets on the device.
 */
#include "trainer/ops/cuda/grouped_gemm.cuh"

/* ---- the portable kernel ---- */

/* The grouped product for every GPU from sm_80 on: tiles of 128 x 128 by
 * eight warps of 64 x 32 each, with mma.sync fed through three stages of cp.async.
 *
 * Tiles are found and numbered as on Hopper (grouped_index.h). Nothing outside an expert's rows is
 * read; missing rows and columns are zeros in shared memory. ALIGNED means that K and N are
 * multiples of 8 and the arrays are aligned to 16 bytes, so that data moves 16 bytes at a time;
 * otherwise it moves element by element. Sums are in f32, in ascending order of the reduced axis,
 * so the same input gives the same bits. */

#include "trainer/ops/cuda/grouped_scan.cuh"
#include "trainer/ops/cuda/mma.cuh"
#include "trainer/ops/cuda/sigmoid.cuh"

enum {
    PORTABLE_TILE_N = 128,
    PORTABLE_STEP = 32,
    PORTABLE_STAGES = 3,
    PORTABLE_THREADS = 256,
    PORTABLE_OPERAND = 128 * PORTABLE_STEP * 2, /* bytes of A, and of B, in a stage */
    PORTABLE_STAGE = 2 * PORTABLE_OPERAND,
    PORTABLE_TABLES = PORTABLE_STAGES * PORTABLE_STAGE
};

/* One operand of the tiles: a matrix whose lines are contiguous. K-major: a line is a row of the
 * tile, its columns are the reduced axis. MN-major: the other way round. */
typedef struct portable_source {
    const __nv_bfloat16 *base; /* first element of the tile at step 0 */
    int64_t width;             /* length of a line in memory */
    int32_t rows, reduce;      /* sizes of this tile; what lies beyond reads as zero */
    int32_t up;                /* B of a gated product: columns from a gate to its up; else 0 */
} portable_source;

/* The byte of shared memory where 16-byte piece `column` of a line lies: K-major lines have 4
 * pieces, MN-major lines 16. It is swizzled, so that the 8 lines of a matrix that ldmatrix reads at
 * once lie in different banks. */
template <bool MN_MAJOR> static __device__ __forceinline__ int portable_at(int line, int column)
{
    return MN_MAJOR ? line * 256 + ((column ^ (line & 7)) * 16)
                    : line * 64 + ((column ^ (line >> 1 & 3)) * 16);
}

/* 8 elements read one by one, with zeros from element `here` of the line on. */
static __device__ __forceinline__ uint4 portable_piece(const __nv_bfloat16 *from, int32_t here)
{
    uint32_t pair[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < here)
            pair[i / 2] |= (uint32_t)((const uint16_t *)(from + i))[0] << (i % 2 * 16);
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

/* The column at which piece `column` of a line begins. In a gated product 16 columns of the gate
 * are followed by the same 16 columns of up, counted from the gate's, so that one warp has both. */
static __device__ __forceinline__ int32_t portable_column(const portable_source &source, int column)
{
    return source.up ? column / 4 * 16 + column % 2 * 8 : column * 8;
}

/* Loads step `step` of an operand into shared memory. */
template <bool MN_MAJOR, bool ALIGNED>
static __device__ __forceinline__ void portable_load(unsigned char *to,
                                                     const portable_source &source, int step)
{
    enum { PER_LINE = MN_MAJOR ? 16 : 4, PIECES = 128 * PORTABLE_STEP / 8 };
    int32_t reduce0 = step * PORTABLE_STEP;
    int32_t lines = MN_MAJOR ? source.reduce - reduce0 : source.rows;
    int32_t columns = MN_MAJOR ? source.rows : source.reduce - reduce0;
    const __nv_bfloat16 *from = source.base + (MN_MAJOR ? reduce0 * source.width : reduce0);
#pragma unroll
    for (int i = 0; i < PIECES / PORTABLE_THREADS; i++) {
        int piece = i * PORTABLE_THREADS + threadIdx.x;
        int line = piece / PER_LINE, chunk = piece % PER_LINE;
        int32_t column = portable_column(source, chunk), here = line < lines ? columns - column : 0;
        const __nv_bfloat16 *at =
            from + line * source.width + column + (chunk % 4 >= 2 ? source.up : 0);
        unsigned char *place = to + portable_at<MN_MAJOR>(line, chunk);
        if (ALIGNED)
            copy16_async(place, here > 0 ? at : source.base, here > 0);
        else
            *(uint4 *)place = portable_piece(at, here);
    }
}

/* A's fragment of rows [row, row + 16) and columns [k, k + 16) of a stage. */
template <bool MN_MAJOR>
static __device__ __forceinline__ void portable_a(uint32_t (&a)[4], const unsigned char *from,
                                                  int row, int k)
{
    int lane = threadIdx.x % 32, i = lane / 8, j = lane % 8;
    if (MN_MAJOR)
        ldmatrix4_transposed(a, from + portable_at<true>(k + i / 2 * 8 + j, row / 8 + i % 2));
    else
        ldmatrix4(a, from + portable_at<false>(row + i % 2 * 8 + j, k / 8 + i / 2));
}

/* B's fragments of columns [n, n + 8): b[0], b[1], and [n + 8, n + 16): b[2], b[3]. */
template <bool MN_MAJOR>
static __device__ __forceinline__ void portable_b(uint32_t (&b)[4], const unsigned char *from,
                                                  int n, int k)
{
    int lane = threadIdx.x % 32, i = lane / 8, j = lane % 8;
    if (MN_MAJOR)
        ldmatrix4_transposed(b, from + portable_at<true>(k + i % 2 * 8 + j, n / 8 + i / 2));
    else
        ldmatrix4(b, from + portable_at<false>(n + i / 2 * 8 + j, k / 8 + i % 2));
}

typedef struct portable_sources {
    portable_source source_a, source_b;
} portable_sources;

template <int MODE>
static __device__ __forceinline__ portable_sources portable_sources_of(const grouped_work &work,
                                                                       const grouped_tile &tile,
                                                                       const int32_t *begin,
                                                                       const void *a, const void *b)
{
    portable_sources sources;
    const __nv_bfloat16 *pa = (const __nv_bfloat16 *)a, *pb = (const __nv_bfloat16 *)b;
    int32_t rows = begin[tile.expert + 1] - begin[tile.expert];
    sources.source_a.width = MODE == GROUPED_WGRAD ? work.out_m : work.reduce;
    sources.source_a.base =
        pa + tile.row * sources.source_a.width + (MODE == GROUPED_WGRAD ? tile.m : 0);
    sources.source_a.rows = tile.valid;
    sources.source_a.reduce = sources.source_b.reduce = MODE == GROUPED_WGRAD ? rows : work.reduce;
    sources.source_a.up = 0;
    sources.source_b.up = tile.up;
    sources.source_b.width = MODE == GROUPED_DGRAD ? work.reduce
                             : tile.up             ? 2 * tile.up
                                                   : work.out_n;
    sources.source_b.rows = grouped_min(work.out_n - tile.n, work.tile_n);
    if (MODE == GROUPED_WGRAD)
        sources.source_b.base = pb + tile.row * sources.source_b.width + tile.n;
    else
        sources.source_b.base =
            pb + (int64_t)tile.expert * work.reduce * (tile.up ? 2 * tile.up : work.out_n) +
            (MODE == GROUPED_FWD ? tile.n : tile.n * sources.source_b.width);
    return sources;
}

/* The products of one stage for a warp's 64 x 32. */
template <bool A_MN, bool B_MN>
static __device__ __forceinline__ void portable_multiply(float (&d)[4][4][4],
                                                         const unsigned char *stage, int row, int n)
{
#pragma unroll
    for (int k = 0; k < PORTABLE_STEP; k += 16) {
        uint32_t a[4][4], b[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            portable_a<A_MN>(a[i], stage, row + 16 * i, k);
#pragma unroll
        for (int j = 0; j < 2; j++)
            portable_b<B_MN>(b[j], stage + PORTABLE_OPERAND, n + 16 * j, k);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                mma_16x8x16(d[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
}

/* Stores two neighbours of a row, the second only where it is inside the row. */
template <bool ALIGNED>
static __device__ __forceinline__ void portable_put(__nv_bfloat16 *at, __nv_bfloat162 pair,
                                                    bool both)
{
    if (ALIGNED) {
        *(__nv_bfloat162 *)at = pair;
    } else {
        at[0] = pair.x;
        if (both)
            at[1] = pair.y;
    }
}

/* Stores a tile. Every element is stored, or added to, by one thread. */
template <int MODE, bool ALIGNED>
static __device__ __forceinline__ void
portable_store(const grouped_work &work, const grouped_tile &tile, const float (&d)[4][4][4],
               int row, int n, void *out)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int at = 0; at < 32; at++) {
        int i = at / 8, j = at / 2 % 4, half = at % 2;
        int32_t m = row + 16 * i + half * 8 + lane / 4, column = tile.n + n + 8 * j + lane % 4 * 2;
        if (m >= tile.valid || column >= work.out_n)
            continue;
        bool both = ALIGNED || column + 1 < work.out_n;
        float v0 = d[i][j][half * 2], v1 = d[i][j][half * 2 + 1];
        if (MODE == GROUPED_WGRAD) {
            float *p = (float *)out +
                       ((int64_t)tile.expert * work.out_m + tile.m + m) * work.out_n + column;
            p[0] += v0;
            if (both)
                p[1] += v1;
            continue;
        }
        __nv_bfloat16 *p = (__nv_bfloat16 *)out + (int64_t)(tile.m + m) * work.out_n + column;
        portable_put<ALIGNED>(p, __floats2bfloat162_rn(v0, v1), both);
    }
}

/* Gated: d[.][0 and 1] are columns of the gate, d[.][2 and 3] the same columns of up. Stores SwiGLU
 * of both, from the values as they are rounded for y. */
template <bool ALIGNED>
static __device__ __forceinline__ void
portable_store_gated(const grouped_work &work, const grouped_tile &tile, const float (&d)[4][4][4],
                     int row, int n, const grouped_out &out)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int at = 0; at < 16; at++) {
        int i = at / 4, j = at / 2 % 2, half = at % 2;
        int32_t m = row + 16 * i + half * 8 + lane / 4;
        int32_t column = tile.n + n / 2 + 8 * j + lane % 4 * 2;
        if (m >= tile.valid || column >= work.out_n)
            continue;
        bool both = ALIGNED || column + 1 < work.out_n;
        __nv_bfloat162 gate = __floats2bfloat162_rn(d[i][j][half * 2], d[i][j][half * 2 + 1]);
        __nv_bfloat162 up = __floats2bfloat162_rn(d[i][j + 2][half * 2], d[i][j + 2][half * 2 + 1]);
        if (out.y) {
            __nv_bfloat16 *y =
                (__nv_bfloat16 *)out.y + (int64_t)(tile.m + m) * 2 * tile.up + column;
            portable_put<ALIGNED>(y, gate, both);
            portable_put<ALIGNED>(y + tile.up, up, both);
        }
        float2 g = __bfloat1622float2(gate), u = __bfloat1622float2(up);
        portable_put<ALIGNED>((__nv_bfloat16 *)out.gated + (int64_t)(tile.m + m) * tile.up + column,
                              __floats2bfloat162_rn(swiglu(g.x, u.x), swiglu(g.y, u.y)), both);
    }
}

template <int MODE, bool ALIGNED>
static __device__ __forceinline__ void
portable_tile(const grouped_work &work, const grouped_tile &tile, const int32_t *begin,
              unsigned char *stages, const void *a, const void *b, const grouped_out &out)
{
    constexpr bool A_MN = MODE == GROUPED_WGRAD, B_MN = MODE != GROUPED_DGRAD;
    const portable_sources sources = portable_sources_of<MODE>(work, tile, begin, a, b);
    int warp = threadIdx.x / 32, row = warp / 4 * 64, n = warp % 4 * 32;
    float d[4][4][4] = {};
    for (int step = 0; step < tile.steps + PORTABLE_STAGES - 1; step++) {
        if (step < tile.steps) {
            unsigned char *to = stages + step % PORTABLE_STAGES * PORTABLE_STAGE;
            portable_load<A_MN, ALIGNED>(to, sources.source_a, step);
            portable_load<B_MN, ALIGNED>(to + PORTABLE_OPERAND, sources.source_b, step);
        }
        copy_commit();
        int ready = step - (PORTABLE_STAGES - 1);
        if (ready < 0)
            continue;
        copy_wait<PORTABLE_STAGES - 1>();
        __syncthreads();
        portable_multiply<A_MN, B_MN>(d, stages + ready % PORTABLE_STAGES * PORTABLE_STAGE, row, n);
        __syncthreads(); /* the stage is loaded again two steps later */
    }
    if (MODE == GROUPED_FWD && tile.up)
        portable_store_gated<ALIGNED>(work, tile, d, row, n, out);
    else
        portable_store<MODE, ALIGNED>(work, tile, d, row, n, out.y);
}

/* A persistent kernel, whose blocks walk over tiles (grouped_walk_of). */
template <int MODE, bool ALIGNED>
static __device__ __forceinline__ void
portable_block(const grouped_work &work, unsigned char *shared, const int32_t *offset,
               const void *a, const void *b, const grouped_out &out)
{
    int32_t *first = (int32_t *)(shared + PORTABLE_TABLES), *begin = first + work.experts + 1;
    if (threadIdx.x < 32)
        grouped_scan(work, offset, first, begin);
    __syncthreads();
    const grouped_walk walk =
        grouped_walk_of(&work, grouped_tiles(&work, first[work.experts]), blockIdx.x, gridDim.x);
    int64_t at = walk.first;
    for (int32_t i = 0; i < walk.count; i++, at += walk.step)
        portable_tile<MODE, ALIGNED>(work, grouped_tile_at(&work, first, begin, at, 0), begin,
                                     shared, a, b, out);
}

/* ---- the op ---- */

/* Each block takes 48 KiB for its stages, and each thread about 100 registers. */
enum { PORTABLE_BLOCKS_PER_SM = 2 };

template <int MODE, bool ALIGNED>
static __global__ void __launch_bounds__(PORTABLE_THREADS, PORTABLE_BLOCKS_PER_SM)
    grouped_portable_kernel(grouped_work work, const int32_t *offset, grouped_arrays arrays)
{
    SHARED_BYTES(shared);
    portable_block<MODE, ALIGNED>(work, shared, offset, arrays.a, arrays.b, arrays.out);
}

template <int MODE, bool ALIGNED>
static status portable(stream *queue, const grouped_gemm_args *args)
{
    grouped_work work = grouped_work_of(args, PORTABLE_TILE_N, PORTABLE_STEP, 1);
    const cuda_facts *facts = cuda_facts_of(queue);
    const int64_t blocks = grouped_clusters(
        &work, grouped_tiles_most(&work), facts->multiprocessors * (int64_t)PORTABLE_BLOCKS_PER_SM,
        args->beside ? TURNS_BESIDE : facts->turns);
    size_t shared = PORTABLE_TABLES + 2 * ((size_t)work.experts + 1) * sizeof(int32_t);
    cudaError_t error =
        cudaFuncSetAttribute(grouped_portable_kernel<MODE, ALIGNED>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (error != cudaSuccess)
        return FAIL(ST_BAD_DEVICE, "grouped_gemm: %zu bytes of shared memory: %s", shared,
                    cudaGetErrorString(error));
    return LAUNCH(queue, (grouped_portable_kernel<MODE, ALIGNED>), grid_of(blocks),
                  PORTABLE_THREADS, shared, work, args->offset, grouped_arrays_of(args));
}

template <bool ALIGNED> static status portable_mode(stream *queue, const grouped_gemm_args *args)
{
    switch (args->mode) {
    case GROUPED_FWD:
        return portable<GROUPED_FWD, ALIGNED>(queue, args);
    case GROUPED_DGRAD:
        return portable<GROUPED_DGRAD, ALIGNED>(queue, args);
    default:
        return portable<GROUPED_WGRAD, ALIGNED>(queue, args);
    }
}

static status check_grouped(const grouped_gemm_args *args)
{
    if (args->mode != GROUPED_FWD && args->mode != GROUPED_DGRAD && args->mode != GROUPED_WGRAD)
        return FAIL(ST_BAD_INPUT, "grouped_gemm: there is no mode %d", args->mode);
    if (args->k <= 0 || args->n <= 0 || args->k > INT32_MAX / 2 || args->n > INT32_MAX / 2)
        return FAIL(
            ST_BAD_INPUT,
            "grouped_gemm: the widths are %lld and %lld; they must be positive and fit 30 bits",
            (long long)args->k, (long long)args->n);
    if (args->experts > GROUPED_EXPERTS_MAX || args->rows_cap > INT32_MAX / 2)
        return FAIL(
            ST_BAD_INPUT,
            "grouped_gemm: there are %lld experts and %lld rows; at most %d and 2^30 are possible",
            (long long)args->experts, (long long)args->rows_cap, GROUPED_EXPERTS_MAX);
    return grouped_gemm_check_gated(args);
}

extern "C" status cuda_grouped_gemm(stream *queue, const grouped_gemm_args *args)
{
    if (args->experts <= 0 || args->rows_cap <= 0)
        return ST_OK;
    status st = check_grouped(args);
    if (st != ST_OK)
        return st;
    if (!grouped_aligned(args))
        return portable_mode<false>(queue, args);
#ifdef __CUDACC__ /* a host cannot run this kind of tensor core */
    if (queue->dev->choices.way[CHOICE_EXPERTS] == EXPERTS_BY_HOPPER)
        return grouped_gemm_hopper(queue, args);
#endif
    return portable_mode<true>(queue, args);
}
