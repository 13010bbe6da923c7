/* SPDX-License-Identifier: Apache-2.0 */
/* rope.cu: the ops of rope.h on CUDA.
 *
 * Tables are made once per micro-batch: 8 bytes an angle, with the accurate sine and cosine, since
 * angles reach 262,144. The rotation reads and writes each element once, 4 bytes an element; its
 * tables come from the caches, where the heads of a token share them. */
#include "trainer/ops/cuda/kernel_launch.cuh"

typedef struct frequencies {
    float omega[ROPE_HALF_DIM_MAX];
} frequencies;

/* One multiplication in float, which is how the published model rounds it. */
static __device__ __forceinline__ void put_angle(void *cosine, void *sine, int64_t at,
                                                 int32_t position, float omega)
{
    const float angle = (float)position * omega;
    ((float *)cosine)[at] = cosf(angle);
    ((float *)sine)[at] = sinf(angle);
}

static __global__ void text_kernel(rope_text_args args, frequencies bands)
{
    const int64_t token = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, half = args.head_dim / 2;
    if (token >= args.tokens)
        return;
    for (int j = threadIdx.x; j < half; j += blockDim.x) {
        const int turn = j % 3; /* T, H, W, T, .. as long as the sections of H and W last */
        const int axis = turn != 0 && j < 3 * args.section[turn] ? turn : 0;
        put_angle(args.cos, args.sin, token * half + j, args.positions[axis * args.tokens + token],
                  bands.omega[j]);
    }
}

extern "C" status cuda_rope_text(stream *queue, const rope_text_args *args)
{
    int64_t half = 0;
    frequencies bands = {};
    TRY(rope_half_dim(args->head_dim, 1, &half));
    for (int64_t j = 0; j < half; j++)
        bands.omega[j] = rope_frequency(args->theta, 2 * j, args->head_dim);
    return LAUNCH(queue, text_kernel, tile_grid(args->tokens, half), tile_block(half), 0, *args,
                  bands);
}

static __global__ void vision_kernel(rope_vision_args args, frequencies bands)
{
    const int64_t token = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, half = args.head_dim / 2;
    if (token >= args.patches)
        return;
    for (int j = threadIdx.x; j < half; j += blockDim.x)
        put_angle(args.cos, args.sin, token * half + j, args.row_col[2 * token + (j >= half / 2)],
                  bands.omega[j]);
}

extern "C" status cuda_rope_vision(stream *queue, const rope_vision_args *args)
{
    int64_t half = 0;
    frequencies bands = {};
    TRY(rope_half_dim(args->head_dim, 2, &half));
    for (int64_t j = 0; j < half; j++)
        bands.omega[j] = rope_frequency(args->theta, 2 * (j % (half / 2)), half);
    return LAUNCH(queue, vision_kernel, tile_grid(args->patches, half), tile_block(half), 0, *args,
                  bands);
}

/* A thread rotates WIDTH pairs: elements of the head's first half with those of its second. */
template <int WIDTH> static __global__ void apply_kernel(rope_apply_args args, float sign)
{
    const int64_t token = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (token >= args.rows)
        return;
    const unsigned half = (unsigned)(args.head_dim / 2), per_head = half / WIDTH;
    for (unsigned i = threadIdx.x; i < args.heads * per_head; i += blockDim.x) {
        const unsigned head = i / per_head, j = i % per_head * WIDTH;
        bf16 *low = (bf16 *)args.x + token * args.x_stride + head * args.head_dim + j,
             *high = low + half;
        float lows[WIDTH], highs[WIDTH], cosines[WIDTH], sines[WIDTH];
        load<WIDTH>(lows, low);
        load<WIDTH>(highs, high);
        load<WIDTH>(cosines, (const float *)args.cos + token * half + j);
        load<WIDTH>(sines, (const float *)args.sin + token * half + j);
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            const float keep = lows[k], sine = sign * sines[k];
            lows[k] = keep * cosines[k] - highs[k] * sine;
            highs[k] = highs[k] * cosines[k] + keep * sine;
        }
        store<WIDTH>(low, lows);
        store<WIDTH>(high, highs);
    }
}

extern "C" status cuda_rope_apply(stream *queue, const rope_apply_args *args)
{
    int64_t half = 0;
    TRY(rope_half_dim(args->head_dim, 1, &half));
    const float sign = args->inverse ? -1 : 1;
    const int64_t pairs = args->heads * half;
    const bool tables = aligned16(args->cos, args->sin);
    if (tables && half % 8 == 0 && args->x_stride % 8 == 0 && aligned16(args->x)) /* text: 64 */
        return LAUNCH(queue, apply_kernel<8>, tile_grid(args->rows, pairs / 8),
                      tile_block(pairs / 8), 0, *args, sign);
    if (tables && half % 4 == 0 && args->x_stride % 4 == 0 && aligned(8, args->x)) /* vision: 36 */
        return LAUNCH(queue, apply_kernel<4>, tile_grid(args->rows, pairs / 4),
                      tile_block(pairs / 4), 0, *args, sign);
    return LAUNCH(queue, apply_kernel<1>, tile_grid(args->rows, pairs), tile_block(pairs), 0, *args,
                  sign);
}
