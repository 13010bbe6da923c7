/* optim_ops.cu: sum_squares, step_finish and adamw (loss_ops.h) on CUDA.
 *
 * Blocks take the chunks of the list in turn, so one launch updates all parameters. Bytes per
 * element: sum_squares reads 4; adamw reads 16 and writes 12, or 14 with the bf16 copy. DRAM is the
 * limit of both. Squares are summed in double, per thread, per warp, per block and then over
 * chunks, in an order that depends on the list alone. */
#include "trainer/ops/cuda/kernel_launch.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / LANES,
    QUAD = 4,         /* floats in a 16-byte access */
    BLOCKS = 132 * 16 /* blocks that take turns: twice what 132 multiprocessors hold */
};

static dim3 grid_of_chunks(const optim_list &l)
{
    return grid_of(l.n_chunks < BLOCKS ? l.n_chunks : (int64_t)BLOCKS);
}

/* Chunk i of a list, counted from the list's first chunk: the elements [begin, end) of a tensor. */
typedef struct chunk {
    optim_tensor tensor;
    int64_t begin, end;
} chunk;

static __device__ inline chunk chunk_of(const optim_list &l, int64_t i)
{
    /* The binary search ends at the last tensor that begins at or before the chunk. */
    int64_t low = 0, high = l.n_tensors;
    i += l.first_chunk;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (l.tensor[middle].first_chunk <= i)
            low = middle;
        else
            high = middle;
    }
    chunk c = {l.tensor[low], 0, 0};
    c.begin = (i - c.tensor.first_chunk) * OPTIM_CHUNK;
    c.end = min(c.begin + OPTIM_CHUNK, c.tensor.n);
    return c;
}

/* The sum over a block, always in the same order. */
static __device__ inline double block_sum_double(double x)
{
    __shared__ double partial[WARPS];
    for (int with = LANES / 2; with > 0; with /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, with);
    if (threadIdx.x % LANES == 0)
        partial[threadIdx.x / LANES] = x;
    __syncthreads();
    double sum = 0;
    for (int w = 0; w < WARPS; w++)
        sum += partial[w];
    __syncthreads(); /* partial may be written again */
    return sum;
}

/* Writes part [n_chunks], the sum of squares of each chunk. */
static __global__ void __launch_bounds__(THREADS) squares_kernel(sum_squares_args a, double *part)
{
    for (int64_t i = blockIdx.x; i < a.list.n_chunks; i += gridDim.x) {
        const chunk c = chunk_of(a.list, i);
        const float *g = (const float *)c.tensor.g;
        double sum = 0;
#pragma unroll 4
        for (int64_t j = c.begin + QUAD * threadIdx.x; j < c.end - QUAD + 1; j += QUAD * THREADS) {
            const float4 x = __ldg((const float4 *)(g + j));
            sum += (double)x.x * x.x + (double)x.y * x.y + ((double)x.z * x.z + (double)x.w * x.w);
        }
        const int64_t rest = c.end - (c.end - c.begin) % QUAD + threadIdx.x;
        if (rest < c.end)
            sum += (double)g[rest] * g[rest];
        sum = block_sum_double(sum);
        if (threadIdx.x == 0)
            part[i] = sum;
    }
}

/* One block. */
static __global__ void __launch_bounds__(THREADS)
    add_parts_kernel(const double *part, int64_t parts, double *total)
{
    double sum = 0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < parts; i += THREADS)
        sum += part[i];
    sum = block_sum_double(sum);
    if (threadIdx.x == 0)
        *total += sum;
}

extern "C" status cuda_sum_squares(stream *s, const sum_squares_args *a)
{
    void *part;
    TRY(cuda_scratch(s, (size_t)a->list.n_chunks * sizeof(double), &part));
    TRY(LAUNCH(s, squares_kernel, grid_of_chunks(a->list), THREADS, 0, *a, (double *)part));
    return LAUNCH(s, add_parts_kernel, grid_of(a->list.n_chunks > 0), THREADS, 0,
                  (const double *)part, a->list.n_chunks, a->total);
}

