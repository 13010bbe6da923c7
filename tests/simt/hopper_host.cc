/* SPDX-License-Identifier: Apache-2.0 */
/* hopper_host.cc: the implementation of hopper_host.h. Letters: a, b the factors of a product; d
 * its sums; k the summed axis. */
#include "tests/simt/hopper_host.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <vector>

#include "trainer/ops/cuda/waits.cuh"

extern "C" {
#include "tests/simt/fiber.h"
}

enum { ADDRESS0 = 1024, LANDING_ODDS = 3 }; /* a load lands once in so many rounds, on average */

struct product {
    float *d;
    uint64_t a, b;
    bool add, trans_a, trans_b;
    int group;
};

struct host_thread {
    fiber *own;
    int block, number;
    bool done;
    std::vector<product> products;
    int committed;
};

struct meeting { /* threads that wait for each other */
    int here;
    int64_t turn;
};

struct host_block {
    unsigned char *shared;
    meeting syncthreads, named[16];
};

struct host_warp {
    meeting met;
    uint64_t value[2][32]; /* for this turn and the next */
};

struct landing {
    const CUtensorMap *map;
    int block;
    size_t to, barrier; /* offsets from the block's base */
    int32_t corner[3];
};

/* The contents of an mbarrier. `bytes` are those expected that have not arrived yet, plus BIAS,
 * since bytes can arrive before they are expected. */
struct mbarrier_bits {
    uint64_t phase : 1, count : 12, pending : 12, bytes : 39;
};
static const int64_t BIAS = INT64_C(1) << 38;

static std::vector<host_thread> threads;
static std::vector<host_block> blocks;
static std::vector<host_warp> warps;
static std::vector<landing> landings;
static meeting cluster_meeting;
static host_thread *now;
static size_t shared_bytes;
static int block_threads, cluster_blocks;
static int64_t progress;
static bool hopeless; /* nothing has happened for a while, and nothing will */
static uint64_t dice;
static void (*run_body)(void *);
static void *run_context;

simt_dim threadIdx, blockIdx, blockDim, gridDim;

__attribute__((format(printf, 1, 2), noreturn)) static void die(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "hopper_host: ");
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(1);
}

static uint32_t roll_dice(uint32_t below)
{
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(dice >> 33) % below;
}

static void yield(void)
{
    fiber_switch(now->own, NULL);
}

static void meet_threads(meeting *here, int of)
{
    int64_t turn = here->turn;
    if (++here->here == of) {
        here->here = 0;
        here->turn++;
        progress++;
        return;
    }
    while (here->turn == turn)
        yield();
}

static host_warp *warp_of(const host_thread *thread)
{
    return &warps[(size_t)(thread->block * block_threads + thread->number) / 32];
}

/* ---- what simt.h needs ---- */

extern "C" void simt_barrier(const char *, int)
{
    meet_threads(&blocks[(size_t)now->block].syncthreads, block_threads);
}

extern "C" uint64_t simt_warp(int kind, unsigned mask, uint64_t value, unsigned operand, unsigned,
                              const char *, int line)
{
    if (mask != 0xffffffffu)
        die("line %d: a warp operation names only some lanes", line);
    host_warp *warp = warp_of(now);
    int lane = now->number % 32, from = lane;
    uint64_t *deposit = warp->value[warp->met.turn % 2];
    deposit[lane] = value;
    meet_threads(&warp->met, 32);
    if (kind == SIMT_XOR)
        from = lane ^ (int)operand;
    else if (kind == SIMT_UP)
        from = lane >= (int)operand ? lane - (int)operand : lane;
    else if (kind == SIMT_INDEX)
        from = (int)operand % 32;
    else if (kind != SIMT_SYNC)
        die("line %d: this warp operation is not implemented here", line);
    return deposit[from];
}

extern "C" void *simt_shared(void)
{
    return hopper_shared();
}

/* ---- blocks and barriers ---- */

unsigned char *hopper_shared(void)
{
    return blocks[(size_t)now->block].shared;
}

static size_t find_offset(const void *address)
{
    const unsigned char *base = hopper_shared();
    if ((const unsigned char *)address < base ||
        (const unsigned char *)address >= base + shared_bytes)
        die("an address outside the block's shared memory");
    return (size_t)((const unsigned char *)address - base);
}

uint32_t hopper_address(const void *shared)
{
    return (uint32_t)find_offset(shared) + ADDRESS0;
}

static mbarrier_bits load_barrier(int block, size_t at)
{
    mbarrier_bits bits;
    memcpy(&bits, blocks[(size_t)block].shared + at, sizeof bits);
    return bits;
}

