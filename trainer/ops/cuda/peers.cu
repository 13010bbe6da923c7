/* peers.cu: the ops of peers.h on CUDA, over NVLink or within one GPU. They are plain loads and
 * stores through the addresses in base; all they need of NCCL is those addresses.
 *
 * Rows are both sent and fetched by the rank that sends them, since it knows where they belong. A
 * warp moves a row, 16 bytes a lane, with ROW_PIECES of them under way. A row is read once and
 * written once, each way. A meeting is one warp, so that it takes next to nothing of the GPU while
 * it waits, whatever else must run there before the others can come. Its stores to other ranks are
 * released at system scope after all that earlier kernels wrote, and what later kernels read was
 * acquired by it. */
#include "trainer/ops/cuda/route.cuh"

enum {
    TELL_THREADS = 256,
    PLAN_WARPS = 8,
    PLAN_THREADS = PLAN_WARPS * LANES,
    ROW_WARPS = 8,
    ROW_PIECES = 4,
    /* Readings of other ranks' flags between two of *stop, which lies in host memory. */
    LOOKS = 1024
};

static __device__ __forceinline__ char *locate_window(const peer_set &p, int rank, size_t at)
{
    return (char *)p.base[rank] + at;
}

static __device__ __forceinline__ bool needs_round(int32_t round, const int32_t *rounds)
{
    return !rounds || round == 0 || round < *rounds;
}

/* ---- telling and meeting ---- */

static __global__ void __launch_bounds__(TELL_THREADS) tell_kernel(peers_tell_args a)
{
    int32_t *to = (int32_t *)locate_window(a.peers, (int)blockIdx.x, a.at) + a.peers.rank * a.count;
    for (int64_t i = threadIdx.x; i < a.count; i += TELL_THREADS)
        to[i] = a.values[i];
}

extern "C" status cuda_peers_tell(stream *s, const peers_tell_args *a)
{
    return LAUNCH(s, tell_kernel, grid_of(a->peers.size), TELL_THREADS, 0, *a);
}

static __device__ __forceinline__ void store_release(uint32_t *to, uint32_t value)
{
#ifdef __CUDACC__
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
#else
    *to = value;
#endif
}

static __device__ __forceinline__ uint32_t load_acquire(const uint32_t *from)
{
#ifdef __CUDACC__
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
#else
    return *from;
#endif
}

/* Waits until *arrived has reached the turn. */
static __device__ __forceinline__ void wait_for(const uint32_t *arrived, uint32_t turn,
                                                const int32_t *stop)
{
#ifdef __CUDACC__
    for (int look = 1; (int32_t)(load_acquire(arrived) - turn) < 0; look++)
        if (look % LOOKS == 0 && stop && *(const volatile int32_t *)stop)
            return;
#else /* on the host no other rank can arrive while a kernel runs */
    DEVICE_CHECK((int32_t)(load_acquire(arrived) - turn) >= 0 || (stop && *stop));
#endif
}

static __global__ void __launch_bounds__(LANES) meet_kernel(peers_meet_args a)
{
    if (!needs_round(a.round, a.rounds))
        return;
    uint32_t *met = (uint32_t *)locate_window(a.peers, a.peers.rank, a.met);
    const uint32_t turn = *met + 1;
    if (a.phase & MEET_ARRIVE) {
        __threadfence_system();
        for (int r = (int)threadIdx.x; r < a.peers.size; r += LANES)
            store_release((uint32_t *)locate_window(a.peers, r, a.arrived) + a.peers.rank, turn);
    }
    if (!(a.phase & MEET_WAIT))
        return;
    const uint32_t *arrived = (const uint32_t *)locate_window(a.peers, a.peers.rank, a.arrived);
    for (int r = (int)threadIdx.x; r < a.peers.size; r += LANES)
        wait_for(arrived + r, turn, a.stop);
    __syncwarp();
    if (threadIdx.x == 0)
        *met = turn;
}

extern "C" status cuda_peers_meet(stream *s, const peers_meet_args *a)
{
    return LAUNCH(s, meet_kernel, grid_of(1), LANES, 0, *a);
}

/* ---- the plan: one block, a warp for each owner ---- */

static __device__ __forceinline__ int lanes_below(int own, int lane)
{
    int sum = own;
    for (int step = 1; step < LANES; step *= 2) {
        int left = __shfl_up_sync(WHOLE_WARP, sum, step);
        sum += lane >= step ? left : 0;
    }
    return sum - own;
}

/* Finds where the owner's experts begin in its order, into place and order. Returns the owner's
 * number of rows. */
static __device__ int plan_owner(const exchange_plan_args &a, int owner, const int *total,
                                 const int *before)
{
    const int own = (int)(a.experts / a.ranks), lane = (int)threadIdx.x % LANES;
    int rows = 0;
    for (int x0 = 0; x0 < own; x0 += LANES) {
        const int x = x0 + lane, e = owner * own + x, n = x < own ? total[e] : 0;
        const int first = rows + lanes_below(n, lane);
        if (x < own)
            a.place[e] = first + before[e];
        if (x < own && owner == a.rank)
            a.order[x] = first;
        rows = __shfl_sync(WHOLE_WARP, first + n, LANES - 1);
    }
    if (owner == a.rank && lane == 0)
        a.order[own] = rows;
    return rows;
}

