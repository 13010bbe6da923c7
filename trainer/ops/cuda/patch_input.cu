/* patch_input.cu: patch_input (pointwise.h) on CUDA.
 *
 * A thread turns 8 pixels into 16 bytes of bf16, and stores them twice for a still picture, once
 * per frame. Bytes per patch: 768 read (1536 for a video) and 3072 written; DRAM is the limit. It
 * computes (x - 127.5) * (1 / 127.5) in float, which rounds to the same bf16 as the quotient for
 * all 256 values. */
#include "trainer/ops/cuda/kernel_launch.cuh"

enum {
    THREADS = 256,
    PIXELS = VECTOR, /* pixels of a thread: 8 bytes in, 16 out */
    CHANNEL = 256,   /* bytes of one colour of a patch of one frame: 16 x 16 */
    PATCH_STILL = 3 * CHANNEL,
    PATCH_VIDEO = 2 * PATCH_STILL
};

static __device__ inline uint4 normalise_bytes(uint2 bytes)
{
    const float middle = 127.5f;
    float out[PIXELS];
#pragma unroll
    for (int i = 0; i < PIXELS; i++) {
        const unsigned word = i < 4 ? bytes.x : bytes.y;
        out[i] = ((float)(word >> i % 4 * 8 & 255) - middle) * (1 / middle);
    }
    return pack8(out);
}

/* Does 8 pixels of the input. */
template <bool VIDEO>
static __global__ void __launch_bounds__(THREADS) patch_kernel(patch_input_args args)
{
    const int64_t piece = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t patch_bytes = VIDEO ? PATCH_VIDEO : PATCH_STILL;
    if (piece * PIXELS >= args.patches * patch_bytes)
        return;
    const uint4 out = normalise_bytes(((const uint2 *)args.pixels)[piece]);
    bf16 *to = (bf16 *)args.out;
    if (VIDEO) {
        *(uint4 *)(to + piece * PIXELS) = out;
        return;
    }
    /* Channel c of patch p begins at (p * 3 + c) * CHANNEL and goes to twice that: two frames. */
    const int64_t channel = piece * PIXELS / CHANNEL, at = piece * PIXELS % CHANNEL;
    *(uint4 *)(to + 2 * channel * CHANNEL + at) = out;
    *(uint4 *)(to + (2 * channel + 1) * CHANNEL + at) = out;
}

extern "C" status cuda_patch_input(stream *queue, const patch_input_args *args)
{
    if (!aligned16(args->pixels) || !aligned16(args->out))
        return FAIL(
            ST_BAD_INPUT,
            "patch_input: the pixels are at %p and the output at %p; both addresses must be "
            "multiples of 16",
            (const void *)args->pixels, args->out);
    const int64_t patch_bytes = args->video ? PATCH_VIDEO : PATCH_STILL;
    const dim3 grid = grid_of(ceil_div(args->patches * patch_bytes, PIXELS * THREADS));
    return args->video ? LAUNCH(queue, patch_kernel<true>, grid, THREADS, 0, *args)
                       : LAUNCH(queue, patch_kernel<false>, grid, THREADS, 0, *args);
}
