/* SPDX-License-Identifier: Apache-2.0 */
/* mma.cuh: the tensor cores of sm_80 and later, used by a warp at a time: mma.sync, ldmatrix,
 * cp.async.
 *
 * Fragments (PTX ISA 9.7.14.5.8): with g = lane / 4, q = lane % 4, each register two bf16,
 *   A [16, 16]  a0 (g, 2q)  a1 (g + 8, 2q)  a2 (g, 2q + 8)  a3 (g + 8, 2q + 8), and the next column
 *   B [16, 8]   b0 (2q, g)  b1 (2q + 8, g), and the next row
 *   D [16, 8]   d0, d1 (g, 2q), (g, 2q + 1)    d2, d3 (g + 8, 2q), (g + 8, 2q + 1)
 * So two D side by side, rounded, are the A of a following product. The host build has its own
 * version of all this in tests/simt/include/simt_mma.h. */
#ifndef TESSERA_TRAINER_OPS_CUDA_MMA_CUH
#define TESSERA_TRAINER_OPS_CUDA_MMA_CUH

#include <cuda_bf16.h>
#include <stdint.h>

#ifdef __CUDACC__

/* d += A B, with sums in f32. */
static __device__ __forceinline__ void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4],
                                                   uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Loads four 8 x 8 matrices from shared memory. Lane 8 i + j gives the address of row j of matrix i
 * (16 bytes). r[i] becomes this lane's pair of matrix i: row g, columns 2q and 2q + 1. */
static __device__ __forceinline__ void ldmatrix4(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* The same for the transposed matrices: rows 2q and 2q + 1 of column g. */
static __device__ __forceinline__ void ldmatrix4_transposed(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* Starts copying 16 bytes of device memory into shared memory. Where not wanted, zeros are stored
 * and `from` is not read. */
static __device__ __forceinline__ void copy16_async(void *to, const void *from, bool wanted)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(wanted ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most N groups of this thread are unfinished. */
template <int N> static __device__ __forceinline__ void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#else
#include <simt_mma.h>
#endif

#endif
