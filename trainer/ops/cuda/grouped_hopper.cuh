/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_hopper.cuh: the grouped product on Hopper. A persistent kernel has a producer that feeds
 * shared memory by TMA, and two warpgroups that multiply with wgmma.
 *
 *   producer (1 thread)   for each tile, for each 64 of the reduced axis:
 *                           wait empty[stage], expect bytes on full[stage], load A and B
 *   consumers (2 x 128)   wait full[stage], 4 products; when the products before are done,
 *                         arrive at empty[stage] of both blocks; after the last step, store the tile
 *
 * The two blocks of a cluster have different rows and, inside an expert, the same columns of B:
 * each loads one half of B into both blocks. So a block waits for its own empty[], which counts the
 * consumers of both. Where the pair spans two experts, each block loads its own B in the same
 * rhythm.
 *
 * Every block finds for itself, from `offset` in device memory, which tiles there are
 * (grouped_index.h). This needs no host and no device-wide counter. Tiles go to clusters by number,
 * so the same input gives the same bits, and every element of the output is stored, or added to,
 * exactly once.
 *
 * A gated tile (FWD) multiplies by 128 columns of the gate and the same columns of up, so that one
 * thread holds both numbers of a pair and SwiGLU needs no exchange.
 *
 * The last tile of an expert may reach over rows of the next expert or of no expert. These rows are
 * multiplied but not stored. In WGRAD they would enter the sums, so they are zeroed in shared
 * memory in the last step: in both A and B, since memory that nothing has written may hold NaN.
 *
 * Bytes: a step of 64 loads 16 KiB of A and 16 KiB of B (32 where B is not shared) for 4.2 MFLOP a
 * block, which at 650 TFLOP/s is 5 TB/s from L2. FLOPs: 2 rows K N. The tensor cores are the limit
 * as long as an expert has some hundred rows. Sums are f32, inside the tensor cores. */
#ifndef TESSERA_TRAINER_OPS_CUDA_GROUPED_HOPPER_CUH
#define TESSERA_TRAINER_OPS_CUDA_GROUPED_HOPPER_CUH

#include <cuda_bf16.h>

#include "trainer/ops/cuda/grouped_scan.cuh"
#include "trainer/ops/cuda/hopper.cuh"
#include "trainer/ops/cuda/sigmoid.cuh"

/* setmaxnreg redistributes the registers that the launch got, 168 for each of 384 threads (the most
 * that a block of them can have). A consumer that asks for more than the producer gave up waits for
 * ever. */
enum {
    GROUPED_LAUNCH_REGISTERS = 168,
    GROUPED_PRODUCER_REGISTERS = 40,
    GROUPED_CONSUMER_REGISTERS = 232
};
static_assert(128 * GROUPED_PRODUCER_REGISTERS + 256 * GROUPED_CONSUMER_REGISTERS <=
                  GROUPED_THREADS * GROUPED_LAUNCH_REGISTERS,
              "registers of the warpgroups");
static_assert(GROUPED_THREADS * GROUPED_LAUNCH_REGISTERS <= 65536, "the register file");
/* Number of the barrier of both consumer warpgroups; 0 is __syncthreads'. */
enum { GROUPED_TAIL_BARRIER = 1 };

typedef struct grouped_shared {
    unsigned char *stages, *bounce;
    uint64_t *full, *empty; /* [STAGES] */
    int32_t *first, *begin; /* [experts + 1] */
    kernel_stuck *stuck;
} grouped_shared;

static __device__ __forceinline__ grouped_shared grouped_shared_of(unsigned char *base,
                                                                   int32_t experts)
{
    grouped_shared shared;
    shared.stages = base;
    shared.bounce = base + GROUPED_AT_BOUNCE;
    shared.full = (uint64_t *)(base + GROUPED_AT_BARRIERS);
    shared.empty = shared.full + GROUPED_STAGES;
    shared.first = (int32_t *)(base + GROUPED_AT_TABLES);
    shared.begin = shared.first + experts + 1;
    return shared;
}

/* A position in the ring of stages, with the parity of its phase. */
typedef struct grouped_place {
    int stage;
    uint32_t parity;
} grouped_place;

static __device__ __forceinline__ void grouped_advance(grouped_place &place)
{
    place.stage++;
    if (place.stage == GROUPED_STAGES) {
        place.stage = 0;
        place.parity ^= 1;
    }
}

