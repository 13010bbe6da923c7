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

static __global__ void text_kernel(rope_text_args a, frequencies f)
{
    const int64_t t = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, half = a.head_dim / 2;
    if (t >= a.tokens)
        return;
    for (int j = threadIdx.x; j < half; j += blockDim.x) {
        const int turn = j % 3; /* T, H, W, T, .. as long as the sections of H and W last */
        const int axis = turn != 0 && j < 3 * a.section[turn] ? turn : 0;
        put_angle(a.cos, a.sin, t * half + j, a.positions[axis * a.tokens + t], f.omega[j]);
    }
}

extern "C" status cuda_rope_text(stream *s, const rope_text_args *a)
{
    int64_t half = 0;
    frequencies f = {};
    TRY(rope_half_dim(a->head_dim, 1, &half));
    for (int64_t j = 0; j < half; j++)
        f.omega[j] = rope_frequency(a->theta, 2 * j, a->head_dim);
    return LAUNCH(s, text_kernel, tile_grid(a->tokens, half), tile_block(half), 0, *a, f);
}

static __global__ void vision_kernel(rope_vision_args a, frequencies f)
{
    const int64_t t = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, half = a.head_dim / 2;
    if (t >= a.patches)
        return;
    for (int j = threadIdx.x; j < half; j += blockDim.x)
        put_angle(a.cos, a.sin, t * half + j, a.row_col[2 * t + (j >= half / 2)], f.omega[j]);
}

extern "C" status cuda_rope_vision(stream *s, const rope_vision_args *a)
{
    int64_t half = 0;
    frequencies f = {};
    TRY(rope_half_dim(a->head_dim, 2, &half));
    for (int64_t j = 0; j < half; j++)
        f.omega[j] = rope_frequency(a->theta, 2 * (j % (half / 2)), half);
    return LAUNCH(s, vision_kernel, tile_grid(a->patches, half), tile_block(half), 0, *a, f);
}

/* A thread rotates WIDTH pairs: elements of the head's first half with those of its second. */
template <int WIDTH> static __global__ void apply_kernel(rope_apply_args a, float sign)
{
    const int64_t t = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (t >= a.rows)
        return;
    const unsigned half = (unsigned)(a.head_dim / 2), per_head = half / WIDTH;
    for (unsigned i = threadIdx.x; i < a.heads * per_head; i += blockDim.x) {
        const unsigned head = i / per_head, j = i % per_head * WIDTH;
        bf16 *low = (bf16 *)a.x + t * a.x_stride + head * a.head_dim + j, *high = low + half;
        float l[WIDTH], h[WIDTH], c[WIDTH], n[WIDTH];
        load<WIDTH>(l, low);
        load<WIDTH>(h, high);
        load<WIDTH>(c, (const float *)a.cos + t * half + j);
        load<WIDTH>(n, (const float *)a.sin + t * half + j);
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            const float keep = l[k], sine = sign * n[k];
            l[k] = keep * c[k] - h[k] * sine;
            h[k] = h[k] * c[k] + keep * sine;
        }
        store<WIDTH>(low, l);
        store<WIDTH>(high, h);
    }
}

extern "C" status cuda_rope_apply(stream *s, const rope_apply_args *a)
{
    int64_t half = 0;
    TRY(rope_half_dim(a->head_dim, 1, &half));
    const float sign = a->inverse ? -1 : 1;
    const int64_t pairs = a->heads * half;
    const bool tables = aligned16(a->cos, a->sin);
    if (tables && half % 8 == 0 && a->x_stride % 8 == 0 && aligned16(a->x)) /* text: 64 */
        return LAUNCH(s, apply_kernel<8>, tile_grid(a->rows, pairs / 8), tile_block(pairs / 8), 0,
                      *a, sign);
    if (tables && half % 4 == 0 && a->x_stride % 4 == 0 && aligned(8, a->x)) /* vision: 36 */
        return LAUNCH(s, apply_kernel<4>, tile_grid(a->rows, pairs / 4), tile_block(pairs / 4), 0,
                      *a, sign);
    return LAUNCH(s, apply_kernel<1>, tile_grid(a->rows, pairs), tile_block(pairs), 0, *a, sign);
}