/* One thread. */
static __global__ void finish_kernel(step_finish_args a)
{
    step_scalars *step = a.step;
    const double weight = *a.weight, norm = weight > 0 ? sqrt(*a.sum_squares) / weight : 0;
    const bool clipped = a.max_norm > 0 && norm > a.max_norm;
    step->skip = !(weight > 0) || !isfinite(norm);
    step->grad_norm = norm;
    step->grad_scale = step->skip != 0 ? 0 : (clipped ? a.max_norm / norm : 1) / weight;
}

extern "C" status cuda_step_finish(stream *s, const step_finish_args *a)
{
    return LAUNCH(s, finish_kernel, grid_of(1), 1, 0, *a);
}

/* The scalars of the step and of a tensor, in the form that the arithmetic wants. */
typedef struct adamw_rates {
    float b1, b2, c1, c2, root2, eps, scale; /* root2: 1 / sqrt(bias2) */
    float keep, rate;
} adamw_rates;

static __device__ inline adamw_rates rates_of(const step_scalars *step, const optim_tensor &x)
{
    const double lr = step->lr * x.lr_factor;
    adamw_rates r;
    r.b1 = (float)step->beta1;
    r.b2 = (float)step->beta2;
    r.c1 = (float)(1 - step->beta1);
    r.c2 = (float)(1 - step->beta2);
    r.root2 = (float)(1 / sqrt(step->bias2));
    r.eps = (float)step->eps;
    r.scale = (float)step->grad_scale;
    r.keep = (float)(1 - lr * x.decay);
    r.rate = (float)(lr / step->bias1);
    return r;
}

static __device__ inline float update_element(const adamw_rates &r, float p, float g, float *m,
                                              float *v)
{
    g *= r.scale;
    *m = r.b1 * *m + r.c1 * g;
    *v = r.b2 * *v + r.c2 * g * g;
    return p * r.keep - r.rate * *m / (sqrtf(*v) * r.root2 + r.eps);
}

static __device__ inline void update_one(const optim_tensor &x, const adamw_rates &r, int64_t i)
{
    float *p = (float *)x.p;
    p[i] = update_element(r, p[i], ((const float *)x.g)[i], (float *)x.m + i, (float *)x.v + i);
    if (x.p_act)
        ((bf16 *)x.p_act)[i] = to_bf16(p[i]);
}

/* i must be a multiple of 4. */
static __device__ inline void update_quad(const optim_tensor &x, const adamw_rates &r, int64_t i)
{
    float4 *p_at = (float4 *)((float *)x.p + i), *m_at = (float4 *)((float *)x.m + i);
    float4 *v_at = (float4 *)((float *)x.v + i), p = *p_at, m = *m_at, v = *v_at;
    const float4 g = *(const float4 *)((const float *)x.g + i);
    p.x = update_element(r, p.x, g.x, &m.x, &v.x);
    p.y = update_element(r, p.y, g.y, &m.y, &v.y);
    p.z = update_element(r, p.z, g.z, &m.z, &v.z);
    p.w = update_element(r, p.w, g.w, &m.w, &v.w);
    *p_at = p;
    *m_at = m;
    *v_at = v;
    if (x.p_act)
        *(uint2 *)((bf16 *)x.p_act + i) = make_uint2(pack2(p.x, p.y), pack2(p.z, p.w));
}

static __global__ void __launch_bounds__(THREADS) adamw_kernel(adamw_args a)
{
    __shared__ adamw_rates shared;
    if (a.step->skip != 0)
        return;
    for (int64_t i = blockIdx.x; i < a.list.n_chunks; i += gridDim.x) {
        const chunk c = chunk_of(a.list, i);
        __syncthreads();
        if (threadIdx.x == 0) /* a square root and divisions in double, so once per chunk */
            shared = rates_of(a.step, c.tensor);
        __syncthreads();
        const adamw_rates r = shared;
        for (int64_t j = c.begin + QUAD * threadIdx.x; j < c.end; j += QUAD * THREADS)
            if (j + QUAD <= c.end)
                update_quad(c.tensor, r, j);
            else
                for (int64_t one = j; one < c.end; one++)
                    update_one(c.tensor, r, one);
    }
}

extern "C" status cuda_adamw(stream *s, const adamw_args *a)
{
    return LAUNCH(s, adamw_kernel, grid_of_chunks(a->list), THREADS, 0, *a);
}
