/* cuda/pointwise.cu: device side of pointwise.h but for patch_input: additions, bias gradients,
 * activations.
 *
 * All of it waits for memory: the bytes of each op are stated, and a thread moves 16 at once. Odd
 * sizes and addresses take the same kernels one element at a time. Arithmetic in float, rounded
 * once. */
#include "trainer/ops/cuda/launch.cuh"

enum { THREADS = 256 };

/* WIDTH elements of a row at once: VECTOR, or 1 where rows or addresses do not allow it. */
template <int WIDTH> static __device__ __forceinline__ void load(float (&out)[WIDTH], const bf16 *p)
{
    if constexpr (WIDTH == VECTOR)
        load8(out, p);
    else
        out[0] = to_float(p[0]);
}

template <int WIDTH> static __device__ __forceinline__ void store(bf16 *p, const float (&in)[WIDTH])
{
    if constexpr (WIDTH == VECTOR)
        store8(p, in);
    else
        p[0] = to_bf16(in[0]);
}

/* ---- add: 3 n bf16, 6 bytes an element ---- */

template <int WIDTH> static __global__ void add_kernel(add_args a)
{
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH;
    if (i >= a.n)
        return;
    float x[WIDTH], b[WIDTH];
    load<WIDTH>(x, (const bf16 *)a.a + i);
    load<WIDTH>(b, (const bf16 *)a.b + i);
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        x[j] += b[j];
    store<WIDTH>((bf16 *)a.y + i, x);
}

extern "C" status cuda_add(stream *s, const add_args *args)
{
    add_args a = *args;
    a.b = a.b ? a.b : a.y;
    bool wide = a.n % VECTOR == 0 && aligned16(a.a) && aligned16(a.b) && aligned16(a.y);
    if (wide)
        return LAUNCH(s, add_kernel<VECTOR>, grid_of(ceil_div(a.n, VECTOR * THREADS)), THREADS, 0,
                      a);
    return LAUNCH(s, add_kernel<1>, grid_of(ceil_div(a.n, THREADS)), THREADS, 0, a);
}
