/* SPDX-License-Identifier: Apache-2.0 */
/* hopper_host.h: the instructions of trainer/ops/cuda/hopper.cuh for the host, so that a kernel for
 * sm_90a runs without a GPU. It tests the kernel's roles, barriers, phases, addresses and layouts,
 * but not its speed.
 *
 * One cluster of blocks runs at a time, with a fiber per thread. What is asynchronous on the GPU
 * comes late here: a TMA load lands some rounds after it was started, in any order, and a product
 * reads its operands only when its group is waited for. So a stage that is released too early gives
 * wrong numbers; a wait that never ends is reported, and so is an arrival too many. The layouts are
 * those of the PTX ISA 9.7.15.5.1, written down independently of the kernel.
 *
 * Include it before the kernel. The program then links tests/simt/fiber.c and not simt.c. Letters:
 * a, b the factors of a product; d its sums; N a number of registers or of products. */
#ifndef TESSERA_TESTS_SIMT_HOPPER_HOST_H
#define TESSERA_TESTS_SIMT_HOPPER_HOST_H

#define TESSERA_TRAINER_OPS_CUDA_HOPPER_CUH /* this header takes its place */

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "trainer/device/cuda.h"

/* Describes bf16 [depth, rows, width] and its boxes of 64 x box_rows, swizzled by 128 bytes. */
struct CUtensorMap {
    const uint16_t *base;
    int64_t width, rows, depth;
    int box_rows;
};

/* Runs `body` in every thread of the grid's blocks, one cluster at a time. order: 0 forward, 1
 * reverse, any other number the seed of a random order. Ends the program with a message where the
 * hardware would hang. */
void hopper_run(int grid, int cluster, int threads, size_t shared, uint64_t order,
                void (*body)(void *), void *context);
/* This block's shared memory, aligned to 1024 bytes and filled with NaN. */
unsigned char *hopper_shared(void);

uint32_t hopper_address(const void *shared);
void barrier_init(uint64_t *b, uint32_t count);
void barrier_init_fence(void);
void barrier_expect(uint64_t *b, uint32_t bytes);
void barrier_arrive_at(uint64_t *b, uint32_t rank);
void barrier_wait(uint64_t *b, uint32_t parity, kernel_stuck *stuck, int kernel, int barrier);
void named_sync(int id, int threads);
void cluster_sync(void);
void fence_async_shared(void);
void tma_prefetch(const CUtensorMap *map);
void tma_load(void *to, const CUtensorMap *map, uint64_t *b, int32_t c0, int32_t c1, int32_t c2);
void tma_load_shared(void *to, const CUtensorMap *map, uint64_t *b, int32_t c0, int32_t c1,
                     int32_t c2, uint16_t blocks);
void wgmma_fence(void);
void wgmma_commit(void);
void hopper_wait_products(int under_way);
void hopper_product(float *d, uint64_t a, uint64_t b, bool add, bool trans_a, bool trans_b);
void global_add4(float *to, float v0, float v1, float v2, float v3);

template <int N> static inline void registers_give(void)
{
}

template <int N> static inline void registers_take(void)
{
}

template <int N> static inline void wgmma_wait(void)
{
    hopper_wait_products(N);
}

static inline void wgmma_results(float (&d)[128])
{
    (void)d;
}

template <int TRANS_A, int TRANS_B>
static inline void wgmma_64x256x16(float (&d)[128], uint64_t a, uint64_t b, int add)
{
    hopper_product(d, a, b, add != 0, TRANS_A != 0, TRANS_B != 0);
}

#endif
