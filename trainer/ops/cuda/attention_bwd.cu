/* SPDX-License-Identifier: Apache-2.0 */
/* attention_bwd.cu: the portable backward of attention.h.
 *
 * There are three kernels. Each result is written by one block, so no two blocks add to the same
 * place:
 *   dot     row sums of do * o
 *   dk, dv  a block owns 64 keys of a key-value head; it walks over that head's query heads in
 *           order, and for each over the queries that see one of its keys
 *   dq      a block owns 64 queries of a head and walks over the keys they see
 *
 * The scores are computed in both of the last two, which costs 14 d FLOPs per visible pair instead
 * of 10, but needs no sums across blocks. Ranges and masks are those of attention_fwd.cu. In the
 * kernel of dk and dv, keys take the part of rows, so that its products leave the probabilities as
 * the next products want them.
 *
 * Numerics: p = e^(s - lse) and ds = p (dp - sum(do * o)) in float, rounded to bf16 for the last
 * products; sums in float, scaled and rounded once. */
#include "trainer/ops/cuda/attention_portable.h"
#include "trainer/ops/cuda/attention_tile.cuh"

enum { DOT_THREADS = 256, DOT_WARPS = DOT_THREADS / LANES };

/* work [T, Hq] = row sums of do * o. A warp computes one row. */
static __global__ void __launch_bounds__(DOT_THREADS) dot_kernel(attention_bwd_args args)
{
    const int64_t row = (int64_t)blockIdx.x * DOT_WARPS + threadIdx.x / LANES;
    if (row >= args.tokens * args.heads)
        return;
    const int64_t at = row / args.heads * args.o_stride + row % args.heads * args.head_dim;
    float sum = 0;
    for (int64_t j = threadIdx.x % LANES; j < args.head_dim; j += LANES)
        sum +=
            to_float(((const bf16 *)args.o)[at + j]) * to_float(((const bf16 *)args.do_)[at + j]);
    sum = warp_sum(sum);
    if (threadIdx.x % LANES == 0)
        ((float *)args.work)[row] = sum;
}

/* What the backward needs of a query besides its vectors. */
typedef struct query_facts {
    float lse2[TILE]; /* log2 of the sum of its exponentials */
    float dot[TILE];
} query_facts;

static __device__ inline void facts_load(query_facts *facts, const attention_bwd_args &args,
                                         int64_t at_head, int64_t first, int64_t end)
{
    if (threadIdx.x < TILE) {
        const int64_t token = first + threadIdx.x;
        facts->lse2[threadIdx.x] =
            token < end ? ((const float *)args.lse)[token * args.heads + at_head] * LOG2E : 0;
        facts->dot[threadIdx.x] =
            token < end ? ((const float *)args.work)[token * args.heads + at_head] : 0;
    }
}

/* With keys as rows: s becomes p, and dp becomes ds = p (dp - dot). With `masked`, only pairs that
 * see each other count. */
static __device__ inline void key_rows_ds(float (&s)[GROUPS][4], float (&dp)[GROUPS][4],
                                          const query_facts &facts, float scale2, bool masked,
                                          const visible (&seen)[2], int first)
{
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int column = product_column(i, j);
            const float p = exp2_fast(s[i][j] * scale2 - facts.lse2[column]);
            const bool there = !masked || sees(seen[j / 2], first + column);
            s[i][j] = there ? p : 0.0f;
            dp[i][j] = there ? p * (dp[i][j] - facts.dot[column]) : 0.0f;
        }
}

