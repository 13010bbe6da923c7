/* SPDX-License-Identifier: Apache-2.0 */
/* attention_tile.cuh: what the portable attention kernels share: tiles of 64 tokens in shared
 * memory, the products between them, and which tokens see each other.
 *
 * A block has 4 warps. Of the tile that the block owns, each warp owns 16 rows, from the first
 * product to the last store. Rows in shared memory are 16 bytes longer than D, so that the eight
 * rows of a matrix load lie in different banks. Columns from head_dim to D, and tokens outside the
 * range, are zeros. */
#ifndef TESSERA_TRAINER_OPS_CUDA_ATTENTION_TILE_CUH
#define TESSERA_TRAINER_OPS_CUDA_ATTENTION_TILE_CUH

#include <limits.h>

#include "trainer/ops/cuda/kernel_launch.cuh"
#include "trainer/ops/cuda/mma.cuh"

enum {
    TILE = 64, /* tokens of a tile, 16 for each warp */
    OWN_WARPS = 4,
    OWN_THREADS = OWN_WARPS * LANES,
    GROUPS = TILE / 8, /* columns of 8 in a product of two tiles */
    DIM_SMALL = 80,    /* D for heads up to this width, such as the vision tower's 72 */
    DIM_MAX = 128      /* D for wider heads, such as the decoder's 128 */
};

template <int D> struct tile {
    static const int STRIDE = D + VECTOR;
    static const size_t BYTES = (size_t)TILE * STRIDE * sizeof(bf16);
};

/* One head of q, k, v or a gradient: row t is `at` + t * stride. wide:
 * rows allow 16-byte accesses. */
typedef struct head {
    bf16 *at;
    int64_t stride;
    int dim;
    bool wide;
} head;

static __device__ __forceinline__ head head_of(const void *x, int64_t stride, int64_t dim,
                                               int64_t kv, bool wide)
{
    return {(bf16 *)x + kv * dim, stride, (int)dim, wide};
}

/* Starts loading the tokens [first, first + TILE) of a head, with zeros from `end` on. The caller
 * ends the group. */
template <int D>
static __device__ inline void tile_load(bf16 *tile_at, const head &rows, int64_t first, int64_t end)
{
    const int pieces = D / VECTOR;
    for (int i = (int)threadIdx.x; i < TILE * pieces; i += OWN_THREADS) {
        const int row = i / pieces, column = i % pieces * VECTOR;
        bf16 *to = tile_at + row * tile<D>::STRIDE + column;
        const bf16 *from = rows.at + (first + row) * rows.stride + column;
        const bool there = first + row < end;
        if (rows.wide)
            copy16_async(to, there && column < rows.dim ? from : rows.at,
                         there && column < rows.dim);
        else
            for (int j = 0; j < VECTOR; j++)
                to[j] = there && column + j < rows.dim ? from[j] : to_bf16(0);
    }
}

/* The address that this lane gives for a matrix load of 16 x 16 at (row, column). Matrices below
 * each other come first, as A wants them, and as B wants them where the rows are summed over
 * (transposed). */
template <int D>
static __device__ __forceinline__ const bf16 *down_first(const bf16 *corner, int row, int column)
{
    const int lane = (int)threadIdx.x % LANES;
    return corner + (row + lane % 16) * tile<D>::STRIDE + column + lane / 16 * 8;
}

/* The same with matrices beside each other first, as B wants them where its columns are the tile's
 * rows. */
template <int D>
static __device__ __forceinline__ const bf16 *across_first(const bf16 *corner, int row, int column)
{
    const int lane = (int)threadIdx.x % LANES;
    return corner + (row + lane / 16 * 8 + lane % 8) * tile<D>::STRIDE + column + lane / 8 % 2 * 8;
}

/* s [16, TILE] = x y^T, for the rows [row, row + 16) of x and all rows of y. */
template <int D>
static __device__ inline void product_nt(float (&s)[GROUPS][4], const bf16 *x, int row,
                                         const bf16 *y)
{
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
        s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        uint32_t a[4], b[4];
        ldmatrix4(a, down_first<D>(x, row, k));
#pragma unroll
        for (int i = 0; i < GROUPS; i += 2) {
            ldmatrix4(b, across_first<D>(y, i * 8, k));
            mma_16x8x16(s[i], a, b[0], b[1]);
            mma_16x8x16(s[i + 1], a, b[2], b[3]);
        }
    }
}

/* Makes the A operand of the next product from the columns of two products side by side, rounded to
 * bf16. */
static __device__ __forceinline__ void pack_a(uint32_t (&a)[4], const float (&left)[4],
                                              const float (&right)[4])
{
    a[0] = pack2(left[0], left[1]);
    a[1] = pack2(left[2], left[3]);
    a[2] = pack2(right[0], right[1]);
    a[3] = pack2(right[2], right[3]);
}

