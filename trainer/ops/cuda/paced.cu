/* paced.cu: the ops of paced.h on CUDA.
 *
 * A few blocks run, each of which takes all shared memory of a multiprocessor, so that no kernel
 * that needs shared memory runs beside it: that is the share of the GPU that a library's
 * collectives take. The work is cut into chunks that are dealt out to the blocks in turn. After its
 * k-th chunk of m, a block waits until k / m of the time has passed. So bytes arrive evenly, at
 * most one chunk of a block early.
 *
 * To keep up with a link, a block has THREADS x UNROLL x 16 bytes under way: 32 KiB, which at about
 * a microsecond each time is some 30 GB/s; 16 blocks would then reach an NVLink. That is a
 * calculation: it has run on no GPU yet. */
#include "trainer/ops/cuda/kernel_launch.cuh"

enum {
    THREADS = 512,
    UNROLL = 4,
    CHUNK = 1 << 17,     /* bytes; they take some microseconds of a block's share of a link */
    SUM_CHUNK = 1 << 14, /* elements of y */
    NAP_NS = 200         /* pause between two readings of the clock */
};

static __device__ __forceinline__ int64_t device_ns()
{
#ifdef __CUDACC__
    int64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
#else
    return simt_clock_ns();
#endif
}

/* Waits until the clock reaches ns. One thread reads the clock and all wait for it. */
static __device__ __forceinline__ void hold_until(int64_t ns)
{
    if (threadIdx.x == 0)
        while (device_ns() < ns)
            __nanosleep(NAP_NS);
    __syncthreads();
}

/* When a block that has done `done` of its `mine` chunks may continue. */
static __device__ __forceinline__ int64_t due(const link_pace &p, int64_t start, int64_t done,
                                              int64_t mine)
{
    return start + p.wait_ns + p.span_ns / mine * done + p.span_ns % mine * done / mine;
}

static __device__ __forceinline__ int64_t chunks_of_block(int64_t chunks)
{
    return (chunks - blockIdx.x + gridDim.x - 1) / gridDim.x;
}

static __host__ __device__ __forceinline__ int64_t run_chunks(const paced_run &r)
{
    return (r.bytes + CHUNK - 1) / CHUNK;
}

/* ---- copy: 2 bytes moved for each ---- */

/* Copies n elements of the run from `first` on. */
template <class V>
static __device__ __forceinline__ void copy_chunk(const paced_run &r, int64_t first, int64_t n)
{
    const int64_t around = r.x_bytes / (int64_t)sizeof(V);
    const int64_t from = around > 0 ? first % around : 0;
    const V *x = (const V *)r.x;
    V *y = (V *)r.y + first;
    for (int64_t i = threadIdx.x; i < n; i += THREADS * UNROLL) {
        V v[UNROLL] = {};
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int64_t at = from + i + u * THREADS;
            if (around > 0 && i + u * THREADS < n)
                v[u] = x[at < around ? at : at % around];
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * THREADS < n)
                y[i + u * THREADS] = v[u];
    }
}

template <class V> static __global__ void copy_kernel(paced_copy_args a, int64_t chunks)
{
    const int64_t start = device_ns(), mine = chunks_of_block(chunks);
    int64_t passed = 0, done = 0; /* passed: chunks of the runs before */
    int run = 0;
    hold_until(start + a.pace.wait_ns);
    for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
        while (c - passed >= run_chunks(a.run[run]))
            passed += run_chunks(a.run[run++]);
        const int64_t first = (c - passed) * CHUNK;
        const int64_t bytes = min(a.run[run].bytes - first, (int64_t)CHUNK);
        copy_chunk<V>(a.run[run], first / (int64_t)sizeof(V), bytes / (int64_t)sizeof(V));
        hold_until(due(a.pace, start, ++done, mine));
    }
}

template <class K, class... A>
static status launch_paced(stream *s, const char *name, K kernel, const link_pace &p,
                           int64_t chunks, A... args)
{
    const size_t shared = (size_t)cuda_facts_of(s)->shared_bytes;
    const int64_t most = p.blocks > 0 ? p.blocks : 1;
    TRY(allow_shared(kernel, shared));
    return launch(__FILE__, __LINE__, name, s, kernel, grid_of(chunks < most ? chunks : most),
                  THREADS, shared, args..., chunks);
}

extern "C" status cuda_paced_copy(stream *s, const paced_copy_args *a)
{
    uintptr_t bits = 0;
    int64_t chunks = 0;
    for (int i = 0; i < a->n; i++) {
        const paced_run &r = a->run[i];
        bits |= (uintptr_t)r.y | (uintptr_t)r.x | (uintptr_t)r.bytes | (uintptr_t)r.x_bytes;
        chunks += run_chunks(r);
    }
    if (bits % sizeof(uint4) == 0)
        return launch_paced(s, "paced_copy of 16 bytes", copy_kernel<uint4>, a->pace, chunks, *a);
    if (bits % sizeof(unsigned) == 0)
        return launch_paced(s, "paced_copy of 4 bytes", copy_kernel<unsigned>, a->pace, chunks, *a);
    return launch_paced(s, "paced_copy of bytes", copy_kernel<unsigned char>, a->pace, chunks, *a);
}

/* ---- sum: pieces + 1 elements moved for each ---- */

template <int WIDTH, class T> static __global__ void sum_kernel(paced_sum_args a, int64_t chunks)
{
    const int64_t start = device_ns(), mine = chunks_of_block(chunks);
    int64_t done = 0;
    hold_until(start + a.pace.wait_ns);
    for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
        const int64_t end = min((c + 1) * SUM_CHUNK, a.n);
        for (int64_t i = c * SUM_CHUNK + threadIdx.x * WIDTH; i < end; i += THREADS * WIDTH) {
            float sum[WIDTH] = {};
#pragma unroll 4
            for (int64_t p = 0; p < a.pieces; p++) {
                float x[WIDTH];
                load<WIDTH>(x, (const T *)a.x + p * a.n + i);
#pragma unroll
                for (int k = 0; k < WIDTH; k++)
                    sum[k] += x[k];
            }
            store<WIDTH>((T *)a.y + i, sum);
        }
        hold_until(due(a.pace, start, ++done, mine));
    }
}

template <class T> static status sum(stream *s, const paced_sum_args &a)
{
    const int64_t chunks = ceil_div(a.n, SUM_CHUNK);
    if (a.n % VECTOR == 0 && aligned16(a.x, a.y))
        return launch_paced(s, "paced_sum", sum_kernel<VECTOR, T>, a.pace, chunks, a);
    return launch_paced(s, "paced_sum, one by one", sum_kernel<1, T>, a.pace, chunks, a);
}

extern "C" status cuda_paced_sum(stream *s, const paced_sum_args *a)
{
    return a->acc ? sum<float>(s, *a) : sum<bf16>(s, *a);
}