template <int MODE>
static __device__ __forceinline__ void
grouped_load(const grouped_shared &shared, const CUtensorMap *a_map, const CUtensorMap *b_map,
             const grouped_tile &tile, int step, int rank, int stage)
{
    const grouped_operand left = grouped_a(MODE), right = grouped_b(MODE);
    unsigned char *to = shared.stages + stage * GROUPED_STAGE_BYTES;
    uint64_t *full = &shared.full[stage];
    barrier_expect(full, GROUPED_STAGE_BYTES);
    for (int i = 0; i < left.boxes; i++) {
        grouped_coordinate at = grouped_a_box(MODE, &tile, step, i);
        tma_load(to + i * left.box_bytes, a_map, full, at.c0, at.c1, at.c2);
    }
    to += GROUPED_A_BYTES;
    int half = right.boxes / GROUPED_BLOCKS;
    for (int i = 0; i < right.boxes; i++) {
        grouped_coordinate at = grouped_b_box(MODE, &tile, step, i);
        if (!tile.shared)
            tma_load(to + i * right.box_bytes, b_map, full, at.c0, at.c1, at.c2);
        else if (i / half == rank)
            tma_load_shared(to + i * right.box_bytes, b_map, full, at.c0, at.c1, at.c2,
                            (1 << GROUPED_BLOCKS) - 1);
    }
}

template <int MODE>
static __device__ void grouped_produce(const grouped_work &work, const grouped_shared &shared,
                                       const CUtensorMap *a_map, const CUtensorMap *b_map, int rank,
                                       int64_t cluster, int64_t clusters)
{
    const grouped_walk walk =
        grouped_walk_of(&work, grouped_tiles(&work, shared.first[work.experts]), cluster, clusters);
    grouped_place place = {0, 1}; /* so that all stages are free at first */
    int64_t at = walk.first;
    for (int32_t i = 0; i < walk.count; i++, at += walk.step) {
        grouped_tile tile = grouped_tile_at(&work, shared.first, shared.begin, at, rank);
        for (int step = 0; step < tile.steps; step++) {
            barrier_wait(&shared.empty[place.stage], place.parity, shared.stuck,
                         STUCK_GROUPED + MODE, 2 * place.stage);
            grouped_load<MODE>(shared, a_map, b_map, tile, step, rank, place.stage);
            grouped_advance(place);
        }
    }
}

/* Says that this warp has read the stage: one arrival in each block. */
static __device__ __forceinline__ void grouped_release(const grouped_shared &shared, int stage)
{
    uint32_t lane = threadIdx.x % 32;
    if (lane < GROUPED_BLOCKS)
        barrier_arrive_at(&shared.empty[stage], lane);
}

/* WGRAD: zeroes the rows from `tail` on in the stage's A and B, which are not this expert's. */
static __device__ __forceinline__ void grouped_zero_tail(unsigned char *stage, int tail, int thread)
{
    enum { CHUNK = 16, CHUNKS = 128 / CHUNK, BOXES = GROUPED_STAGE_BYTES / GROUPED_BOX_BYTES };
    const uint4 zero = {0, 0, 0, 0};
    int per_box = (GROUPED_STEP - tail) * CHUNKS;
    for (int i = thread; i < BOXES * per_box; i += 2 * 128)
        *(uint4 *)(stage + i / per_box * GROUPED_BOX_BYTES + tail * 128 + i % per_box * CHUNK) =
            zero;
    fence_async_shared();
    named_sync(GROUPED_TAIL_BARRIER, 2 * 128);
}

/* Computes all steps of a tile into d. The products of one step run while the next stage is waited
 * for. */
template <int MODE>
static __device__ __forceinline__ void
grouped_multiply(const grouped_shared &shared, const grouped_tile &tile, int group,
                 grouped_place &place, float (&d)[GROUPED_ACCUMULATORS])
{
    const grouped_operand oa = grouped_a(MODE), ob = grouped_b(MODE);
    int before = 0;
    for (int step = 0; step < tile.steps; step++) {
        unsigned char *stage = shared.stages + place.stage * GROUPED_STAGE_BYTES;
        barrier_wait(&shared.full[place.stage], place.parity, shared.stuck, STUCK_GROUPED + MODE,
                     2 * place.stage + 1);
        if (MODE == GROUPED_WGRAD && step == tile.steps - 1 && tile.tail < GROUPED_STEP)
            grouped_zero_tail(stage, tile.tail, threadIdx.x - 128);
        uint32_t at = hopper_address(stage);
        uint64_t a = grouped_descriptor(at + group * GROUPED_HALF_A, oa.leading, oa.stride);
        uint64_t b = grouped_descriptor(at + GROUPED_A_BYTES, ob.leading, ob.stride);
        wgmma_fence();
        for (int k = 0; k < GROUPED_STEP / 16; k++)
            wgmma_64x256x16<MODE == GROUPED_WGRAD, MODE != GROUPED_DGRAD>(
                d, a + k * (oa.advance >> 4), b + k * (ob.advance >> 4), step > 0 || k > 0);
        wgmma_commit();
        if (step > 0) {
            wgmma_wait<1>();
            grouped_release(shared, before);
        }
        before = place.stage;
        grouped_advance(place);
    }
    wgmma_wait<0>();
    wgmma_results(d);
    if (tile.steps > 0)
        grouped_release(shared, before);
}

