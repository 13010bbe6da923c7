/* SPDX-License-Identifier: Apache-2.0 */
/* dequantise.cu: dequantise (weight_blocks.h) on CUDA.
 *
 * A thread turns 8 codes of a block into 16 bytes of bf16. Bytes of an element: 0.5625 (nf4) or
 * 1.0625 (int8) read, 2 written; DRAM is the limit. The value is one float product, rounded once to
 * bf16. Blocks begin at multiples of 4 bytes, so codes are read in words; the eight threads of a
 * block read its scale from the same word. The 16 levels are in shared memory, where they have
 * their own banks. */
#include "trainer/ops/cuda/kernel_launch.cuh"

enum {
    THREADS = 256,
    CODES = VECTOR, /* of a thread */
    PARTS = WEIGHT_BLOCK / CODES
};

template <bool NF4>
static __device__ __forceinline__ void expand_codes(float (&out)[CODES], const uint32_t *block,
                                                    int part, const float *level)
{
    const float scale = __uint_as_float(__ldg(block));
#pragma unroll
    for (int i = 0; i < CODES; i++) {
        if constexpr (NF4) {
            /* the first of a byte's two codes is its upper half */
            const uint32_t word = __ldg(block + 1 + part);
            out[i] = level[word >> (i / 2 * 8 + (i % 2 ? 0 : 4)) & (WEIGHT_LEVELS - 1)] * scale;
        } else {
            const uint32_t word = __ldg(block + 1 + 2 * part + i / 4);
            out[i] = (float)(int8_t)(word >> i % 4 * 8 & 255) * scale;
        }
    }
}

/* WHOLE: rows consist of whole blocks, and y is aligned, so that elements lie as codes do. */
template <bool NF4, bool WHOLE>
static __global__ void __launch_bounds__(THREADS) dequantise_kernel(dequantise_args args)
{
    __shared__ float level[WEIGHT_LEVELS];
    const int64_t piece = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t wide = weight_row_blocks(args.n), number = piece / PARTS;
    const int part = (int)(piece % PARTS);
    const int64_t words = weight_block_bytes(args.form) / 4;
    /* Unrolled, so that each index is a constant and the levels are immediates. Indexed by
     * threadIdx.x they would be a table in local memory. */
#pragma unroll
    for (int i = 0; i < WEIGHT_LEVELS; i++)
        if ((int)threadIdx.x == i)
            level[i] = weight_level(i);
    __syncthreads();
    if (number >= args.rows * wide)
        return;
    float out[CODES];
    expand_codes<NF4>(out, (const uint32_t *)args.blocks + number * words, part, level);
    if (WHOLE) {
        *(uint4 *)((bf16 *)args.y + piece * CODES) = pack8(out);
        return;
    }
    const int64_t first = number % wide * WEIGHT_BLOCK + part * CODES;
    bf16 *y = (bf16 *)args.y + number / wide * args.n + first;
    for (int i = 0; i < CODES && first + i < args.n; i++)
        y[i] = to_bf16(out[i]);
}

template <bool NF4> static status launch_dequantise(stream *queue, const dequantise_args &args)
{
    const int64_t pieces = args.rows * weight_row_blocks(args.n) * PARTS;
    const dim3 grid = grid_of(ceil_div(pieces, THREADS));
    if (args.n % WEIGHT_BLOCK == 0 && aligned16(args.y))
        return LAUNCH(queue, (dequantise_kernel<NF4, true>), grid, THREADS, 0, args);
    return LAUNCH(queue, (dequantise_kernel<NF4, false>), grid, THREADS, 0, args);
}

extern "C" status cuda_dequantise(stream *queue, const dequantise_args *args)
{
    return args->form == WEIGHT_NF4 ? launch_dequantise<true>(queue, *args)
                                    : launch_dequantise<false>(queue, *args);
}