static __global__ void __launch_bounds__(PLAN_THREADS) plan_kernel(exchange_plan_args a)
{
    /* Slots of all ranks; slots of the ranks before this one. */
    __shared__ int total[EXPERTS_MAX], before[EXPERTS_MAX];
    __shared__ int most, come;
    const int experts = (int)a.experts, tid = (int)threadIdx.x;
    if (tid == 0)
        most = 0;
    for (int e = tid; e < experts; e += PLAN_THREADS) {
        int sum = 0, earlier = 0;
        for (int r = 0; r < (int)a.ranks; r++) {
            const int32_t *b = a.borders + (int64_t)r * (experts + 1) + e;
            const int n = b[1] > b[0] ? b[1] - b[0] : 0;
            earlier += r < a.rank ? n : 0;
            sum += n;
        }
        total[e] = sum;
        before[e] = earlier;
    }
    __syncthreads();
    for (int owner = tid / LANES; owner < (int)a.ranks; owner += PLAN_WARPS) {
        const int rows = plan_owner(a, owner, total, before);
        if (tid % LANES == 0) {
            atomicMax(&most, rows);
            if (owner == a.rank)
                come = rows;
        }
    }
    __syncthreads();
    if (tid != 0)
        return;
    const int32_t *mine = a.borders + (int64_t)a.rank * (experts + 1);
    const int own = experts / (int)a.ranks, kept = mine[(a.rank + 1) * own] - mine[a.rank * own];
    *a.rounds = (int32_t)((most + a.rows - 1) / a.rows);
    a.moved[0] += come - kept;
    a.moved[1] += mine[experts] - mine[0] - kept;
}

extern "C" status cuda_exchange_plan(stream *s, const exchange_plan_args *a)
{
    TRY(route_check(a->experts, 1, a->experts));
    return LAUNCH(s, plan_kernel, grid_of(1), PLAN_THREADS, 0, *a);
}

/* ---- rows ---- */

/* Finds the expert of a slot: offset[e] <= slot < offset[e + 1]. */
static __device__ __forceinline__ int expert_of(const int32_t *offset, int experts, int64_t slot)
{
    int low = 0, high = experts - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (offset[middle] <= slot)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static __device__ __forceinline__ void write_round(const exchange_rows_args &a)
{
    const int own = (int)(a.experts / a.peers.size);
    for (int x = (int)threadIdx.x; x <= own; x += ROW_WARPS * LANES) {
        const int64_t row = a.order[x] - a.round * a.rows;
        a.round_offset[x] = (int32_t)(row < 0 ? 0 : row > a.rows ? a.rows : row);
    }
}

/* T is what a lane moves at once. */
template <class T>
static __device__ __forceinline__ void copy_row(T *to, const T *from, int64_t pieces)
{
    for (int64_t i = threadIdx.x % LANES; i < pieces; i += LANES * ROW_PIECES) {
        T held[ROW_PIECES];
#pragma unroll
        for (int k = 0; k < ROW_PIECES; k++)
            if (i + k * LANES < pieces)
                held[k] = from[i + k * LANES];
#pragma unroll
        for (int k = 0; k < ROW_PIECES; k++)
            if (i + k * LANES < pieces)
                to[i + k * LANES] = held[k];
    }
}

template <class T>
static __global__ void __launch_bounds__(ROW_WARPS *LANES)
    rows_kernel(exchange_rows_args a, int64_t pieces)
{
    const int experts = (int)a.experts, own = (int)(a.experts / a.peers.size);
    const int64_t slot = (int64_t)blockIdx.x * ROW_WARPS + threadIdx.x / LANES;
    if (blockIdx.x == 0 && a.round_offset)
        write_round(a);
    if (!needs_round(a.round, a.rounds) || slot >= a.slots || slot >= a.offset[experts])
        return;
    const int e = expert_of(a.offset, experts, slot);
    const int64_t row = (int64_t)a.place[e] + slot - a.offset[e] - a.round * a.rows;
    if (row < 0 || row >= a.rows)
        return;
    T *there = (T *)locate_window(a.peers, e / own, a.at) + row * pieces;
    T *here = (T *)a.mine + slot * pieces;
    if (a.back)
        copy_row(here, there, pieces);
    else
        copy_row(there, here, pieces);
}

extern "C" status cuda_exchange_rows(stream *s, const exchange_rows_args *a)
{
    const dim3 grid = grid_of(a->slots > ROW_WARPS ? ceil_div(a->slots, ROW_WARPS) : 1);
    if (a->width % VECTOR == 0 && aligned16(a->mine) && a->at % sizeof(uint4) == 0)
        return LAUNCH(s, rows_kernel<uint4>, grid, ROW_WARPS * LANES, 0, *a, a->width / VECTOR);
    return LAUNCH(s, rows_kernel<unsigned short>, grid, ROW_WARPS * LANES, 0, *a, a->width);
}