static __device__ __forceinline__ uint32_t grouped_pack(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

/* How a warp stores its 16 rows: 64 columns at a time through its part of shared memory (its
 * "bounce"), so that a row leaves in whole 128-byte lines. */
typedef struct grouped_exit {
    unsigned char *bounce;
    int lane;
    int64_t row;     /* the first of them in the output */
    int valid, most; /* how many rows and columns are stored */
} grouped_exit;

/* Stores 64 columns: v is this thread's pairs, which go to the columns from `column` on of the
 * rows, `width` wide, at out. */
static __device__ __forceinline__ void grouped_leave(const grouped_exit &exit_of,
                                                     const uint32_t (&words)[16],
                                                     __nv_bfloat16 *out, int width, int column)
{
#pragma unroll
    for (int i = 0; i < 16; i++)
        *(uint32_t *)(exit_of.bounce +
                      grouped_bounce(grouped_acc_row(exit_of.lane, 2 * i),
                                     grouped_acc_column(exit_of.lane, 2 * i) * 2)) = words[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = i * 4 + exit_of.lane / 8, at = column + exit_of.lane % 8 * 8;
        uint4 line = *(const uint4 *)(exit_of.bounce + grouped_bounce(row, exit_of.lane % 8 * 16));
        if (row < exit_of.valid && at < exit_of.most)
            *(uint4 *)(out + (exit_of.row + row) * width + at) = line;
    }
    __syncwarp();
}

/* Stores d as bf16 in the tile's rows of y. */
static __device__ __forceinline__ void grouped_store(const grouped_exit &exit_of,
                                                     const grouped_tile &tile,
                                                     const float (&d)[GROUPED_ACCUMULATORS],
                                                     __nv_bfloat16 *y)
{
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) {
        uint32_t words[16];
#pragma unroll
        for (int i = 0; i < 16; i++)
            words[i] = grouped_pack(d[quarter * 32 + 2 * i], d[quarter * 32 + 2 * i + 1]);
        grouped_leave(exit_of, words, y, exit_of.most, tile.n + quarter * 64);
    }
}

static __device__ __forceinline__ uint32_t grouped_swiglu(uint32_t gate, uint32_t up)
{
    return grouped_pack(
        swiglu(__uint_as_float(gate << 16), __uint_as_float(up << 16)),
        swiglu(__uint_as_float(gate & 0xffff0000u), __uint_as_float(up & 0xffff0000u)));
}

/* d holds 128 columns of the gate and the same columns of up. Stores SwiGLU of both, from the
 * values as they are rounded for y; y is stored too where it is wanted. */
static __device__ __forceinline__ void grouped_store_gated(const grouped_exit &exit_of,
                                                           const grouped_tile &tile,
                                                           const float (&d)[GROUPED_ACCUMULATORS],
                                                           const grouped_out &out)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t gate[16], up[16];
        int column = tile.n + half * 64;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int at = half * 32 + 2 * i;
            gate[i] = grouped_pack(d[at], d[at + 1]);
            up[i] = grouped_pack(d[64 + at], d[64 + at + 1]);
        }
        if (out.y) {
            grouped_leave(exit_of, gate, (__nv_bfloat16 *)out.y, 2 * tile.up, column);
            grouped_leave(exit_of, up, (__nv_bfloat16 *)out.y + tile.up, 2 * tile.up, column);
        }
#pragma unroll
        for (int i = 0; i < 16; i++)
            gate[i] = grouped_swiglu(gate[i], up[i]);
        grouped_leave(exit_of, gate, (__nv_bfloat16 *)out.gated, tile.up, column);
    }
}