template <int D>
static __global__ void __launch_bounds__(OWN_THREADS)
    attention_dkv_kernel(attention_bwd_args args, bool wide)
{
    SHARED_BYTES(shared);
    __shared__ sight sight_of;
    __shared__ query_facts facts;
    bf16 *k_tile = (bf16 *)shared, *v_tile = k_tile + TILE * tile<D>::STRIDE;
    bf16 *q_tile = v_tile + TILE * tile<D>::STRIDE, *do_tile = q_tile + TILE * tile<D>::STRIDE;
    const int64_t kv = blockIdx.x, first = (int64_t)blockIdx.y * TILE;
    const sides side = sides_of(args);
    const int64_t group = args.heads / args.kv_heads;
    const int row0 = (int)threadIdx.x / LANES * 16, at_group = (int)threadIdx.x % LANES / 4;
    tile_sight(&sight_of, side, first, true);
    const range any = sight_of.any;
    const float scale2 = (float)args.scale * LOG2E;

    float dk[D / 8][4] = {}, dv[D / 8][4] = {};
    tile_load<D>(k_tile, head_of(args.k, args.k_stride, args.head_dim, kv, wide), first, side.keys);
    tile_load<D>(v_tile, head_of(args.v, args.v_stride, args.head_dim, kv, wide), first, side.keys);
    copy_commit();
    for (int64_t i = kv * group; i < (kv + 1) * group; i++) {
        const head q_head = head_of(args.q, args.q_stride, args.head_dim, i, wide);
        const head up = head_of(args.do_, args.o_stride, args.head_dim, i, wide);
        for (int at = any.begin; at < any.end; at += TILE) {
            __syncthreads(); /* all warps are done with the last queries */
            tile_load<D>(q_tile, q_head, at, any.end);
            tile_load<D>(do_tile, up, at, any.end);
            copy_commit();
            facts_load(&facts, args, i, at, any.end);
            copy_wait<0>();
            __syncthreads();
            float s[GROUPS][4], dp[GROUPS][4];
            product_nt<D>(s, k_tile, row0, q_tile);
            product_nt<D>(dp, v_tile, row0, do_tile);
            /* Read from shared memory, since registers are scarce here. */
            const visible seen[2] = {sight_of.row[row0 + at_group],
                                     sight_of.row[row0 + at_group + 8]};
            key_rows_ds(s, dp, facts, scale2, needs_mask(sight_of, at), seen, at);
            product_nn<D>(dv, s, do_tile);
            product_nn<D>(dk, dp, q_tile);
        }
    }
    copy_wait<0>();
    __syncthreads();
    const int64_t used = first + sight_of.used;
    const float one[2] = {1, 1}, scale[2] = {(float)args.scale, (float)args.scale};
    warp_store<D>(head_of(args.dk, args.k_stride, args.head_dim, kv, wide), first, side.keys, used,
                  dk, scale, k_tile);
    warp_store<D>(head_of(args.dv, args.v_stride, args.head_dim, kv, wide), first, side.keys, used,
                  dv, one, v_tile);
}

/* With queries as rows: dp becomes ds. lse2 and dot are those of the thread's two rows. */
static __device__ inline void query_rows_ds(float (&dp)[GROUPS][4], const float (&s)[GROUPS][4],
                                            const float (&lse2)[2], const float (&dot)[2],
                                            float scale2, bool masked, const visible (&seen)[2],
                                            int first)
{
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float p = exp2_fast(s[i][j] * scale2 - lse2[j / 2]);
            const bool there = !masked || sees(seen[j / 2], first + product_column(i, j));
            dp[i][j] = there ? p * (dp[i][j] - dot[j / 2]) : 0.0f;
        }
}

