/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_index.h: the arithmetic of the grouped product, with no GPU in it: which tile of which
 * expert a block computes (both kernels) and, for Hopper's, where a tile's operands lie in device
 * and shared memory and which element each of a thread's accumulators is. Kernels and host tests
 * use the same functions.
 *
 * On Hopper a cluster of two blocks computes two tiles side by side in m. Work is counted in units
 * that follow from the experts' rows alone: tiles of TILE_M rows (FWD, DGRAD), or experts that have
 * rows at all (WGRAD, whose output has the same size for each). first[e] is the number of units
 * before expert e, and begin[e] is its first row.
 *
 *          m                 n             reduced over        A [m, reduced]   B [n, reduced]
 *   FWD    rows of e         N             K                   x  K-major       w  N-major
 *   DGRAD  rows of e         K             N                   y  K-major       w  K-major
 *   WGRAD  K                 N             rows of e           x  M-major       y  N-major
 *
 * ("K-major", as the PTX ISA uses it, means that the reduced axis is the contiguous one.)
 *
 * With `gated` (FWD), N is [gate | up] and a tile has half as many columns of each: the columns
 * from n on of the gate, then those from up + n on of up, so that one thread holds both numbers of
 * a pair.
 *
 * Tiles are numbered with n innermost. The blocks that run at one time then share a few hundred
 * rows of A and one expert's weights, which stay in L2. */
#ifndef TESSERA_TRAINER_OPS_CUDA_GROUPED_INDEX_H
#define TESSERA_TRAINER_OPS_CUDA_GROUPED_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "trainer/ops/gemm.h"

#ifdef __CUDACC__
#define GROUPED_FN static __host__ __device__ __forceinline__
#else
#define GROUPED_FN static inline
#endif

enum {
    GROUPED_TILE_M = 128, /* two warpgroups of 64 rows: wgmma's height */
    GROUPED_TILE_N = 256, /* wgmma's widest: fewest bytes of shared memory per product */
    GROUPED_STEP = 64,    /* step along the reduced axis: one 128-byte swizzle row of bf16 */
    GROUPED_BLOCKS = 2,   /* blocks of a cluster, which load one B together */
    GROUPED_STAGES = 4,
    GROUPED_WARPGROUPS = 3, /* a producer and two consumers */
    GROUPED_THREADS = 128 * GROUPED_WARPGROUPS,
    GROUPED_CONSUMER_WARPS = 8,
    GROUPED_ACCUMULATORS = GROUPED_TILE_N / 2, /* floats of a thread: 64 x 256 over 128 threads */
    GROUPED_EXPERTS_MAX = 1024,

    GROUPED_A_BYTES = GROUPED_TILE_M * GROUPED_STEP * 2,
    GROUPED_B_BYTES = GROUPED_TILE_N * GROUPED_STEP * 2,
    GROUPED_STAGE_BYTES = GROUPED_A_BYTES + GROUPED_B_BYTES,
    /* The part of one consumer warpgroup, whichever way A is laid out. */
    GROUPED_HALF_A = GROUPED_A_BYTES / 2,
    GROUPED_BOX = 64, /* columns of a TMA box: 128 bytes */
    GROUPED_BOX_BYTES = GROUPED_BOX * GROUPED_STEP * 2,
    GROUPED_BOUNCE = 16 * 64 * 2, /* a warp's 16 rows x 64 columns on their way out */

    /* The layout of shared memory: stages, bounces, barriers, then first[] and begin[]. */
    GROUPED_AT_BOUNCE = GROUPED_STAGES * GROUPED_STAGE_BYTES,
    GROUPED_AT_BARRIERS = GROUPED_AT_BOUNCE + GROUPED_CONSUMER_WARPS * GROUPED_BOUNCE,
    GROUPED_AT_TABLES = GROUPED_AT_BARRIERS + 128
};

/* What a launch knows without reading device memory. */
typedef struct grouped_work {
    int mode; /* GROUPED_* of gemm.h */
    int32_t experts, rows_cap;
    int32_t out_m;  /* WGRAD: K, rows of an expert's output; else unused */
    int32_t out_n;  /* columns of the output: FWD N (gated N/2), DGRAD K, WGRAD N */
    int32_t up;     /* gated: columns from a gate to its up, N/2; else 0 */
    int32_t reduce; /* FWD K, DGRAD N; WGRAD unused */
    /* Properties of the kernel. */
    /* Columns of a tile (gated: of its gate), and length of the reduced axis in one step. */
    int32_t tile_n, step;
    int32_t blocks; /* blocks that compute a tile each, side by side in m: 1 or 2 */
    int32_t turns;  /* how many times the grid's blocks fill the GPU (grouped_walk_of) */
} grouped_work;