template <int MODE>
static __device__ __forceinline__ void
grouped_finish(const grouped_work &work, const grouped_shared &shared, const grouped_tile &tile,
               int group, const float (&d)[GROUPED_ACCUMULATORS], const grouped_out &out)
{
    int thread = threadIdx.x % 128, warp = thread / 32;
    grouped_exit exit_of;
    exit_of.bounce = shared.bounce + (group * 4 + warp) * GROUPED_BOUNCE;
    exit_of.lane = thread % 32;
    int top = group * 64 + warp * 16; /* the first of the warp's rows in the tile */
    exit_of.row = (int64_t)tile.m + top;
    exit_of.valid = tile.valid - top;
    exit_of.most = work.out_n;
    if (exit_of.valid <= 0)
        return;
    if (MODE == GROUPED_FWD && tile.up)
        grouped_store_gated(exit_of, tile, d, out);
    else
        grouped_store(exit_of, tile, d, (__nv_bfloat16 *)out.y);
}

/* dw[expert] += d. Neighbouring lanes exchange halves, so that each adds 16 bytes to one row. */
static __device__ __forceinline__ void grouped_add(const grouped_work &work,
                                                   const grouped_tile &tile, int group,
                                                   const float (&d)[GROUPED_ACCUMULATORS],
                                                   float *out)
{
    int thread = threadIdx.x % 128;
    bool odd = thread & 1; /* an odd lane takes the row 8 further down */
    int row = group * 64 + grouped_acc_row(thread, odd ? 2 : 0);
    float *line = out + ((int64_t)tile.expert * work.out_m + tile.m + row) * work.out_n;
#pragma unroll
    for (int i = 0; i < GROUPED_ACCUMULATORS; i += 4) {
        float give0 = odd ? d[i] : d[i + 2], give1 = odd ? d[i + 1] : d[i + 3];
        float got0 = __shfl_xor_sync(0xffffffffu, give0, 1);
        float got1 = __shfl_xor_sync(0xffffffffu, give1, 1);
        int column = tile.n + grouped_acc_column(thread & ~1, i);
        if (row >= tile.valid || column >= work.out_n)
            continue;
        if (odd)
            global_add4(line + column, got0, got1, d[i + 2], d[i + 3]);
        else
            global_add4(line + column, d[i], d[i + 1], got0, got1);
    }
}

template <int MODE>
static __device__ void grouped_consume(const grouped_work &work, const grouped_shared &shared,
                                       const grouped_out &out, int group, int rank, int64_t cluster,
                                       int64_t clusters)
{
    const grouped_walk walk =
        grouped_walk_of(&work, grouped_tiles(&work, shared.first[work.experts]), cluster, clusters);
    grouped_place place = {0, 0};
    float d[GROUPED_ACCUMULATORS];
    int64_t at = walk.first;
    for (int32_t i = 0; i < walk.count; i++, at += walk.step) {
        grouped_tile tile = grouped_tile_at(&work, shared.first, shared.begin, at, rank);
        grouped_multiply<MODE>(shared, tile, group, place, d);
        if (MODE == GROUPED_WGRAD)
            grouped_add(work, tile, group, d, (float *)out.y);
        else
            grouped_finish<MODE>(work, shared, tile, group, d, out);
    }
}

template <int MODE>
static __device__ __forceinline__ void
grouped_block(const grouped_work &work, unsigned char *shared, const CUtensorMap *a_map,
              const CUtensorMap *b_map, const int32_t *offset, const grouped_out &out)
{
    grouped_shared parts = grouped_shared_of(shared, work.experts);
    parts.stuck = out.stuck;
    int warpgroup = threadIdx.x / 128, rank = blockIdx.x % GROUPED_BLOCKS;
    int64_t cluster = blockIdx.x / GROUPED_BLOCKS, clusters = gridDim.x / GROUPED_BLOCKS;
    if (threadIdx.x == 0) {
        tma_prefetch(a_map);
        tma_prefetch(b_map);
        for (int i = 0; i < GROUPED_STAGES; i++) {
            barrier_init(&parts.full[i], 1);
            barrier_init(&parts.empty[i], GROUPED_BLOCKS * GROUPED_CONSUMER_WARPS);
        }
        barrier_init_fence();
    }
    if (threadIdx.x / 32 == 1)
        grouped_scan(work, offset, parts.first, parts.begin);
    __syncthreads();
    cluster_sync();
    if (warpgroup == 0) {
        registers_give<GROUPED_PRODUCER_REGISTERS>();
        if (threadIdx.x == 0)
            grouped_produce<MODE>(work, parts, a_map, b_map, rank, cluster, clusters);
        __syncwarp();
    } else {
        registers_take<GROUPED_CONSUMER_REGISTERS>();
        grouped_consume<MODE>(work, parts, out, warpgroup - 1, rank, cluster, clusters);
    }
    __syncthreads();
    cluster_sync(); /* the other block may still signal to, or load into, this block's memory */
}

#endif
