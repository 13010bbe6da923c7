/* attention_pack.cu: the kernels of attention_pack.h. They write a few kilobytes, and zeros for the
 * rows after the last segment. The grid is fixed, since only the device knows how many rows those
 * are. */
#include "trainer/ops/cuda/attention_pack.h"

#include "trainer/ops/cuda/kernel_launch.cuh"

enum { THREADS = 256, TAIL_BLOCKS = 264 /* two per multiprocessor of an H200 */ };

static __global__ void pack_kernel(attention_pack_args a)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i > a.segments)
        return;
    if (i < a.segments)
        a.length[i] = a.cu[i + 1] - a.cu[i];
    for (int f = 0; f < PACK_FIRSTS; f++)
        a.first[f][i] = (int64_t)a.cu[i] * a.stride[f];
}

static __global__ void tail_kernel(attention_pack_args a)
{
    const int64_t used = a.cu[a.segments], rows = a.tokens - used;
    const int64_t step = (int64_t)TAIL_BLOCKS * THREADS;
    const int64_t start = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    for (int t = 0; t < PACK_TAILS; t++) {
        const int64_t width = a.tail_width[t] / VECTOR;
        bf16 *p = (bf16 *)a.tail[t] + used * a.tail_stride[t];
        for (int64_t i = start; a.tail[t] && i < rows * width; i += step)
            *(uint4 *)(p + i / width * a.tail_stride[t] + i % width * VECTOR) =
                make_uint4(0, 0, 0, 0);
    }
    for (int64_t i = start; a.tail_f32 && i < rows * a.f32_width; i += step)
        a.tail_f32[used * a.f32_width + i] = 0;
}

extern "C" status cuda_attention_pack(stream *s, const attention_pack_args *a)
{
    TRY(LAUNCH(s, pack_kernel, grid_of(ceil_div(a->segments + 1, THREADS)), THREADS, 0, *a));
    return LAUNCH(s, tail_kernel, dim3(TAIL_BLOCKS), THREADS, 0, *a);
}

static __global__ void columns_kernel(attention_columns_args a)
{
    const int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (r >= a.rows)
        return;
    for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x)
        a.to[r * a.to_stride + i] = a.from[r * a.from_stride + i];
}

extern "C" status cuda_attention_columns(stream *s, const attention_columns_args *a)
{
    return LAUNCH(s, columns_kernel, tile_grid(a->rows, a->width), tile_block(a->width), 0, *a);
}
