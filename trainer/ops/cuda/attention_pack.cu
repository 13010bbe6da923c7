/* SPDX-License-Identifier: Apache-2.0 */
/* attention_pack.cu: the kernels of attention_pack.h. They write a few kilobytes, and zeros for the
 * rows after the last segment. The grid is fixed, since only the device knows how many rows those
 * are. */
#include "trainer/ops/cuda/attention_pack.h"

#include "trainer/ops/cuda/kernel_launch.cuh"

enum { THREADS = 256, TAIL_BLOCKS = 264 /* two per multiprocessor of an H200 */ };

static __global__ void pack_kernel(attention_pack_args args)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i > args.segments)
        return;
    const int64_t from = i < args.filled ? i : args.filled;
    if (i < args.segments)
        args.length[i] = i < args.filled ? args.cu[i + 1] - args.cu[i] : 0;
    for (int j = 0; j < PACK_FIRSTS; j++)
        args.first[j][i] = (int64_t)args.cu[from] * args.stride[j];
}

static __global__ void tail_kernel(attention_pack_args args)
{
    const int64_t used = args.cu[args.filled], rows = args.tokens - used;
    const int64_t step = (int64_t)TAIL_BLOCKS * THREADS;
    const int64_t start = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    for (int j = 0; j < PACK_TAILS; j++) {
        const int64_t width = args.tail_width[j] / VECTOR;
        bf16 *tail = (bf16 *)args.tail[j] + used * args.tail_stride[j];
        for (int64_t i = start; args.tail[j] && i < rows * width; i += step)
            *(uint4 *)(tail + i / width * args.tail_stride[j] + i % width * VECTOR) =
                make_uint4(0, 0, 0, 0);
    }
    for (int64_t i = start; args.tail_f32 && i < rows * args.f32_width; i += step)
        args.tail_f32[used * args.f32_width + i] = 0;
}

extern "C" status cuda_attention_pack(stream *queue, const attention_pack_args *args)
{
    TRY(LAUNCH(queue, pack_kernel, grid_of(ceil_div(args->segments + 1, THREADS)), THREADS, 0,
               *args));
    if (!args->tail[0] && !args->tail_f32)
        return ST_OK;
    return LAUNCH(queue, tail_kernel, dim3(TAIL_BLOCKS), THREADS, 0, *args);
}

static __global__ void columns_kernel(attention_columns_args args)
{
    const int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= args.rows)
        return;
    for (int64_t i = threadIdx.x; i < args.width; i += blockDim.x)
        args.to[row * args.to_stride + i] = args.from[row * args.from_stride + i];
}

extern "C" status cuda_attention_columns(stream *queue, const attention_columns_args *args)
{
    return LAUNCH(queue, columns_kernel, tile_grid(args->rows, args->width),
                  tile_block(args->width), 0, *args);
}
