/* SPDX-License-Identifier: Apache-2.0 */
/* xent.cu: xent (loss_ops.h) on CUDA.
 *
 * A block owns a row. It reads the row once, keeping the largest logit and the sum of exponentials
 * as it goes, and writes the gradient once. On the way the first STAGED bytes of the row stay in
 * shared memory; the rest is read again, from L2: 144 KB of a row of 151,936, or 19 MB over 132
 * multiprocessors. So DRAM moves 2V bytes per row, 4V with backward, and is the limit; the
 * exponentials (V, 2V with backward) take 60 % of that time in parallel.
 *
 * Sums are in float: per thread over ascending columns, rescaled when a larger logit comes, then
 * over the block in a fixed order. Rows are added to the loss in double, by one block, in a fixed
 * order. */
#include <limits.h>

#include "trainer/ops/cuda/piece.cuh"

enum {
    THREADS = 1024, /* one block per multiprocessor; with PIECES each they have 64 KB under way */
    WARPS = THREADS / LANES,
    PIECES = 4,
    STAGED = 160 * 1024, /* bytes of a row in shared memory: what sm_80 has for one block */
    STATIC = 1024,       /* static shared memory besides these, at most */
    SUM_THREADS = 256
};

/* Below every logit, and finite times log2 e. */
static const float LOWEST = -1e30f;

/* The state after some logits: the largest, the sum of 2^(z log2 e - base(max)), and where the
 * largest is. A NaN reaches the sum, and so the loss. */
typedef struct seen {
    float max, sum;
    int at;
} seen;

/* The base of the exponents. It is rounded, so the loss is computed from the same base, and so the
 * difference of two equal bases is 0: a product that the compiler fuses with a subtraction is not
 * rounded, and of LOWEST it would leave 1e22. */
static __device__ __forceinline__ float base(float max)
{
    return __fmul_rn(max, LOG2E);
}

/* `at` is the number of a piece while a thread reads, and of a column for the whole block. */
template <int N> static __device__ __forceinline__ void see(seen *state, piece<N> bits, int at)
{
    float z[N];
    unpack(z, bits);
    float max = z[0], sum = 0;
#pragma unroll
    for (int i = 1; i < N; i++)
        max = fmaxf(max, z[i]);
    if (max > state->max) {
        state->sum *= exp2_fast(base(state->max) - base(max));
        state->max = max;
        state->at = at;
    }
    const float from = base(state->max);
#pragma unroll
    for (int i = 0; i < N; i++)
        sum += exp2_fast(fmaf(z[i], LOG2E, -from));
    state->sum += sum;
}

/* Reads the pieces [from, to) of the row in steps of the block; `keep`: also into shared memory. */
template <int N>
static __device__ inline void see_run(seen *state, const piece<N> *row, int from, int to,
                                      piece<N> *keep)
{
    for (int i0 = from + (int)threadIdx.x; i0 < to; i0 += PIECES * THREADS) {
        piece<N> pieces[PIECES];
#pragma unroll
        for (int j = 0; j < PIECES; j++)
            pieces[j] = row[i0 + j * THREADS < to ? i0 + j * THREADS : i0];
#pragma unroll
        for (int j = 0; j < PIECES; j++)
            if (i0 + j * THREADS < to) {
                if (keep)
                    keep[i0 + j * THREADS] = pieces[j];
                see(state, pieces[j], i0 + j * THREADS);
            }
    }
}

/* Keeps the larger of two logits, and of two equal ones the first. */
static __device__ __forceinline__ void take_larger(float *max, int *at, float other, int other_at)
{
    if (other > *max || (other == *max && other_at < *at)) {
        *max = other;
        *at = other_at;
    }
}

/* Combines the threads' states into the whole row's, which every thread gets. */
static __device__ inline seen block_seen(seen state)
{
    __shared__ float maxima[WARPS], sums[WARPS];
    __shared__ int places[WARPS];
    const int warp = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    const float own = state.max;
    for (int offset = LANES / 2; offset > 0; offset /= 2)
        take_larger(&state.max, &state.at, __shfl_xor_sync(0xffffffffu, state.max, offset),
                    __shfl_xor_sync(0xffffffffu, state.at, offset));
    state.sum = warp_sum(state.sum * exp2_fast(base(own) - base(state.max)));
    if (lane == 0) {
        maxima[warp] = state.max;
        sums[warp] = state.sum;
        places[warp] = state.at;
    }
    __syncthreads();
    seen all = {maxima[0], 0, places[0]};
    for (int i = 1; i < WARPS; i++)
        take_larger(&all.max, &all.at, maxima[i], places[i]);
    for (int i = 0; i < WARPS; i++)
        all.sum += sums[i] * exp2_fast(base(maxima[i]) - base(all.max));
    return all;
}

/* row = scale e^(z - max), minus the weight at the label, for the pieces [from, to) that are read
 * from `kept`. */
