/* SPDX-License-Identifier: Apache-2.0 */
/* peers.cu: the ops of peers.h on CUDA, over NVLink or within one GPU. They are plain loads and
 * stores through the addresses in base; all they need of NCCL is those addresses.
 *
 * Rows are both sent and fetched by the rank that sends them, since it knows where they belong. A
 * warp moves a row, 16 bytes a lane, with ROW_PIECES of them under way. A row is read once and
 * written once, each way. A meeting is one warp, so that it takes next to nothing of the GPU while
 * it waits, whatever else must run there before the others can come. Its stores to other ranks are
 * released at system scope after all that earlier kernels wrote, and what later kernels read was
 * acquired by it.
 *
 * A wait ends when the other ranks have come, or when the host says that the job is over. If
 * neither happens for longer than the host allows, it leaves rank, turn and phase in pinned memory
 * and traps (waits.cuh). */
#include "trainer/ops/cuda/route.cuh"
#include "trainer/ops/cuda/waits.cuh"

enum {
    TELL_THREADS = 256,
    PLAN_WARPS = 8,
    PLAN_THREADS = PLAN_WARPS * LANES,
    ROW_WARPS = 8,
    ROW_PIECES = 4,
    /* Readings of a rank's flag between two of *watch, which lies in host memory,
     * and of the clock. */
    LOOKS = 1024
};

static __device__ __forceinline__ char *locate_window(const peer_set &peers, int rank, size_t at)
{
    return (char *)peers.base[rank] + at;
}

static __device__ __forceinline__ bool needs_round(int32_t round, const int32_t *rounds)
{
    return !rounds || round == 0 || round < *rounds;
}

/* ---- telling and meeting ---- */

static __global__ void __launch_bounds__(TELL_THREADS) tell_kernel(peers_tell_args args)
{
    int32_t *to = (int32_t *)locate_window(args.peers, (int)blockIdx.x, args.at) +
                  args.peers.rank * args.count;
    for (int64_t i = threadIdx.x; i < args.count; i += TELL_THREADS)
        to[i] = args.values[i];
}

extern "C" status cuda_peers_tell(stream *queue, const peers_tell_args *args)
{
    return LAUNCH(queue, tell_kernel, grid_of(args->peers.size), TELL_THREADS, 0, *args);
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
    return *(const volatile uint32_t *)from;
#endif
}

/* What a wait knows of its time. */
typedef struct wait_time {
    int64_t since_ns; /* 0: it has not begun */
    int32_t anew;     /* of the watch, when that time began */
} wait_time;

/* Whether the wait may go on; otherwise the job is over. Gives up a wait that is too long. */
static __device__ __forceinline__ bool may_wait(const peers_meet_args &args, wait_time &time,
                                                kernel_stuck *stuck, kernel_stuck where)
{
    const volatile peer_watch *watch = args.watch;
    const int32_t anew = watch ? watch->anew : 0;
    const int64_t longest_ns = watch ? watch->longest_ns : PEERS_ALONE_NS, now = device_ns();
    if (time.since_ns == 0 || anew != time.anew)
        time = {now, anew};
    if (watch && watch->stop)
        return false;
    if (now - time.since_ns > longest_ns)
        give_up_wait(stuck, where);
    return true;
}

/* Waits until the rank `peer` has reached the turn. */
static __device__ __forceinline__ void wait_for(const peers_meet_args &args,
                                                const uint32_t *arrived, int peer, uint32_t turn,
                                                kernel_stuck *stuck)
{
    wait_time time = {};
    for (unsigned look = 1; (int32_t)(load_acquire(arrived + peer) - turn) < 0; look++)
        if (look % LOOKS == 0 &&
            !may_wait(args, time, stuck, {STUCK_MEETING, peer, (int32_t)turn, args.phase}))
            return;
}

static __global__ void __launch_bounds__(LANES)
    meet_kernel(peers_meet_args args, kernel_stuck *stuck)
{
    if (!needs_round(args.round, args.rounds))
        return;
    uint32_t *met = (uint32_t *)locate_window(args.peers, args.peers.rank, args.met);
    const uint32_t turn = *met + 1;
    if (args.phase & MEET_ARRIVE) {
        __threadfence_system();
        for (int i = (int)threadIdx.x; i < args.peers.size; i += LANES)
            store_release((uint32_t *)locate_window(args.peers, i, args.arrived) + args.peers.rank,
                          turn);
    }
    if (!(args.phase & MEET_WAIT))
        return;
    const uint32_t *arrived =
        (const uint32_t *)locate_window(args.peers, args.peers.rank, args.arrived);
    for (int i = (int)threadIdx.x; i < args.peers.size; i += LANES)
        wait_for(args, arrived, i, turn, stuck);
    __syncwarp();
    if (threadIdx.x == 0)
        *met = turn;
}

