/* optim_ops.cu: sum_squares, step_finish and unit_finish (loss_ops.h) on CUDA.
 *
 * Blocks take the chunks of the list in turn, so one launch reads all gradients, 4 bytes an
 * element. DRAM is the limit. Squares are summed in double, per thread, per warp, per block and
 * then over chunks, in an order that depends on the list alone. */
#include "trainer/ops/cuda/optim_list.cuh"

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

/* After a step in which all units were updated. */
static __device__ inline void note_shares(const unit_finish_args &args)
{
    const double all = args.after_group[args.groups - 1];
    const double moved = args.step->share > 0 ? 1.0 / UNIT_SHARE_STEPS : 1.0;
    const double *__restrict__ squares = args.unit_squares;
    double *__restrict__ share = args.share;
#pragma unroll 8
    for (int64_t i = 0; i < args.units && all > 0; i++)
        share[i] += moved * (squares[i] / all - share[i]);
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
    args.unit_squares[args.unit] = squares;
    step->share = (args.first ? 0 : step->share) + args.share[args.unit];
    if (step->skip == 0 && !isfinite(squares)) {
        step->skip = 1;
        step->stopped = (double)args.unit + 1;
    }
    const double all = step->share > 0 ? args.after_group[args.groups - 1] / step->share : squares;
    const double norm = sqrt(all) / weight;
    const bool clipped = args.max_norm > 0 && norm > args.max_norm;
    step->grad_scale = step->skip != 0 ? 0 : (clipped ? args.max_norm / norm : 1) / weight;
    if (args.last) {
        step->grad_norm = weight > 0 ? sqrt(args.after_group[args.groups - 1]) / weight : 0;
        if (step->skip == 0)
            note_shares(args);
    }
}

extern "C" status cuda_unit_finish(stream *queue, const unit_finish_args *args)
{
    return LAUNCH(queue, unit_kernel, grid_of(1), 1, 0, *args);
}
