/* paced.cu: the ops of paced.h on CUDA.
 *
 * A few blocks run, each of which takes all shared memory of a multiprocessor, so that no kernel
 * that needs shared memory runs beside it: that is the share of the GPU that a library's
 * collectives take. The work is cut into chunks that are dealt out to the blocks in turn. After its
 * k-th chunk of m, a block waits until k / m of the time has passed. So bytes arrive evenly, at
 * most one chunk of a block early.
 *
 * To keep up with a link, a block has THREADS x UNROLL x 16 bytes under way: 32 KiB, which at about
 * a microsecond each time is some 30 GB/s; 16 blocks would then reach an NVLink. On an H200 16
 * blocks without a pace wrote 446 and 457 GB/s in two runs; an NVLink carries 450. */
#include "trainer/ops/cuda/kernel_launch.cuh"
#include "trainer/ops/cuda/waits.cuh"

enum {
    THREADS = 512,
    UNROLL = 4,
    CHUNK = 1 << 17,     /* bytes; they take some microseconds of a block's share of a link */
    SUM_CHUNK = 1 << 14, /* elements of y */
    NAP_NS = 200         /* pause between two readings of the clock */
};

/* Waits until the clock reaches ns, and so not for ever. One thread reads the clock and all wait
 * for it. */
static __device__ __forceinline__ void hold_until(int64_t ns)
{
    if (threadIdx.x == 0)
        while (device_ns() < ns)
            __nanosleep(NAP_NS);
    __syncthreads();
}

/* When a block that has done `done` of its `mine` chunks may continue. */
static __device__ __forceinline__ int64_t due(const link_pace &pace, int64_t start, int64_t done,
                                              int64_t mine)
{
    return start + pace.wait_ns + pace.span_ns / mine * done + pace.span_ns % mine * done / mine;
}

static __device__ __forceinline__ int64_t chunks_of_block(int64_t chunks)
{
    return (chunks - blockIdx.x + gridDim.x - 1) / gridDim.x;
}

static __host__ __device__ __forceinline__ int64_t run_chunks(const paced_run &run_of)
{
    return (run_of.bytes + CHUNK - 1) / CHUNK;
}

/* ---- copy: 2 bytes moved for each ---- */

/* Copies n elements of the run from `first` on. */
template <class V>
static __device__ __forceinline__ void copy_chunk(const paced_run &run_of, int64_t first, int64_t n)
{
    const int64_t around = run_of.x_bytes / (int64_t)sizeof(V);
    const int64_t from = around > 0 ? first % around : 0;
    const V *x = (const V *)run_of.x;
    V *y = (V *)run_of.y + first;
    for (int64_t i = threadIdx.x; i < n; i += THREADS * UNROLL) {
        V v[UNROLL] = {};
#pragma unroll
        for (int j = 0; j < UNROLL; j++) {
            const int64_t at = from + i + j * THREADS;
            if (around > 0 && i + j * THREADS < n)
                v[j] = x[at < around ? at : at % around];
        }
#pragma unroll
        for (int j = 0; j < UNROLL; j++)
            if (i + j * THREADS < n)
                y[i + j * THREADS] = v[j];
    }
}

template <class V> static __global__ void copy_kernel(paced_copy_args args, int64_t chunks)
{
    const int64_t start = device_ns(), mine = chunks_of_block(chunks);
    int64_t passed = 0, done = 0; /* passed: chunks of the runs before */
    int run = 0;
    hold_until(start + args.pace.wait_ns);
    for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        while (chunk - passed >= run_chunks(args.run[run]))
            passed += run_chunks(args.run[run++]);
        const int64_t first = (chunk - passed) * CHUNK;
        const int64_t bytes = min(args.run[run].bytes - first, (int64_t)CHUNK);
        copy_chunk<V>(args.run[run], first / (int64_t)sizeof(V), bytes / (int64_t)sizeof(V));
        hold_until(due(args.pace, start, ++done, mine));
    }
}

template <class K, class... A>
static status launch_paced(stream *queue, const char *name, K kernel, const link_pace &pace,
                           int64_t chunks, A... args)
{
    const size_t shared = (size_t)cuda_facts_of(queue)->shared_bytes;
    const int64_t most = pace.blocks > 0 ? pace.blocks : 1;
    TRY(allow_shared(kernel, shared));
    return launch(__FILE__, __LINE__, name, queue, kernel, grid_of(chunks < most ? chunks : most),
                  THREADS, shared, args..., chunks);
}

extern "C" status cuda_paced_copy(stream *queue, const paced_copy_args *args)
{
    uintptr_t bits = 0;
    int64_t chunks = 0;
    for (int i = 0; i < args->n; i++) {
        const paced_run &run_of = args->run[i];
        bits |= (uintptr_t)run_of.y | (uintptr_t)run_of.x | (uintptr_t)run_of.bytes |
                (uintptr_t)run_of.x_bytes;
        chunks += run_chunks(run_of);
    }
    if (bits % sizeof(uint4) == 0)
        return launch_paced(queue, "paced_copy of 16 bytes", copy_kernel<uint4>, args->pace, chunks,
                            *args);
    if (bits % sizeof(unsigned) == 0)
        return launch_paced(queue, "paced_copy of 4 bytes", copy_kernel<unsigned>, args->pace,
                            chunks, *args);
    return launch_paced(queue, "paced_copy of bytes", copy_kernel<unsigned char>, args->pace,
                        chunks, *args);
}

/* ---- sum: pieces + 1 elements moved for each ---- */

template <int WIDTH, class T> static __global__ void sum_kernel(paced_sum_args args, int64_t chunks)
{
    const int64_t start = device_ns(), mine = chunks_of_block(chunks);
    int64_t done = 0;
    hold_until(start + args.pace.wait_ns);
    for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        const int64_t end = min((chunk + 1) * SUM_CHUNK, args.n);
        for (int64_t i = chunk * SUM_CHUNK + threadIdx.x * WIDTH; i < end; i += THREADS * WIDTH) {
            float sum[WIDTH] = {};
#pragma unroll 4
            for (int64_t piece = 0; piece < args.pieces; piece++) {
                float x[WIDTH];
                load<WIDTH>(x, (const T *)args.x + piece * args.n + i);
#pragma unroll
                for (int k = 0; k < WIDTH; k++)
                    sum[k] += x[k];
            }
            store<WIDTH>((T *)args.y + i, sum);
        }
        hold_until(due(args.pace, start, ++done, mine));
    }
}

template <class T> static status sum(stream *queue, const paced_sum_args &args)
{
    const int64_t chunks = ceil_div(args.n, SUM_CHUNK);
    if (args.n % VECTOR == 0 && aligned16(args.x, args.y))
        return launch_paced(queue, "paced_sum", sum_kernel<VECTOR, T>, args.pace, chunks, args);
    return launch_paced(queue, "paced_sum, one by one", sum_kernel<1, T>, args.pace, chunks, args);
}

extern "C" status cuda_paced_sum(stream *queue, const paced_sum_args *args)
{
    return args->acc ? sum<float>(queue, *args) : sum<bf16>(queue, *args);
}