/* The tiles that a cluster computes: `count` of them, which are first, first + step, .. */
typedef struct grouped_walk {
    int64_t first;
    int32_t step, count; /* of 32 bits, since the portable kernel has no registers to spare */
} grouped_walk;

/* Where results go. */
typedef struct grouped_out {
    void *y;                    /* FWD and DGRAD bf16, WGRAD f32; gated: NULL if it is not wanted */
    void *gated;                /* bf16 */
    struct kernel_stuck *stuck; /* for a wait that never ends (trainer/device/cuda.h) */
} grouped_out;

GROUPED_FN int32_t grouped_ceil(int32_t a, int32_t b)
{
    return (int32_t)(((int64_t)a + b - 1) / b);
}

GROUPED_FN grouped_work grouped_work_of(const grouped_gemm_args *args, int32_t tile_n, int32_t step,
                                        int32_t blocks)
{
    grouped_work work;
    work.mode = args->mode;
    work.experts = (int32_t)args->experts;
    work.rows_cap = (int32_t)args->rows_cap;
    work.out_m = (int32_t)args->k;
    work.up = args->gated ? (int32_t)(args->n / 2) : 0;
    work.out_n = args->mode == GROUPED_DGRAD ? (int32_t)args->k
                 : args->gated               ? work.up
                                             : (int32_t)args->n;
    work.reduce = (int32_t)(args->mode == GROUPED_DGRAD ? args->n : args->k);
    work.tile_n = args->gated ? tile_n / 2 : tile_n;
    work.step = step;
    work.blocks = blocks;
    work.turns = 1;
    return work;
}

/* Sets work->turns, and returns how many clusters to start where `at_once` fit on the GPU. `turns`
 * is what the device wants (cuda_facts); few tiles take fewer. */
GROUPED_FN int64_t grouped_clusters(grouped_work *work, int64_t tiles, int64_t at_once, int turns)
{
    if (tiles <= at_once)
        return tiles;
    work->turns = tiles / at_once < turns ? (int32_t)(tiles / at_once) : turns;
    return at_once * work->turns;
}

GROUPED_FN int32_t grouped_shared_bytes(int32_t experts)
{
    return GROUPED_AT_TABLES + 2 * (experts + 1) * (int32_t)sizeof(int32_t);
}

/* Offsets come from device memory. A wrong one must not lead outside x and y, so it is clamped. */
GROUPED_FN int32_t grouped_clamp(int32_t offset, int32_t rows_cap)
{
    return offset < 0 ? 0 : offset > rows_cap ? rows_cap : offset;
}

GROUPED_FN int32_t grouped_units(int mode, int32_t rows)
{
    if (rows <= 0)
        return 0;
    return mode == GROUPED_WGRAD ? 1 : grouped_ceil(rows, GROUPED_TILE_M);
}

/* The number of tiles to compute, each by `blocks` blocks. */
GROUPED_FN int64_t grouped_tiles(const grouped_work *work, int32_t units)
{
    int64_t across = grouped_ceil(work->out_n, work->tile_n);
    if (work->mode == GROUPED_WGRAD)
        return across * units * grouped_ceil(work->out_m, work->blocks * GROUPED_TILE_M);
    return across * grouped_ceil(units, work->blocks);
}

/* The walk of cluster `cluster` of `clusters`. In one turn all of them are on the GPU together and
 * divide all tiles among them, so that one that starts late ends late. In T turns a T-th of the
 * clusters divide a T-th of the tiles, and the GPU starts the next cluster wherever one has ended:
 * where other kernels hold some multiprocessors, the rest take more clusters. Which cluster
 * computes a tile does not change its bits. */