/* Counts arrivals, and adds to the expected bytes. */
static void change(int block, size_t at, int arrivals, int64_t bytes)
{
    mbarrier_bits bits = load_barrier(block, at);
    if ((int)bits.pending < arrivals)
        die("block %d, barrier at %zu: one arrival more than it counts", block, at);
    bits.pending = bits.pending - (unsigned)arrivals;
    bits.bytes = (uint64_t)((int64_t)bits.bytes + bytes);
    if (bits.pending == 0 && (int64_t)bits.bytes == BIAS) {
        bits.phase ^= 1;
        bits.pending = bits.count;
    }
    memcpy(blocks[(size_t)block].shared + at, &bits, sizeof bits);
    progress++;
}

void barrier_init(uint64_t *b, uint32_t count)
{
    mbarrier_bits bits = {};
    bits.count = bits.pending = count;
    bits.bytes = (uint64_t)BIAS;
    memcpy(b, &bits, sizeof bits);
}

void barrier_init_fence(void)
{
}

void barrier_expect(uint64_t *b, uint32_t bytes)
{
    change(now->block, find_offset(b), 1, bytes);
}

void barrier_arrive_at(uint64_t *b, uint32_t rank)
{
    change((int)rank, find_offset(b), 1, 0);
}

/* Ends the process at once, as a trap ends all work on a GPU. */
extern "C" void simt_trap(const char *, int)
{
    fprintf(stderr, "hopper_host: block %u: the kernel traps\n", blockIdx.x);
    _exit(1);
}

/* Gives up as the kernel does, but once nothing happens any more and not after a time. */
void barrier_wait(uint64_t *b, uint32_t parity, kernel_stuck *stuck, int kernel, int barrier)
{
    while (load_barrier(now->block, find_offset(b)).phase == parity) {
        if (hopeless && stuck)
            give_up_wait(stuck, {kernel, (int32_t)blockIdx.x, barrier, (int32_t)parity});
        yield();
    }
}

void named_sync(int id, int of)
{
    meet_threads(&blocks[(size_t)now->block].named[id], of);
}

void cluster_sync(void)
{
    meet_threads(&cluster_meeting, block_threads * cluster_blocks);
}

void fence_async_shared(void)
{
}

/* ---- TMA ---- */

static uint32_t swizzle(uint32_t address)
{
    return address ^ ((address & 0x380) >> 3);
}

static void land(const landing &copy)
{
    const CUtensorMap *map = copy.map;
    unsigned char *base = blocks[(size_t)copy.block].shared;
    for (int row = 0; row < map->box_rows; row++)
        for (int column = 0; column < 64; column++) {
            int64_t across = copy.corner[0] + column, down = copy.corner[1] + row,
                    plane = copy.corner[2];
            bool inside = across >= 0 && across < map->width && down >= 0 && down < map->rows &&
                          plane >= 0 && plane < map->depth;
            uint16_t value =
                inside ? map->base[(plane * map->rows + down) * map->width + across] : 0;
            memcpy(base + swizzle((uint32_t)(copy.to + (size_t)(row * 128 + column * 2))), &value,
                   sizeof value);
        }
    change(copy.block, copy.barrier, 0, -(int64_t)map->box_rows * 128);
}

void tma_prefetch(const CUtensorMap *)
{
}

void tma_load_shared(void *to, const CUtensorMap *map, uint64_t *b, int32_t c0, int32_t c1,
                     int32_t c2, uint16_t mask)
{
    if (find_offset(to) % 1024 != 0)
        die("a swizzled box goes to %zu, not a multiple of 1024", find_offset(to));
    for (int block = 0; block < cluster_blocks; block++)
        if (mask >> block & 1)
            landings.push_back(landing{map, block, find_offset(to), find_offset(b), {c0, c1, c2}});
    progress++;
}

void tma_load(void *to, const CUtensorMap *map, uint64_t *b, int32_t c0, int32_t c1, int32_t c2)
{
    tma_load_shared(to, map, b, c0, c1, c2, (uint16_t)(1 << now->block));
}

static void land_some(bool all)
{
    for (size_t i = 0; i < landings.size();) {
        if (!all && roll_dice(LANDING_ODDS) != 0) {
            i++;
            continue;
        }
        land(landings[i]);
        landings.erase(landings.begin() + (long)i);
    }
}

/* ---- wgmma ---- */

/* Reads element (mn, k) of an operand of 16 columns. */
static float read_matrix(uint64_t descriptor, bool transposed, int mn, int k)
{
    uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4;
    uint32_t leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
    uint32_t stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
    if (descriptor >> 62 != 1)
        die("a descriptor does not use the 128-byte swizzle");
    uint32_t at = transposed
                      ? start + (uint32_t)(mn / 64) * leading + (uint32_t)(k / 8) * stride +
                            (uint32_t)(k % 8 * 128 + mn % 64 * 2)
                      : start + (uint32_t)(mn / 8) * stride + (uint32_t)(mn % 8 * 128 + k * 2);
    uint16_t value;
    memcpy(&value, hopper_shared() + swizzle(at - ADDRESS0), sizeof value);
    return __uint_as_float((uint32_t)value << 16);
}

