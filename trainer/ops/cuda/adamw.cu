/* SPDX-License-Identifier: Apache-2.0 */
/* adamw.cu: AdamW (loss_ops.h) on CUDA.
 *
 * Blocks take the chunks of the list in turn, so one launch updates all parameters. DRAM is the
 * limit. Bytes of an element, read and written:
 *
 *   float32 moments, float32 master and its bf16 copy    30    16 + 14
 *   float32 moments, bf16 master                         24    14 + 10
 *   8-bit moments, float32 master and its bf16 copy      18.06  10 + 8, and 4 scales of a block
 *   8-bit moments, bf16 master                           12.06   8 + 4, and 4 scales of a block
 *
 * Tensors in float32 go by fours, with an element's four arrays in one thread. For the others a
 * warp takes a block of STATE_BLOCK elements, eight to a lane, and finds its scales by shuffles. */
#include "common/base/philox.h"
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

/* ---- sums and scalars ---- */

/* Sum_squares, step_finish and unit_finish (loss_ops.h) on CUDA.
 *
 * Blocks take the chunks of the list in turn, so one launch reads all gradients, 4 bytes an
 * element. DRAM is the limit. Squares are summed in double, per thread, per warp, per block and
 * then over chunks, in an order that depends on the list alone. */

/* The sum over a block, always in the same order. */
static __device__ inline double block_sum_double(double x)
{
    __shared__ double partial[WARPS];
    for (int offset = LANES / 2; offset > 0; offset /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
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

/* ---- AdamW ---- */

/* The scalars of the step and of a tensor, in the form that the arithmetic wants. */
typedef struct adamw_rates {
    float b1, b2, c1, c2, root2, eps, scale; /* root2: 1 / sqrt(bias2) */
    float keep, rate;
    uint64_t step;
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
    rates.step = (uint64_t)step->number;
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

/* ---- tensors with 8-bit moments or a bf16 master ---- */

static_assert(STATE_BLOCK == LANES * VECTOR, "a warp takes a block");

/* The elements [index, index + count) of a tensor, which one lane updates: VECTOR of them, or what
 * is left at the tensor's end. Beyond it `g` and the moments are 0. */
typedef struct octet {
    int64_t index;
    int count;
    float p[VECTOR], g[VECTOR], m[VECTOR], v[VECTOR];
} octet;

/* A whole octet is loaded and stored at once, the last one of a tensor element by element. */
template <class T>
static __device__ inline void load_octet(float (&out)[VECTOR], const T *from, int count)
{
    if (count == VECTOR)
        load<VECTOR>(out, from);
    else
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            float one[1] = {0};
            if (i < count)
                load<1>(one, from + i);
            out[i] = one[0];
        }
}

template <class T>
static __device__ inline void store_octet(T *to, const float (&in)[VECTOR], int count)
{
    if (count == VECTOR)
        store<VECTOR>(to, in);
    else
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            const float one[1] = {in[i]};
            if (i < count)
                store<1>(to + i, one);
        }
}

static __device__ inline void load_codes(uint8_t (&out)[VECTOR], const uint8_t *from, int count)
{
    if (count == VECTOR)
        memcpy(out, __builtin_assume_aligned(from, VECTOR), VECTOR);
    else
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            out[i] = i < count ? from[i] : 0;
}

static __device__ inline void store_codes(uint8_t *to, const uint8_t (&in)[VECTOR], int count)
{
    if (count == VECTOR)
        memcpy(__builtin_assume_aligned(to, VECTOR), in, VECTOR);
    else
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            if (i < count)
                to[i] = in[i];
}

static __device__ inline void load_moments(const optim_tensor &tensor, octet *on)
{
    if (!tensor.m_scale) {
        load_octet(on->m, (const float *)tensor.m + on->index, on->count);
        load_octet(on->v, (const float *)tensor.v + on->index, on->count);
        return;
    }
    uint8_t first[VECTOR], second[VECTOR];
    load_codes(first, (const uint8_t *)tensor.m + on->index, on->count);
    load_codes(second, (const uint8_t *)tensor.v + on->index, on->count);
    const float m_scale = on->count ? tensor.m_scale[on->index / STATE_BLOCK] : 0;
    const float v_scale = on->count ? tensor.v_scale[on->index / STATE_BLOCK] : 0;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        on->m[i] = state_first_value(first[i], m_scale);
        on->v[i] = state_second_value(second[i], v_scale);
    }
}

/* All lanes of the warp must call it. */
static __device__ inline void store_moments(const optim_tensor &tensor, const octet &on)
{
    if (!tensor.m_scale) {
        store_octet((float *)tensor.m + on.index, on.m, on.count);
        store_octet((float *)tensor.v + on.index, on.v, on.count);
        return;
    }
    float most_m = 0, most_v = 0;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        most_m = fmaxf(most_m, fabsf(on.m[i]));
        most_v = fmaxf(most_v, on.v[i]);
    }
    const float m_scale = state_scale(warp_max(most_m)), v_scale = state_scale(warp_max(most_v));
    uint8_t first[VECTOR], second[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        first[i] = state_first_code(on.m[i], m_scale);
        second[i] = state_second_code(on.v[i], v_scale);
    }
    store_codes((uint8_t *)tensor.m + on.index, first, on.count);
    store_codes((uint8_t *)tensor.v + on.index, second, on.count);
    if (threadIdx.x % LANES == 0) {
        tensor.m_scale[on.index / STATE_BLOCK] = m_scale;
        tensor.v_scale[on.index / STATE_BLOCK] = v_scale;
    }
}