/* sum [16, D] += p y, where p [16, TILE] is as products leave it and is rounded to bf16. */
template <int D>
static __device__ inline void product_nn(float (&sum)[D / 8][4], const float (&p)[GROUPS][4],
                                         const bf16 *y)
{
#pragma unroll
    for (int k = 0; k < GROUPS; k += 2) {
        uint32_t a[4], b[4];
        pack_a(a, p[k], p[k + 1]);
#pragma unroll
        for (int i = 0; i < D / 8; i += 2) {
            ldmatrix4_transposed(b, down_first<D>(y, k * 8, i * 8));
            mma_16x8x16(sum[i], a, b[0], b[1]);
            mma_16x8x16(sum[i + 1], a, b[2], b[3]);
        }
    }
}

/* Stores this warp's 16 rows of `sum`, times scale[half] (rows g and g + 8), to the tokens from
 * `first` on that are below `end`, by way of the warp's own rows of a tile. Rows from `used` on are
 * stored as zeros. */
template <int D>
static __device__ inline void warp_store(const head &rows, int64_t first, int64_t end, int64_t used,
                                         const float (&sum)[D / 8][4], const float (&scale)[2],
                                         bf16 *tile_at)
{
    const int lane = (int)threadIdx.x % LANES, row0 = (int)threadIdx.x / LANES * 16;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < D / 8; k++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            bf16 *at =
                tile_at + (row0 + half * 8 + lane / 4) * tile<D>::STRIDE + k * 8 + lane % 4 * 2;
            *(unsigned *)at =
                pack2(sum[k][2 * half] * scale[half], sum[k][2 * half + 1] * scale[half]);
        }
    __syncwarp();
    const int pieces = D / VECTOR;
    for (int i = lane; i < 16 * pieces; i += LANES) {
        const int row = row0 + i / pieces, column = i % pieces * VECTOR;
        if (first + row >= end || column >= rows.dim)
            continue;
        uint4 bits = *(const uint4 *)(tile_at + row * tile<D>::STRIDE + column);
        if (first + row >= used)
            bits = make_uint4(0, 0, 0, 0);
        bf16 *to = rows.at + (first + row) * rows.stride + column;
        if (rows.wide)
            *(uint4 *)to = bits;
        else
            for (int j = 0; j < VECTOR && column + j < rows.dim; j++)
                to[j] =
                    first + row < used ? tile_at[row * tile<D>::STRIDE + column + j] : to_bf16(0);
    }
}

typedef struct range {
    int begin, end;
} range;

/* The queries and keys of an op. They are the same tokens, or the queries are some of them
 * (attention.h). */
typedef struct sides {
    const int32_t *cu, *cu_keys;
    const int32_t *place;  /* NULL: query i is key i */
    const int32_t *prefix; /* NULL: no segment has one */
    int64_t segments, tokens, keys;
    bool causal;
} sides;

template <class Args> static __host__ __device__ inline sides sides_of(const Args &all)
{
    return {all.cu,
            all.cu_keys ? all.cu_keys : all.cu,
            all.cu_keys ? all.place : NULL,
            all.prefix,
            all.segments,
            all.tokens,
            all.cu_keys ? all.keys : all.tokens,
            all.causal};
}