static void multiply(const product &work)
{
    int thread = now->number % 128, row = thread / 32 * 16 + thread % 32 / 4;
    float a[2][16];
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 16; k++)
            a[i][k] = read_matrix(work.a, work.trans_a, row + 8 * i, k);
    for (int block = 0; block < 32; block++)
        for (int column = 0; column < 2; column++) {
            float b[16];
            for (int k = 0; k < 16; k++)
                b[k] = read_matrix(work.b, work.trans_b, block * 8 + thread % 4 * 2 + column, k);
            for (int i = 0; i < 2; i++) {
                float *d = &work.d[block * 4 + i * 2 + column];
                float sum = work.add ? *d : 0;
                for (int k = 0; k < 16; k++)
                    sum += a[i][k] * b[k];
                *d = sum;
            }
        }
}

void hopper_product(float *d, uint64_t a, uint64_t b, bool add, bool trans_a, bool trans_b)
{
    now->products.push_back(product{d, a, b, add, trans_a, trans_b, now->committed});
}

void wgmma_fence(void)
{
}

void wgmma_commit(void)
{
    now->committed++;
}

void hopper_wait_products(int under_way)
{
    yield(); /* as late as possible */
    size_t count = 0;
    while (count < now->products.size() && now->products[count].group < now->committed - under_way)
        multiply(now->products[count++]);
    now->products.erase(now->products.begin(), now->products.begin() + (long)count);
    /* ".sync.aligned": after one lane has waited, all lanes have. */
    meet_threads(&warp_of(now)->met, 32);
}

void global_add4(float *to, float v0, float v1, float v2, float v3)
{
    if ((uintptr_t)to % 16 != 0)
        die("16 bytes are added at an address that is not a multiple of 16");
    to[0] += v0;
    to[1] += v1;
    to[2] += v2;
    to[3] += v3;
}

/* ---- the run ---- */

static void thread_body(void)
{
    run_body(run_context);
    if (!now->products.empty())
        die("thread %d ends without waiting for its products", now->number);
    now->done = true;
    progress++;
    for (;;)
        yield();
}

static void resume_thread(host_thread *thread, int first_block)
{
    now = thread;
    threadIdx = simt_dim{(unsigned)thread->number, 0, 0};
    blockIdx = simt_dim{(unsigned)(first_block + thread->block), 0, 0};
    fiber_switch(NULL, thread->own);
}

static void run_cluster(int first_block, uint64_t order)
{
    std::vector<size_t> turn(threads.size());
    for (size_t i = 0; i < turn.size(); i++)
        turn[i] = order == 1 ? turn.size() - 1 - i : i;
    int quiet = 0;
    for (;;) {
        int64_t before = progress;
        bool all_done = true;
        for (size_t i = turn.size(); order > 1 && i > 1; i--)
            std::swap(turn[i - 1], turn[roll_dice((uint32_t)i)]);
        for (size_t i : turn)
            if (!threads[i].done) {
                all_done = false;
                resume_thread(&threads[i], first_block);
            }
        if (all_done)
            break;
        land_some(quiet > 0);
        quiet = progress == before ? quiet + 1 : 0;
        if (quiet > 4)
            die("block %d and its cluster wait for ever", first_block);
        hopeless = quiet > 3; /* one more round, in which waits are given up */
    }
    if (!landings.empty())
        die("block %d ends before its loads have landed", first_block);
}

void hopper_run(int grid, int cluster, int n_threads, size_t shared, uint64_t order,
                void (*body)(void *), void *context)
{
    block_threads = n_threads;
    cluster_blocks = cluster;
    shared_bytes = shared;
    run_body = body;
    run_context = context;
    dice = order;
    blockDim = simt_dim{(unsigned)n_threads, 1, 1};
    gridDim = simt_dim{(unsigned)grid, 1, 1};
    for (int first = 0; first < grid; first += cluster) {
        blocks.assign((size_t)cluster, host_block{});
        warps.assign((size_t)(cluster * n_threads / 32), host_warp{});
        threads.assign((size_t)(cluster * n_threads), host_thread{});
        cluster_meeting = meeting{};
        for (auto &block : blocks) {
            block.shared = (unsigned char *)aligned_alloc(1024, (shared + 1023) / 1024 * 1024);
            memset(block.shared, 0xff, shared);
        }
        for (size_t i = 0; i < threads.size(); i++) {
            threads[i].own = fiber_new(thread_body);
            threads[i].block = (int)i / n_threads;
            threads[i].number = (int)i % n_threads;
        }
        run_cluster(first, order);
        for (auto &thread : threads)
            fiber_free(thread.own);
        for (auto &block : blocks)
            free(block.shared);
    }
}