template <int D>
static __global__ void __launch_bounds__(OWN_THREADS)
    attention_dq_kernel(attention_bwd_args args, bool wide)
{
    SHARED_BYTES(shared);
    __shared__ sight sight_of;
    __shared__ query_facts facts;
    bf16 *q_tile = (bf16 *)shared, *do_tile = q_tile + TILE * tile<D>::STRIDE;
    bf16 *k_tile = do_tile + TILE * tile<D>::STRIDE, *v_tile = k_tile + TILE * tile<D>::STRIDE;
    const int64_t at_head = blockIdx.x, kv = at_head / (args.heads / args.kv_heads);
    const int64_t first = (int64_t)(gridDim.y - 1 - blockIdx.y) * TILE;
    const int row0 = (int)threadIdx.x / LANES * 16, group = (int)threadIdx.x % LANES / 4;
    const head k_head = head_of(args.k, args.k_stride, args.head_dim, kv, wide);
    const head v_head = head_of(args.v, args.v_stride, args.head_dim, kv, wide);
    facts_load(&facts, args, at_head, first, args.tokens);
    tile_sight(&sight_of, sides_of(args), first, false);
    const range any = sight_of.any;
    const visible seen[2] = {sight_of.row[row0 + group], sight_of.row[row0 + group + 8]};
    const float lse2[2] = {facts.lse2[row0 + group], facts.lse2[row0 + group + 8]};
    const float dot[2] = {facts.dot[row0 + group], facts.dot[row0 + group + 8]};
    const float scale2 = (float)args.scale * LOG2E;

    float dq[D / 8][4] = {};
    tile_load<D>(q_tile, head_of(args.q, args.q_stride, args.head_dim, at_head, wide), first,
                 args.tokens);
    tile_load<D>(do_tile, head_of(args.do_, args.o_stride, args.head_dim, at_head, wide), first,
                 args.tokens);
    tile_load<D>(v_tile, v_head, any.begin, any.end);
    copy_commit();
    for (int at = any.begin, next; at < any.end; at = next) {
        next = next_tile(sight_of, at);
        copy_wait<0>();
        __syncthreads(); /* v has arrived, and all warps are done with the last k */
        tile_load<D>(k_tile, k_head, at, any.end);
        copy_commit();
        float s[GROUPS][4], dp[GROUPS][4];
        product_nt<D>(dp, do_tile, row0, v_tile);
        copy_wait<0>();
        __syncthreads(); /* k has arrived, and all warps are done with this v */
        if (next < any.end)
            tile_load<D>(v_tile, v_head, next, any.end);
        copy_commit();
        product_nt<D>(s, q_tile, row0, k_tile);
        query_rows_ds(dp, s, lse2, dot, scale2, needs_mask(sight_of, at), seen, at);
        product_nn<D>(dq, dp, k_tile);
    }
    copy_wait<0>();
    __syncthreads();
    const float scale[2] = {(float)args.scale, (float)args.scale};
    warp_store<D>(head_of(args.dq, args.q_stride, args.head_dim, at_head, wide), first, args.tokens,
                  first + sight_of.used, dq, scale, q_tile);
}

template <int D> static status launch_bwd(stream *queue, const attention_bwd_args *args, bool wide)
{
    const size_t shared = 4 * tile<D>::BYTES;
    const int64_t tiles = ceil_div(args->tokens, TILE),
                  key_tiles = ceil_div(sides_of(*args).keys, TILE);
    TRY(allow_shared(attention_dkv_kernel<D>, shared));
    TRY(allow_shared(attention_dq_kernel<D>, shared));
    TRY(LAUNCH(queue, attention_dkv_kernel<D>, grid_of(args->kv_heads, key_tiles), OWN_THREADS,
               shared, *args, wide));
    return LAUNCH(queue, attention_dq_kernel<D>, grid_of(args->heads, tiles), OWN_THREADS, shared,
                  *args, wide);
}

status cuda_attention_portable_bwd(stream *queue, const attention_bwd_args *args)
{
    TRY(attention_check(sides_of(*args), args->heads, args->kv_heads, args->head_dim));
    const bool wide =
        (args->head_dim | args->q_stride | args->k_stride | args->v_stride | args->o_stride) %
                VECTOR ==
            0 &&
        aligned16(args->q) && aligned16(args->k) && aligned16(args->v) && aligned16(args->do_) &&
        aligned16(args->dq) && aligned16(args->dk) && aligned16(args->dv);
    TRY(LAUNCH(queue, dot_kernel, grid_of(ceil_div(args->tokens * args->heads, DOT_WARPS)),
               DOT_THREADS, 0, *args));
    return args->head_dim <= DIM_SMALL ? launch_bwd<DIM_SMALL>(queue, args, wide)
                                       : launch_bwd<DIM_MAX>(queue, args, wide);
}
