/* optim_ops.cu: sum_squares, step_finish, unit_finish and adamw (loss_ops.h) on CUDA.
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

static dim3 grid_of_chunks(const optim_list &list)
{
    return grid_of(list.n_chunks < BLOCKS ? list.n_chunks : (int64_t)BLOCKS);
}

/* Chunk i of a list, counted from the list's first chunk: the elements [begin, end) of a tensor. */
typedef struct chunk {
    optim_tensor tensor;
    int64_t begin, end;
} chunk;

static __device__ inline chunk chunk_of(const optim_list &list, int64_t index)
{
    /* The binary search ends at the last tensor that begins at or before the chunk. */
    int64_t low = 0, high = list.n_tensors;
    index += list.first_chunk;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (list.tensor[middle].first_chunk <= index)
            low = middle;
        else
            high = middle;
    }
    chunk range = {list.tensor[low], 0, 0};
    range.begin = (index - range.tensor.first_chunk) * OPTIM_CHUNK;
    range.end = min(range.begin + OPTIM_CHUNK, range.tensor.n);
    return range;
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
    for (int i = 0; i < WARPS; i++)
        sum += partial[i];
    __syncthreads(); /* partial may be written again */
    return sum;
}

/* Writes part [n_chunks], the sum of squares of each chunk. */
static __global__ void __launch_bounds__(THREADS)
    squares_kernel(sum_squares_args args, double *part)
{
    for (int64_t i = blockIdx.x; i < args.list.n_chunks; i += gridDim.x) {
        const chunk range = chunk_of(args.list, i);
        const float *g = (const float *)range.tensor.g;
        double sum = 0;
#pragma unroll 4
        for (int64_t j = range.begin + QUAD * threadIdx.x; j < range.end - QUAD + 1;
             j += QUAD * THREADS) {
            const float4 x = __ldg((const float4 *)(g + j));
            sum += (double)x.x * x.x + (double)x.y * x.y + ((double)x.z * x.z + (double)x.w * x.w);
        }
        const int64_t rest = range.end - (range.end - range.begin) % QUAD + threadIdx.x;
        if (rest < range.end)
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

extern "C" status cuda_sum_squares(stream *queue, const sum_squares_args *args)
{
    void *part;
    TRY(cuda_scratch(queue, (size_t)args->list.n_chunks * sizeof(double), &part));
    TRY(LAUNCH(queue, squares_kernel, grid_of_chunks(args->list), THREADS, 0, *args,
               (double *)part));
    return LAUNCH(queue, add_parts_kernel, grid_of(args->list.n_chunks > 0), THREADS, 0,
                  (const double *)part, args->list.n_chunks, args->total);
}

/* One thread. */
static __global__ void finish_kernel(step_finish_args args)
{
    step_scalars *step = args.step;
    const double weight = *args.weight, norm = weight > 0 ? sqrt(*args.sum_squares) / weight : 0;
    const bool clipped = args.max_norm > 0 && norm > args.max_norm;
    step->skip = !(weight > 0) || !isfinite(norm);
    step->grad_norm = norm;
    step->grad_scale = step->skip != 0 ? 0 : (clipped ? args.max_norm / norm : 1) / weight;
}

extern "C" status cuda_step_finish(stream *queue, const step_finish_args *args)
{
    return LAUNCH(queue, finish_kernel, grid_of(1), 1, 0, *args);
}

/* One thread. */
static __global__ void unit_kernel(unit_finish_args args)
{
    step_scalars *step = args.step;
    const double weight = *args.weight;
    double squares = 0;
    if (args.first)
        step->skip = !(weight > 0) || !isfinite(*args.loss);
    for (int64_t j = 0; j < args.groups; j++) {
        squares += args.squares[j];
        args.after_group[j] = (args.first ? 0 : args.after_group[j]) + squares;
    }
    if (step->skip == 0 && !isfinite(squares)) {
        step->skip = 1;
        step->stopped = (double)args.unit + 1;
    }
    const double norm = *args.last_norm > 0 ? *args.last_norm : sqrt(squares) / weight;
    const bool clipped = args.max_norm > 0 && norm > args.max_norm;
    step->grad_scale = step->skip != 0 ? 0 : (clipped ? args.max_norm / norm : 1) / weight;
    if (args.last) {
        step->grad_norm = weight > 0 ? sqrt(args.after_group[args.groups - 1]) / weight : 0;
        *args.last_norm = step->skip != 0 ? *args.last_norm : step->grad_norm;
    }
}

extern "C" status cuda_unit_finish(stream *queue, const unit_finish_args *args)
{
    return LAUNCH(queue, unit_kernel, grid_of(1), 1, 0, *args);
}

/* The scalars of the step and of a tensor, in the form that the arithmetic wants. */
typedef struct adamw_rates {
    float b1, b2, c1, c2, root2, eps, scale; /* root2: 1 / sqrt(bias2) */
    float keep, rate;
} adamw_rates;

static __device__ inline adamw_rates rates_of(const step_scalars *step, const optim_tensor &tensor)
{
    const double lr = step->lr * tensor.lr_factor;
    adamw_rates rates;
    rates.b1 = (float)step->beta1;
    rates.b2 = (float)step->beta2;
    rates.c1 = (float)(1 - step->beta1);
    rates.c2 = (float)(1 - step->beta2);
    rates.root2 = (float)(1 / sqrt(step->bias2));
    rates.eps = (float)step->eps;
    rates.scale = (float)step->grad_scale;
    rates.keep = (float)(1 - lr * tensor.decay);
    rates.rate = (float)(lr / step->bias1);
    return rates;
}

static __device__ inline float update_element(const adamw_rates &rates, float p, float g, float *m,
                                              float *v)
{
    g *= rates.scale;
    *m = rates.b1 * *m + rates.c1 * g;
    *v = rates.b2 * *v + rates.c2 * g * g;
    return p * rates.keep - rates.rate * *m / (sqrtf(*v) * rates.root2 + rates.eps);
}

static __device__ inline void update_one(const optim_tensor &tensor, const adamw_rates &rates,
                                         int64_t one)
{
    float *p = (float *)tensor.p;
    p[one] = update_element(rates, p[one], ((const float *)tensor.g)[one], (float *)tensor.m + one,
                            (float *)tensor.v + one);
    if (tensor.p_act)
        ((bf16 *)tensor.p_act)[one] = to_bf16(p[one]);
}

/* index must be a multiple of 4. */
static __device__ inline void update_quad(const optim_tensor &tensor, const adamw_rates &rates,
                                          int64_t index)
{
    float4 *p_at = (float4 *)((float *)tensor.p + index),
           *m_at = (float4 *)((float *)tensor.m + index);
    float4 *v_at = (float4 *)((float *)tensor.v + index), p = *p_at, m = *m_at, v = *v_at;
    const float4 g = *(const float4 *)((const float *)tensor.g + index);
    p.x = update_element(rates, p.x, g.x, &m.x, &v.x);
    p.y = update_element(rates, p.y, g.y, &m.y, &v.y);
    p.z = update_element(rates, p.z, g.z, &m.z, &v.z);
    p.w = update_element(rates, p.w, g.w, &m.w, &v.w);
    *p_at = p;
    *m_at = m;
    *v_at = v;
    if (tensor.p_act)
        *(uint2 *)((bf16 *)tensor.p_act + index) = make_uint2(pack2(p.x, p.y), pack2(p.z, p.w));
}

static __global__ void __launch_bounds__(THREADS) adamw_kernel(adamw_args args)
{
    __shared__ adamw_rates shared;
    if (args.step->skip != 0)
        return;
    for (int64_t i = blockIdx.x; i < args.list.n_chunks; i += gridDim.x) {
        const chunk range = chunk_of(args.list, i);
        __syncthreads();
        if (threadIdx.x == 0) /* a square root and divisions in double, so once per chunk */
            shared = rates_of(args.step, range.tensor);
        __syncthreads();
        const adamw_rates rates = shared;
        for (int64_t j = range.begin + QUAD * threadIdx.x; j < range.end; j += QUAD * THREADS)
            if (j + QUAD <= range.end)
                update_quad(range.tensor, rates, j);
            else
                for (int64_t one = j; one < range.end; one++)
                    update_one(range.tensor, rates, one);
    }
}

extern "C" status cuda_adamw(stream *queue, const adamw_args *args)
{
    return LAUNCH(queue, adamw_kernel, grid_of_chunks(args->list), THREADS, 0, *args);
}