extern "C" status cuda_peers_meet(stream *queue, const peers_meet_args *args)
{
    return LAUNCH(queue, meet_kernel, grid_of(1), LANES, 0, *args, cuda_facts_of(queue)->stuck);
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
static __device__ int plan_owner(const exchange_plan_args &args, int owner, const int *total,
                                 const int *before)
{
    const int own = (int)(args.experts / args.ranks), lane = (int)threadIdx.x % LANES;
    int rows = 0;
    for (int x0 = 0; x0 < own; x0 += LANES) {
        const int x = x0 + lane, expert = owner * own + x, n = x < own ? total[expert] : 0;
        const int first = rows + lanes_below(n, lane);
        if (x < own)
            args.place[expert] = first + before[expert];
        if (x < own && owner == args.rank)
            args.order[x] = first;
        rows = __shfl_sync(WHOLE_WARP, first + n, LANES - 1);
    }
    if (owner == args.rank && lane == 0)
        args.order[own] = rows;
    return rows;
}

static __global__ void __launch_bounds__(PLAN_THREADS) plan_kernel(exchange_plan_args args)
{
    /* Slots of all ranks; slots of the ranks before this one. */
    __shared__ int total[EXPERTS_MAX], before[EXPERTS_MAX];
    __shared__ int most, come;
    const int experts = (int)args.experts, tid = (int)threadIdx.x;
    if (tid == 0)
        most = 0;
    for (int expert = tid; expert < experts; expert += PLAN_THREADS) {
        int sum = 0, earlier = 0;
        for (int i = 0; i < (int)args.ranks; i++) {
            const int32_t *borders = args.borders + (int64_t)i * (experts + 1) + expert;
            const int n = borders[1] > borders[0] ? borders[1] - borders[0] : 0;
            earlier += i < args.rank ? n : 0;
            sum += n;
        }
        total[expert] = sum;
        before[expert] = earlier;
    }
    __syncthreads();
    for (int owner = tid / LANES; owner < (int)args.ranks; owner += PLAN_WARPS) {
        const int rows = plan_owner(args, owner, total, before);
        if (tid % LANES == 0) {
            atomicMax(&most, rows);
            if (owner == args.rank)
                come = rows;
        }
    }
    __syncthreads();
    if (tid != 0)
        return;
    const int32_t *mine = args.borders + (int64_t)args.rank * (experts + 1);
    const int own = experts / (int)args.ranks,
              kept = mine[(args.rank + 1) * own] - mine[args.rank * own];
    *args.rounds = (int32_t)((most + args.rows - 1) / args.rows);
    args.moved[0] += come - kept;
    args.moved[1] += mine[experts] - mine[0] - kept;
}

extern "C" status cuda_exchange_plan(stream *queue, const exchange_plan_args *args)
{
    TRY(route_check(args->experts, 1, args->experts));
    return LAUNCH(queue, plan_kernel, grid_of(1), PLAN_THREADS, 0, *args);
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

static __device__ __forceinline__ void write_round(const exchange_rows_args &args)
{
    const int own = (int)(args.experts / args.peers.size);
    for (int i = (int)threadIdx.x; i <= own; i += ROW_WARPS * LANES) {
        const int64_t row = args.order[i] - args.round * args.rows;
        args.round_offset[i] = (int32_t)(row < 0 ? 0 : row > args.rows ? args.rows : row);
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
    rows_kernel(exchange_rows_args args, int64_t pieces)
{
    const int experts = (int)args.experts, own = (int)(args.experts / args.peers.size);
    const int64_t slot = (int64_t)blockIdx.x * ROW_WARPS + threadIdx.x / LANES;
    if (blockIdx.x == 0 && args.round_offset)
        write_round(args);
    if (!needs_round(args.round, args.rounds) || slot >= args.slots || slot >= args.offset[experts])
        return;
    const int expert = expert_of(args.offset, experts, slot);
    const int64_t row =
        (int64_t)args.place[expert] + slot - args.offset[expert] - args.round * args.rows;
    if (row < 0 || row >= args.rows)
        return;
    T *there = (T *)locate_window(args.peers, expert / own, args.at) + row * pieces;
    T *here = (T *)args.mine + slot * pieces;
    if (args.back)
        copy_row(here, there, pieces);
    else
        copy_row(there, here, pieces);
}

extern "C" status cuda_exchange_rows(stream *queue, const exchange_rows_args *args)
{
    const dim3 grid = grid_of(args->slots > ROW_WARPS ? ceil_div(args->slots, ROW_WARPS) : 1);
    if (args->width % VECTOR == 0 && aligned16(args->mine) && args->at % sizeof(uint4) == 0)
        return LAUNCH(queue, rows_kernel<uint4>, grid, ROW_WARPS * LANES, 0, *args,
                      args->width / VECTOR);
    return LAUNCH(queue, rows_kernel<unsigned short>, grid, ROW_WARPS * LANES, 0, *args,
                  args->width);
}
