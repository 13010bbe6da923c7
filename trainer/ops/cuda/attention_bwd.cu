/* attention_bwd.cu: the portable backward of attention.h.
 *
 * There are three kernels. Each result is written by one block, so no two blocks add to the same
 * place:
 *   dot     row sums of do * o
 *   dk, dv  a block owns 64 keys of a key-value head. It walks over that head's query heads in
 * order, and for each over the queries that see one of its keys. dq      a block owns 64 queries of
 * a head and walks over the keys they see.
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
static __global__ void __launch_bounds__(DOT_THREADS) dot_kernel(attention_bwd_args a)
{
    const int64_t row = (int64_t)blockIdx.x * DOT_WARPS + threadIdx.x / LANES;
    if (row >= a.tokens * a.heads)
        return;
    const int64_t at = row / a.heads * a.o_stride + row % a.heads * a.head_dim;
    float sum = 0;
    for (int64_t j = threadIdx.x % LANES; j < a.head_dim; j += LANES)
        sum += to_float(((const bf16 *)a.o)[at + j]) * to_float(((const bf16 *)a.do_)[at + j]);
    sum = warp_sum(sum);
    if (threadIdx.x % LANES == 0)
        ((float *)a.work)[row] = sum;
}

/* What the backward needs of a query besides its vectors. */
typedef struct query_facts {
    float lse2[TILE]; /* log2 of the sum of its exponentials */
    float dot[TILE];
} query_facts;

static __device__ inline void facts_load(query_facts *f, const attention_bwd_args &a, int64_t h,
                                         int64_t first, int64_t end)
{
    if (threadIdx.x < TILE) {
        const int64_t t = first + threadIdx.x;
        f->lse2[threadIdx.x] = t < end ? ((const float *)a.lse)[t * a.heads + h] * LOG2E : 0;
        f->dot[threadIdx.x] = t < end ? ((const float *)a.work)[t * a.heads + h] : 0;
    }
}

/* With keys as rows: s becomes p, and dp becomes ds = p (dp - dot). With `masked`, only pairs that
 * see each other count. */
static __device__ inline void key_rows_ds(float (&s)[GROUPS][4], float (&dp)[GROUPS][4],
                                          const query_facts &f, float scale2, bool masked,
                                          const visible (&seen)[2], int first)
{
#pragma unroll
    for (int n = 0; n < GROUPS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int column = product_column(n, e);
            const float p = exp2_fast(s[n][e] * scale2 - f.lse2[column]);
            const bool there = !masked || sees(seen[e / 2], first + column);
            s[n][e] = there ? p : 0.0f;
            dp[n][e] = there ? p * (dp[n][e] - f.dot[column]) : 0.0f;
        }
}

template <int D>
static __global__ void __launch_bounds__(OWN_THREADS)
    attention_dkv_kernel(attention_bwd_args a, bool wide)
{
    SHARED_BYTES(shared);
    __shared__ sight sight_of;
    __shared__ query_facts facts;
    bf16 *k_tile = (bf16 *)shared, *v_tile = k_tile + TILE * tile<D>::STRIDE;
    bf16 *q_tile = v_tile + TILE * tile<D>::STRIDE, *do_tile = q_tile + TILE * tile<D>::STRIDE;
    const int64_t kv = blockIdx.x, first = (int64_t)blockIdx.y * TILE;
    const sides x = sides_of(a);
    const int64_t group = a.heads / a.kv_heads;
    const int row0 = (int)threadIdx.x / LANES * 16, g = (int)threadIdx.x % LANES / 4;
    tile_sight(&sight_of, x, first, true);
    const range any = sight_of.any;
    const float scale2 = (float)a.scale * LOG2E;

    float dk[D / 8][4] = {}, dv[D / 8][4] = {};
    tile_load<D>(k_tile, head_of(a.k, a.k_stride, a.head_dim, kv, wide), first, x.keys);
    tile_load<D>(v_tile, head_of(a.v, a.v_stride, a.head_dim, kv, wide), first, x.keys);
    copy_commit();
    for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
        const head q = head_of(a.q, a.q_stride, a.head_dim, h, wide);
        const head up = head_of(a.do_, a.o_stride, a.head_dim, h, wide);
        for (int at = any.begin; at < any.end; at += TILE) {
            __syncthreads(); /* all warps are done with the last queries */
            tile_load<D>(q_tile, q, at, any.end);
            tile_load<D>(do_tile, up, at, any.end);
            copy_commit();
            facts_load(&facts, a, h, at, any.end);
            copy_wait<0>();
            __syncthreads();
            float s[GROUPS][4], dp[GROUPS][4];
            product_nt<D>(s, k_tile, row0, q_tile);
            product_nt<D>(dp, v_tile, row0, do_tile);
            /* Read from shared memory, since registers are scarce here. */
            const visible seen[2] = {sight_of.row[row0 + g], sight_of.row[row0 + g + 8]};
            key_rows_ds(s, dp, facts, scale2, needs_mask(sight_of, at), seen, at);
            product_nn<D>(dv, s, do_tile);
            product_nn<D>(dk, dp, q_tile);
        }
    }
    copy_wait<0>();
    __syncthreads();
    const int64_t used = first + sight_of.used;
    const float one[2] = {1, 1}, scale[2] = {(float)a.scale, (float)a.scale};
    warp_store<D>(head_of(a.dk, a.k_stride, a.head_dim, kv, wide), first, x.keys, used, dk, scale,
                  k_tile);
    warp_store<D>(head_of(a.dv, a.v_stride, a.head_dim, kv, wide), first, x.keys, used, dv, one,
                  v_tile);
}