GROUPED_FN grouped_walk grouped_walk_of(const grouped_work *work, int64_t tiles, int64_t cluster,
                                        int64_t clusters)
{
    grouped_walk walk;
    int64_t share = (tiles + work->turns - 1) / work->turns, turn, end;
    walk.step = (int32_t)(clusters / work->turns);
    turn = cluster / walk.step;
    walk.first = turn * share + cluster % walk.step;
    end = (turn + 1) * share < tiles ? (turn + 1) * share : tiles;
    walk.count = walk.first < end ? (int32_t)((end - walk.first + walk.step - 1) / walk.step) : 0;
    return walk;
}

/* The expert that `unit` belongs to: first[e] <= unit < first[e + 1]. */
GROUPED_FN int32_t grouped_find(const int32_t *first, int32_t experts, int32_t unit)
{
    int32_t low = 0, high = experts - 1;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (unit < first[middle + 1])
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* One block's tile. */
typedef struct grouped_tile {
    int32_t expert;
    int32_t row;   /* first row of x and y */
    int32_t m;     /* first row of the output: row, or of dw[expert] */
    int32_t n;     /* first column of the output */
    int32_t up;    /* work.up */
    int32_t valid; /* rows of the output that belong to this tile, 0 to TILE_M */
    int32_t steps; /* steps along the reduced axis, each work.step long */
    int32_t tail;  /* WGRAD: rows of the last step that belong to this expert, 1 to work.step */
    bool shared;   /* both blocks multiply by the same B */
} grouped_tile;

GROUPED_FN int32_t grouped_min(int32_t a, int32_t tile_n)
{
    return a < tile_n ? a : tile_n;
}

/* Tile `at`, of 0 to grouped_tiles - 1, for block `rank` of `blocks`. Where the number of m tiles
 * is odd, the second block of the last cluster repeats the first one's tile without storing it, so
 * that both blocks always walk in step. */
GROUPED_FN grouped_tile grouped_tile_at(const grouped_work *work, const int32_t *first,
                                        const int32_t *begin, int64_t at, int32_t rank)
{
    grouped_tile tile;
    int32_t across = grouped_ceil(work->out_n, work->tile_n);
    int32_t pair = (int32_t)(at / across);
    tile.n = (int32_t)(at % across) * work->tile_n;
    tile.up = work->up;
    if (work->mode == GROUPED_WGRAD) {
        int32_t pairs = grouped_ceil(work->out_m, work->blocks * GROUPED_TILE_M);
        tile.expert = grouped_find(first, work->experts, pair / pairs);
        tile.row = begin[tile.expert];
        tile.m = (pair % pairs * work->blocks + rank) * GROUPED_TILE_M;
        tile.valid = grouped_min(work->out_m - tile.m, GROUPED_TILE_M);
        tile.valid = tile.valid < 0 ? 0 : tile.valid;
        int32_t rows = begin[tile.expert + 1] - tile.row;
        tile.steps = grouped_ceil(rows, work->step);
        tile.tail = rows - (tile.steps - 1) * work->step;
        tile.shared = true;
        return tile;
    }
    int32_t units = first[work->experts], unit = pair * work->blocks;
    int32_t expert = grouped_find(first, work->experts, unit);
    tile.shared = unit + 1 >= units || unit + 1 < first[expert + 1];
    bool idle = rank == 1 && unit + 1 >= units;
    if (rank == 1 && !idle)
        unit++;
    tile.expert = tile.shared ? expert : grouped_find(first, work->experts, unit);
    tile.row = begin[tile.expert] + (unit - first[tile.expert]) * GROUPED_TILE_M;
    tile.m = tile.row;
    tile.valid = idle ? 0 : grouped_min(begin[tile.expert + 1] - tile.row, GROUPED_TILE_M);
    tile.steps = grouped_ceil(work->reduce, work->step);
    tile.tail = work->step;
    return tile;
}

/* The 128-byte swizzle of TMA and wgmma (PTX ISA 5.5.7): bits 7 to 9 of an address are XORed into
 * bits 4 to 6. Addresses are those of shared memory, in blocks of 1024 bytes. */
GROUPED_FN uint32_t grouped_swizzle(uint32_t address)
{
    return address ^ ((address >> 7 & 7) << 4);
}

/* wgmma's matrix descriptor (PTX ISA 9.7.15.5.1.2.2), 128-byte swizzle: start, leading and stride
 * byte offsets without their last four bits. */
GROUPED_FN uint64_t grouped_descriptor(uint32_t address, uint32_t leading, uint32_t stride)
{
    return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)(leading >> 4 & 0x3fff) << 16 |
           (uint64_t)(stride >> 4 & 0x3fff) << 32 | (uint64_t)1 << 62;
}