template <int N>
static __device__ inline void write_run(piece<N> *row, const piece<N> *kept, int from, int to,
                                        float max, float scale, int label, float weight)
{
    for (int i0 = from + (int)threadIdx.x; i0 < to; i0 += PIECES * THREADS) {
        piece<N> pieces[PIECES];
#pragma unroll
        for (int j = 0; j < PIECES; j++)
            pieces[j] = kept[i0 + j * THREADS < to ? i0 + j * THREADS : i0];
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            const int at = i0 + j * THREADS;
            float z[N];
            unpack(z, pieces[j]);
#pragma unroll
            for (int i = 0; i < N; i++)
                z[i] = scale * exp2_fast(fmaf(z[i], LOG2E, -base(max)));
            if (at == label / N)
#pragma unroll
                for (int i = 0; i < N; i++)
                    z[i] -= i == label % N ? weight : 0.0f;
            if (at < to)
                row[at] = pack(z);
        }
    }
}

/* Writes nll [n]. N must divide the vocabulary. */
template <int N>
static __global__ void __launch_bounds__(THREADS, 1)
    xent_kernel(xent_args args, float *nll, int staged_bytes)
{
    SHARED_BYTES(shared);
    piece<N> *kept = (piece<N> *)shared;
    const int64_t i = blockIdx.x;
    const int pieces = (int)(args.vocab / N),
              staged = min(pieces, staged_bytes / (int)sizeof(piece<N>));
    piece<N> *row = (piece<N> *)((bf16 *)args.logits + i * args.vocab);
    const int label = args.label[i];
    const bool counts = label >= 0 && label < args.vocab;
    const float weight = args.weight ? ((const float *)args.weight)[i] : 1.0f;
    if (!counts && threadIdx.x == 0)
        nll[i] = 0;
    if (counts || args.best) {
        const float target = counts ? to_float(((const bf16 *)row)[label]) : 0.0f;
        seen state = {LOWEST, 0, (int)threadIdx.x < pieces ? (int)threadIdx.x : pieces};
        see_run(&state, row, 0, staged, args.backward ? kept : (piece<N> *)NULL);
        see_run(&state, row, staged, pieces, (piece<N> *)NULL);
        state = block_seen(state);
        if (threadIdx.x == 0) {
            int column = state.at * N;
            for (int j = N - 1; j >= 0; j--)
                if (to_float(((const bf16 *)row)[state.at * N + j]) == state.max)
                    column = state.at * N + j;
            if (args.best)
                args.best[i] = column;
            if (counts)
                nll[i] = (base(state.max) + log2f(state.sum)) / LOG2E - target;
        }
        if (counts && args.backward) {
            __syncthreads(); /* the row was read above; what a thread kept it reads back itself */
            write_run(row, row, staged, pieces, state.max, weight / state.sum, label, weight);
            write_run(row, kept, 0, staged, state.max, weight / state.sum, label, weight);
        }
    }
    if (!counts && args.backward) {
        const float zero[N] = {};
        __syncthreads();
        for (int j = (int)threadIdx.x; j < pieces; j += THREADS)
            row[j] = pack(zero);
    }
}

/* Runs in one block. */
static __global__ void __launch_bounds__(SUM_THREADS) sum_kernel(xent_args args, const float *nll)
{
    __shared__ double loss[SUM_THREADS], weights[SUM_THREADS];
    double sum = 0, of_weights = 0;
    for (int64_t i = threadIdx.x; i < args.n; i += SUM_THREADS)
        if (args.label[i] >= 0 && args.label[i] < args.vocab) {
            const double w = args.weight ? ((const float *)args.weight)[i] : 1.0f;
            sum += w * nll[i];
            of_weights += w;
        }
    loss[threadIdx.x] = sum;
    weights[threadIdx.x] = of_weights;
    for (int half = SUM_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) {
            loss[threadIdx.x] += loss[threadIdx.x + half];
            weights[threadIdx.x] += weights[threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) {
        *args.loss_sum += loss[0];
        *args.weight_sum += weights[0];
    }
}

extern "C" status cuda_xent(stream *queue, const xent_args *args)
{
    if (args->n == 0)
        return ST_OK;
    if (args->vocab <= 0 || args->vocab > INT_MAX)
        return FAIL(ST_BAD_INPUT, "xent: the vocabulary has %lld words; it must have at least one",
                    (long long)args->vocab);
    void *nll = args->nll;
    if (!nll)
        TRY(cuda_scratch(queue, (size_t)args->n * sizeof(float), &nll));
    const bool wide = args->vocab % VECTOR == 0 && aligned16(args->logits);
    const int64_t row = args->vocab * (int64_t)sizeof(bf16);
    int staged = cuda_facts_of(queue)->shared_bytes - STATIC;
    staged = staged < STAGED ? staged / 16 * 16 : (int)STAGED;
    staged = row < staged ? (int)row : staged;
    if (wide) {
        TRY(allow_shared(xent_kernel<VECTOR>, (size_t)staged));
        TRY(LAUNCH(queue, xent_kernel<VECTOR>, grid_of(args->n), THREADS, (size_t)staged, *args,
                   (float *)nll, staged));
    } else {
        TRY(allow_shared(xent_kernel<1>, (size_t)staged));
        TRY(LAUNCH(queue, xent_kernel<1>, grid_of(args->n), THREADS, (size_t)staged, *args,
                   (float *)nll, staged));
    }
    return LAUNCH(queue, sum_kernel, grid_of(1), SUM_THREADS, 0, *args, (const float *)nll);
}