/* With queries as rows: dp becomes ds. lse2 and dot are those of the thread's two rows. */
static __device__ inline void query_rows_ds(float (&dp)[GROUPS][4], const float (&s)[GROUPS][4],
                                            const float (&lse2)[2], const float (&dot)[2],
                                            float scale2, bool masked, const visible (&seen)[2],
                                            int first)
{
#pragma unroll
    for (int n = 0; n < GROUPS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float p = exp2_fast(s[n][e] * scale2 - lse2[e / 2]);
            const bool there = !masked || sees(seen[e / 2], first + product_column(n, e));
            dp[n][e] = there ? p * (dp[n][e] - dot[e / 2]) : 0.0f;
        }
}

template <int D>
static __global__ void __launch_bounds__(OWN_THREADS)
    attention_dq_kernel(attention_bwd_args a, bool wide)
{
    SHARED_BYTES(shared);
    __shared__ sight sight_of;
    __shared__ query_facts facts;
    bf16 *q_tile = (bf16 *)shared, *do_tile = q_tile + TILE * tile<D>::STRIDE;
    bf16 *k_tile = do_tile + TILE * tile<D>::STRIDE, *v_tile = k_tile + TILE * tile<D>::STRIDE;
    const int64_t h = blockIdx.x, kv = h / (a.heads / a.kv_heads);
    const int64_t first = (int64_t)(gridDim.y - 1 - blockIdx.y) * TILE;
    const int row0 = (int)threadIdx.x / LANES * 16, g = (int)threadIdx.x % LANES / 4;
    const head k = head_of(a.k, a.k_stride, a.head_dim, kv, wide);
    const head v = head_of(a.v, a.v_stride, a.head_dim, kv, wide);
    facts_load(&facts, a, h, first, a.tokens);
    tile_sight(&sight_of, sides_of(a), first, false);
    const range any = sight_of.any;
    const visible seen[2] = {sight_of.row[row0 + g], sight_of.row[row0 + g + 8]};
    const float lse2[2] = {facts.lse2[row0 + g], facts.lse2[row0 + g + 8]};
    const float dot[2] = {facts.dot[row0 + g], facts.dot[row0 + g + 8]};
    const float scale2 = (float)a.scale * LOG2E;

    float dq[D / 8][4] = {};
    tile_load<D>(q_tile, head_of(a.q, a.q_stride, a.head_dim, h, wide), first, a.tokens);
    tile_load<D>(do_tile, head_of(a.do_, a.o_stride, a.head_dim, h, wide), first, a.tokens);
    tile_load<D>(v_tile, v, any.begin, any.end);
    copy_commit();
    for (int at = any.begin, next; at < any.end; at = next) {
        next = next_tile(sight_of, at);
        copy_wait<0>();
        __syncthreads(); /* v has arrived, and all warps are done with the last k */
        tile_load<D>(k_tile, k, at, any.end);
        copy_commit();
        float s[GROUPS][4], dp[GROUPS][4];
        product_nt<D>(dp, do_tile, row0, v_tile);
        copy_wait<0>();
        __syncthreads(); /* k has arrived, and all warps are done with this v */
        if (next < any.end)
            tile_load<D>(v_tile, v, next, any.end);
        copy_commit();
        product_nt<D>(s, q_tile, row0, k_tile);
        query_rows_ds(dp, s, lse2, dot, scale2, needs_mask(sight_of, at), seen, at);
        product_nn<D>(dq, dp, k_tile);
    }
    copy_wait<0>();
    __syncthreads();
    const float scale[2] = {(float)a.scale, (float)a.scale};
    warp_store<D>(head_of(a.dq, a.q_stride, a.head_dim, h, wide), first, a.tokens,
                  first + sight_of.used, dq, scale, q_tile);
}

template <int D> static status launch_bwd(stream *s, const attention_bwd_args *a, bool wide)
{
    const size_t shared = 4 * tile<D>::BYTES;
    const int64_t tiles = ceil_div(a->tokens, TILE), key_tiles = ceil_div(sides_of(*a).keys, TILE);
    TRY(allow_shared(attention_dkv_kernel<D>, shared));
    TRY(allow_shared(attention_dq_kernel<D>, shared));
    TRY(LAUNCH(s, attention_dkv_kernel<D>, grid_of(a->kv_heads, key_tiles), OWN_THREADS, shared, *a,
               wide));
    return LAUNCH(s, attention_dq_kernel<D>, grid_of(a->heads, tiles), OWN_THREADS, shared, *a,
                  wide);
}

status cuda_attention_portable_bwd(stream *s, const attention_bwd_args *a)
{
    TRY(attention_check(sides_of(*a), a->heads, a->kv_heads, a->head_dim));
    const bool wide =
        (a->head_dim | a->q_stride | a->k_stride | a->v_stride | a->o_stride) % VECTOR == 0 &&
        aligned16(a->q) && aligned16(a->k) && aligned16(a->v) && aligned16(a->do_) &&
        aligned16(a->dq) && aligned16(a->dk) && aligned16(a->dv);
    TRY(LAUNCH(s, dot_kernel, grid_of(ceil_div(a->tokens * a->heads, DOT_WARPS)), DOT_THREADS, 0,
               *a));
    return a->head_dim <= DIM_SMALL ? launch_bwd<DIM_SMALL>(s, a, wide)
                                    : launch_bwd<DIM_MAX>(s, a, wide);
}