/* The segment that contains `token` of n; -1: none does. */
static __device__ inline int64_t segment_of(const int32_t *cu, int64_t segments, int64_t n,
                                            int64_t token)
{
    if (token >= n || segments <= 0 || token >= cu[segments])
        return -1;
    /* Invariant: cu[low] <= token < cu[high]; ends at the last such low. */
    int64_t low = 0, high = segments;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (cu[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The range of segment `before`. Borders and places come from device memory and are read only here
 * and below, so results are clamped to [0, n). */
static __device__ inline range segment_at(const int32_t *cu, int64_t before, int64_t n)
{
    const int64_t begin = max((int64_t)cu[before], (int64_t)0),
                  end = min((int64_t)cu[before + 1], n);
    return {(int)min(begin, end), (int)max(end, (int64_t)0)};
}

/* What a row of a tile sees of the other side: `of` without `gap`. A row with a prefix has its gap
 * between the prefix and its own segment, where other branches lie. Other rows have an empty one.
 */
typedef struct visible {
    range of, gap;
} visible;

static __device__ __forceinline__ bool sees(const visible &within, int token)
{
    return token >= within.of.begin && token < within.of.end &&
           !(token >= within.gap.begin && token < within.gap.end);
}

/* The keys that query `token` sees. */
static __device__ inline visible query_sees(const sides &side, int64_t token)
{
    const int64_t segment = segment_of(side.cu, side.segments, side.tokens, token);
    if (segment < 0)
        return {};
    range own = segment_at(side.cu_keys, segment, side.keys);
    const int self = side.place ? side.place[token] : (int)token;
    if (!side.place)
        own.begin = min(own.begin, self);
    if (side.causal)
        own.end = min(own.end, max(self, own.begin) + 1);
    const int64_t before = side.prefix ? side.prefix[segment] : -1;
    if (before < 0 || before >= segment)
        return {own, {0, 0}};
    const range prefix = segment_at(side.cu_keys, before, side.keys);
    return {{min(prefix.begin, own.begin), own.end}, {min(prefix.end, own.begin), own.begin}};
}

/* The segment after the last branch of `segment`, or after `segment` itself if it has none. */
static __device__ inline int64_t branches_end(const sides &side, int64_t segment)
{
    /* Branches directly follow their prefix, so this is where prefix[i] == segment stops being
     * true. */
    int64_t low = segment + 1, high = side.segments;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (side.prefix[middle] == segment)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The queries that see key `token`. Those of the branches of its segment directly follow, so there
 * is never a gap. */
static __device__ inline visible key_sees(const sides &side, int64_t token)
{
    const int64_t segment = segment_of(side.cu_keys, side.segments, side.keys, token);
    if (segment < 0)
        return {};
    range seen = segment_at(side.cu, segment, side.tokens);
    int begin = seen.begin;
    if (!side.place)
        begin = side.causal ? (int)token : min(begin, (int)token);
    else if (side.causal) {
        /* The binary search ends at the first query that is key `token` or a later one. */
        int high = seen.end;
        while (begin < high) {
            const int middle = (begin + high) / 2;
            if (side.place[middle] < token)
                begin = middle + 1;
            else
                high = middle;
        }
    }
    if (side.prefix)
        seen.end = segment_at(side.cu, branches_end(side, segment) - 1, side.tokens).end;
    return {{begin, max(begin, seen.end)}, {0, 0}};
}

/* What the rows of a tile see of the other side. What a row sees never begins before what an
 * earlier row sees, nor do gaps. It ends no earlier either, except that queries of all branches see
 * the keys of their prefix. */
typedef struct sight {
    visible row[TILE];
    int used;         /* rows before the first one that is in no segment */
    range any;        /* what any used row sees: from the first row's begin to the last end */
    range none;       /* a part of it that no used row sees, or nothing */
    range all;        /* what every used row sees: inside it no mask is needed */
    range all_prefix; /* the same of a prefix that all used rows have */
} sight;

/* Whether the other side's tile from `at` on must be masked. */
static __device__ __forceinline__ bool needs_mask(const sight &sees, int at)
{
    return (at < sees.all.begin || at + TILE > sees.all.end) &&
           (at < sees.all_prefix.begin || at + TILE > sees.all_prefix.end);
}

/* Where the tile after the one from `at` on begins. */
static __device__ __forceinline__ int next_tile(const sight &sees, int at)
{
    const int next = at + TILE;
    return next >= sees.none.begin && next < sees.none.end ? sees.none.end : next;
}

/* Computed by the whole block into shared memory. `keys`: the tile's rows are keys and the other
 * side are queries. */
static __device__ inline void tile_sight(sight *sees, const sides &side, int64_t first, bool keys)
{
    if (threadIdx.x < TILE) {
        const int64_t token = first + threadIdx.x;
        sees->row[threadIdx.x] = keys ? key_sees(side, token) : query_sees(side, token);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        const int64_t n = keys ? side.keys : side.tokens;
        const int32_t *cu = keys ? side.cu_keys : side.cu;
        const int64_t end = side.segments > 0 ? min((int64_t)cu[side.segments], n) : 0;
        sees->used = (int)min(max(end - first, (int64_t)0), (int64_t)TILE);
        sees->any = sees->none = sees->all = sees->all_prefix = range{0, 0};
        if (sees->used > 0) {
            const visible top = sees->row[0], bottom = sees->row[sees->used - 1];
            /* Where a row has no gap, what it does not see before its own segment is one. */
            const int seen_from = bottom.gap.end > 0 ? bottom.gap.end : bottom.of.begin;
            sees->any = range{top.of.begin, bottom.of.end};
            sees->all = range{seen_from, top.of.end};
            for (int row = 0; row < sees->used && side.prefix; row++) {
                sees->any.end = max(sees->any.end, sees->row[row].of.end);
                sees->all.end = min(sees->all.end, sees->row[row].of.end);
            }
            if (top.gap.end > 0 && top.of.begin == bottom.of.begin) {
                sees->none = range{top.gap.begin, top.gap.end};
                sees->all_prefix = range{top.of.begin, top.gap.begin};
            }
        }
    }
    __syncthreads();
}

/* The column of C of `element` of group n; its row is lane / 4 + element / 2 * 8. */
static __device__ __forceinline__ int product_column(int n, int element)
{
    return n * 8 + (int)threadIdx.x % 4 * 2 + element % 2;
}

/* The checks, preparation and launch are the same for kernels of both widths. */
static inline status attention_check(const sides &side, int64_t heads, int64_t kv_heads,
                                     int64_t head_dim)
{
    if (heads <= 0 || kv_heads <= 0 || heads % kv_heads != 0 || head_dim <= 0 ||
        side.tokens > INT_MAX || side.keys > INT_MAX)
        return FAIL(
            ST_BAD_INPUT,
            "attention: there are %lld query heads for %lld key-value heads of width %lld; the "
            "first number must be a multiple of the second",
            (long long)heads, (long long)kv_heads, (long long)head_dim);
    if (head_dim > DIM_MAX)
        return FAIL(ST_BAD_INPUT,
                    "attention: heads are %lld wide; the portable kernels take at most %d",
                    (long long)head_dim, DIM_MAX);
    return ST_OK;
}

#endif