/* How an operand lies in its part of a stage.
 *
 * K-major: a row of the tile is one 128-byte line; 8 lines are a swizzle block, the next 8 rows
 * 1024 bytes on. 16 columns further: 32 bytes.
 * MN-major: a line holds 64 rows of the tile for one column; 8 lines (columns) are a swizzle block;
 * the next 64 rows are the next TMA box. 16 columns further: 2048 bytes. */
typedef struct grouped_operand {
    bool transposed; /* MN-major */
    uint32_t leading, stride, advance;
    int32_t boxes, box_bytes; /* TMA boxes of a tile's operand */
} grouped_operand;

GROUPED_FN grouped_operand grouped_operand_of(bool transposed, int32_t tile_rows)
{
    grouped_operand operand;
    operand.transposed = transposed;
    operand.leading = transposed ? GROUPED_BOX_BYTES : 0;
    operand.stride = 1024;
    operand.advance = transposed ? 2048 : 32;
    operand.box_bytes = transposed ? GROUPED_BOX_BYTES : 128 * 128; /* 64 x 64, or 128 rows of 64 */
    operand.boxes = tile_rows * 128 / operand.box_bytes;
    return operand;
}

GROUPED_FN grouped_operand grouped_a(int mode)
{
    return grouped_operand_of(mode == GROUPED_WGRAD, GROUPED_TILE_M);
}

GROUPED_FN grouped_operand grouped_b(int mode)
{
    return grouped_operand_of(mode != GROUPED_DGRAD, GROUPED_TILE_N);
}

/* The first element of a TMA box, innermost axis first. Axis 2 is the expert (weights only). */
typedef struct grouped_coordinate {
    int32_t c0, c1, c2;
} grouped_coordinate;

GROUPED_FN grouped_coordinate grouped_a_box(int mode, const grouped_tile *tile, int32_t step,
                                            int32_t box)
{
    grouped_coordinate at;
    bool wgrad = mode == GROUPED_WGRAD;
    at.c0 = wgrad ? tile->m + box * GROUPED_BOX : step * GROUPED_STEP;
    at.c1 = wgrad ? tile->row + step * GROUPED_STEP : tile->row;
    at.c2 = 0;
    return at;
}

GROUPED_FN grouped_coordinate grouped_b_box(int mode, const grouped_tile *tile, int32_t step,
                                            int32_t box)
{
    /* In a gated product, how many of the boxes are the gate's. */
    enum { HALF = GROUPED_TILE_N / 2 / GROUPED_BOX };
    grouped_coordinate at;
    int32_t column = mode == GROUPED_FWD && tile->up && box >= HALF
                         ? tile->up + (box - HALF) * GROUPED_BOX
                         : box * GROUPED_BOX;
    at.c0 = mode == GROUPED_DGRAD ? step * GROUPED_STEP : tile->n + column;
    at.c1 = mode == GROUPED_FWD     ? step * GROUPED_STEP
            : mode == GROUPED_DGRAD ? tile->n + box * 128
                                    : tile->row + step * GROUPED_STEP;
    at.c2 = mode == GROUPED_WGRAD ? 0 : tile->expert;
    return at;
}

/* Which element accumulator `index` of a thread of a consumer warpgroup is (PTX ISA 9.7.15.5.1.1):
 * its row among the warpgroup's 64, and its column. */
GROUPED_FN int32_t grouped_acc_row(int32_t thread, int32_t index)
{
    return thread / 32 * 16 + thread % 32 / 4 + (index & 2) * 4;
}

GROUPED_FN int32_t grouped_acc_column(int32_t thread, int32_t index)
{
    return index / 4 * 8 + thread % 4 * 2 + (index & 1);
}

/* Where byte 0..127 of row 0..15 lies in a warp's bounce. It is swizzled, so that neither the
 * accumulators' 4-byte stores nor the 16-byte loads have bank conflicts. */
GROUPED_FN uint32_t grouped_bounce(int32_t row, int32_t byte)
{
    return grouped_swizzle((uint32_t)(row * 128 + byte));
}

#endif
