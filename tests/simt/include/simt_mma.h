/* SPDX-License-Identifier: Apache-2.0 */
/* simt_mma.h: trainer/ops/cuda/mma.cuh for the harness: the tensor core's product, the loads of its
 * operands in the layouts that the PTX ISA gives, and copies that arrive as late as they may.
 *
 * The lanes of a warp put their parts on a table and wait for each other. The product is summed in
 * double and rounded once, since the order in the hardware, whose error is larger, is not known. A
 * copy is made only when its thread waits for it, so a read that comes too early sees the old
 * contents. Letters: T a type; N a number of copies; a, b the factors of a product; d its sums; g,
 * q which four lanes a lane belongs to and its place among them; m a matrix. */
#ifndef TESSERA_TESTS_SIMT_INCLUDE_SIMT_MMA_H
#define TESSERA_TESTS_SIMT_INCLUDE_SIMT_MMA_H

#include <stdlib.h>

#include "cuda_bf16.h"

enum { SIMT_WARPS = 32, SIMT_LANES = 32, SIMT_COPIES = 128 };

/* The number of the running thread. */
static inline unsigned simt_self(void)
{
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

/* A warp has two tables of T that it uses in turn: a thread that has reached the next table has
 * been seen by all others on this one, so this one can be reused. */
template <class T> struct simt_table {
    T lanes[2][SIMT_WARPS][SIMT_LANES];
    unsigned char turn[SIMT_WARPS][SIMT_LANES];
    /* Puts down this lane's part, waits for the others, and returns the parts of all lanes. */
    const T *meet(const T &mine, const char *file, int line)
    {
        const unsigned warp = simt_self() / SIMT_LANES, lane = simt_self() % SIMT_LANES;
        T *all = lanes[turn[warp][lane] ^= 1][warp];
        all[lane] = mine;
        simt_warp(SIMT_SYNC, 0xffffffffu, 0, 0, SIMT_LANES, file, line);
        return all;
    }
};

static inline float simt_half(unsigned word, int half)
{
    return __uint_as_float(half ? word & 0xffff0000u : word << 16);
}

/* A lane's part of A and of B, in pairs of neighbours. */
struct simt_operands {
    float a[4][2], b[2][2];
};

static inline void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                               SIMT_HERE)
{
    static simt_table<simt_operands> table;
    simt_operands mine;
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < 4; i++)
            mine.a[i][half] = simt_half(a[i], half);
        mine.b[0][half] = simt_half(b0, half);
        mine.b[1][half] = simt_half(b1, half);
    }
    const simt_operands *warp = table.meet(mine, file, line);
    const unsigned lane = simt_self() % SIMT_LANES;
    simt_products += lane == 0;
    const unsigned g = lane / 4, q = lane % 4;
    for (unsigned i = 0; i < 4; i++) {
        const unsigned low = i / 2, column = 2 * q + i % 2; /* row g, or g + 8 */
        double sum = d[i];
        for (unsigned k = 0; k < 16; k++) {
            const unsigned holder = k % 8 / 2;
            sum += (double)warp[g * 4 + holder].a[low + k / 8 * 2][k % 2] *
                   (double)warp[column * 4 + holder].b[k / 8][k % 2];
        }
        d[i] = (float)sum;
    }
}

/* registers[m] gets two elements of matrix m; the lanes from 8m on have given the addresses of its
 * rows. */
static inline void simt_ldmatrix4(uint32_t (&registers)[4], const void *row, bool transposed,
                                  const char *file, int line)
{
    static simt_table<const __nv_bfloat16 *> table;
    if ((uintptr_t)row % 16 != 0)
        abort(); /* the hardware would stop here */
    const __nv_bfloat16 *const *warp = table.meet((const __nv_bfloat16 *)row, file, line);
    const unsigned lane = simt_self() % SIMT_LANES, g = lane / 4, q = lane % 4;
    for (unsigned m = 0; m < 4; m++) {
        const __nv_bfloat16 low = transposed ? warp[8 * m + 2 * q][g] : warp[8 * m + g][2 * q];
        const __nv_bfloat16 high =
            transposed ? warp[8 * m + 2 * q + 1][g] : warp[8 * m + g][2 * q + 1];
        registers[m] = (unsigned)low.bits | (unsigned)high.bits << 16;
    }
}

static inline void ldmatrix4(uint32_t (&registers)[4], const void *row, SIMT_HERE)
{
    simt_ldmatrix4(registers, row, false, file, line);
}

static inline void ldmatrix4_transposed(uint32_t (&registers)[4], const void *row, SIMT_HERE)
{
    simt_ldmatrix4(registers, row, true, file, line);
}

/* The copies that a thread has started, oldest first. */
struct simt_copies {
    struct {
        void *to;
        const void *from; /* NULL: zeros */
        int group;
    } list[SIMT_COPIES];
    int count, group;
};

static inline simt_copies *simt_copies_of(void)
{
    static simt_copies of_thread[SIMT_WARPS * SIMT_LANES];
    return &of_thread[simt_self()];
}

static inline void copy16_async(void *to, const void *from, bool wanted)
{
    simt_copies *copies = simt_copies_of();
    if (copies->count == SIMT_COPIES || (uintptr_t)to % 16 != 0 || (uintptr_t)from % 16 != 0)
        abort(); /* too many for this header, or refused by the hardware too */
    copies->list[copies->count++] = {to, wanted ? from : NULL, copies->group};
}

static inline void copy_commit(void)
{
    simt_copies_of()->group++;
}

template <int N> static inline void copy_wait(void)
{
    simt_copies *copies = simt_copies_of();
    int left = 0;
    for (int i = 0; i < copies->count; i++)
        if (copies->list[i].group >= copies->group - N)
            copies->list[left++] = copies->list[i];
        else if (copies->list[i].from)
            memcpy(copies->list[i].to, copies->list[i].from, 16);
        else
            memset(copies->list[i].to, 0, 16);
    copies->count = left;
}

#endif