/* 16 random bits of each element: a block of Philox is that of VECTOR neighbouring places of the
 * published tensor. */
static __device__ inline void draw_octet(const optim_random &random, uint64_t step, const octet &on,
                                         uint32_t (&out)[VECTOR])
{
    const int64_t local = random.first + on.index;
    int64_t row = local / random.run, column = local - row * random.run;
    uint64_t drawn = UINT64_MAX;
    uint32_t words[4] = {0};
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        const uint64_t place = (uint64_t)(random.base + row * random.stride + column);
        const uint64_t group = place / VECTOR;
        if (group != drawn)
            philox_draw(random.key[0], random.key[1], (uint32_t)group, (uint32_t)(group >> 32),
                        (uint32_t)step, (uint32_t)(step >> 32), words);
        drawn = group;
        const uint32_t pair = (uint32_t)place % VECTOR / 2; /* no index: words stay in registers */
        const uint32_t word = pair == 0   ? words[0]
                              : pair == 1 ? words[1]
                              : pair == 2 ? words[2]
                                          : words[3];
        out[i] = word >> (place % 2 * 16) & 0xffffu;
        column++;
        if (column == random.run) {
            column = 0;
            row++;
        }
    }
}

static __device__ inline void store_rounded(const optim_tensor &tensor, const adamw_rates &rates,
                                            const octet &on)
{
    uint32_t random[VECTOR] = {0};
    float p[VECTOR];
    if (tensor.rounding == OPTIM_RANDOM)
        draw_octet(tensor.random, rates.step, on, random);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        const uint32_t upper = tensor.rounding == OPTIM_RANDOM
                                   ? state_round_randomly(on.p[i], random[i])
                                   : state_round_nearest(on.p[i]);
        p[i] = state_bits_float(upper << 16);
    }
    store_octet((bf16 *)tensor.p + on.index, p, on.count);
}

static __device__ inline void update_block(const optim_tensor &tensor, const adamw_rates &rates,
                                           int64_t block)
{
    octet on;
    on.index = block * STATE_BLOCK + VECTOR * (threadIdx.x % LANES);
    const int64_t left = tensor.n - on.index;
    on.count = (int)min(max(left, (int64_t)0), (int64_t)VECTOR);
    load_octet(on.g, (const float *)tensor.g + on.index, on.count);
    if (tensor.rounding == OPTIM_WHOLE)
        load_octet(on.p, (const float *)tensor.p + on.index, on.count);
    else
        load_octet(on.p, (const bf16 *)tensor.p + on.index, on.count);
    load_moments(tensor, &on);
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        on.p[i] = update_element(rates, on.p[i], on.g[i], &on.m[i], &on.v[i]);
    store_moments(tensor, on);
    if (tensor.rounding != OPTIM_WHOLE) {
        store_rounded(tensor, rates, on);
        return;
    }
    store_octet((float *)tensor.p + on.index, on.p, on.count);
    if (tensor.p_act)
        store_octet((bf16 *)tensor.p_act + on.index, on.p, on.count);
}

/* ---- the kernels ---- */

static __device__ inline void update_quads(const chunk &range, const adamw_rates &rates)
{
    for (int64_t j = range.begin + QUAD * threadIdx.x; j < range.end; j += QUAD * THREADS)
        if (j + QUAD <= range.end)
            update_quad(range.tensor, rates, j);
        else
            for (int64_t one = j; one < range.end; one++)
                update_one(range.tensor, rates, one);
}

static __device__ inline void update_blocks(const chunk &range, const adamw_rates &rates)
{
    const int64_t last = (range.end + STATE_BLOCK - 1) / STATE_BLOCK;
    for (int64_t i = range.begin / STATE_BLOCK + threadIdx.x / LANES; i < last; i += WARPS)
        update_block(range.tensor, rates, i);
}

/* CODED: for lists that say so. The other kernel needs fewer registers. */
template <bool CODED>
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
        if (CODED && (range.tensor.m_scale || range.tensor.rounding != OPTIM_WHOLE))
            update_blocks(range, rates);
        else
            update_quads(range, rates);
    }
}

extern "C" status cuda_adamw(stream *queue, const adamw_args *args)
{
    const dim3 grid = grid_of_chunks(args->list);
    if (args->list.coded)
        return LAUNCH(queue, adamw_kernel<true>, grid, THREADS, 0, *args);
    return LAUNCH(queue, adamw_kernel<false>, grid, THREADS, 0, *args);
}
