/* attention_cudnn.c: attention by cuDNN 9 on packed segments, forward and backward.
 *
 * A graph (attention_graphs.c) is compiled when a shape is first seen, and its plan is kept for the
 * life of the device. What the graph reads besides q, k and v (the lengths and the first elements
 * of segments) is computed on the device from cu before each run. So the host waits for nothing,
 * and a step can be captured.
 *
 * The library's deterministic backward keeps all of dp, segments x heads x longest^2 bf16. It runs
 * over as many groups of heads, one after the other, as keep that small (attention_work.h).
 *
 * A batch padded to capacities has empty segments at its end. NVIDIA documents segments without
 * tokens as supported since 9.25. Before that, rows of queries without a key come out as NaN
 * (cudnn-frontend, issue 943); there are none here, since queries and keys have the same length.
 * The parity cases have empty segments at every fifth place.
 *
 * Where the library is not asked, or has no engine for a shape, the log says so once with the
 * reason. */
#include "trainer/ops/cuda/attention_cudnn.h"

#ifdef TESSERA_CUDNN

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "trainer/device/cuda_device.h"
#include "trainer/ops/attention_work.h"
#include "trainer/ops/cuda/attention_graphs.h"
#include "trainer/ops/cuda/attention_pack.h"

enum {
    LEAST_SM = 90,
    WIDTH_MAX = 128, /* the widest head that forward and backward take on every GPU from sm_90 on */
    WIDTH_STEP = 8,  /* elements in 16 bytes */
    PLANS_FIRST = 16,
    SPACE_ALIGN = 256
};

typedef struct made_plan {
    attention_shape shape;
    bool backward, refused; /* refused: the library has no engine for this shape */
    cudnn_plan plan;
} made_plan;

/* Why the library is not asked. TAKEN: it is. */
enum refusal { TAKEN, OLD_GPU, WIDTH, ALIGNMENT, SPARSE, MEMORY, GROUPED, REFUSALS };

typedef struct plans {
    cudnnHandle_t handle;
    made_plan *list;
    int64_t n, capacity;
} plans;

static void plans_done(void *data)
{
    plans *all = data;
    for (int64_t i = 0; i < all->n; i++)
        cudnn_plan_done(&all->list[i].plan);
    cudnn_api()->Destroy(all->handle);
    free(all->list);
    free(all);
}

static status plans_of(stream *s, plans **out)
{
    cuda_device *d = (cuda_device *)s->dev;
    if (!d->kept[KEPT_ATTENTION].data) {
        cudnnHandle_t handle = NULL;
        CUDNN_TRY(Create, &handle);
        plans *all = calloc(1, sizeof *all);
        if (!all) {
            cudnn_api()->Destroy(handle);
            return FAIL(ST_NO_MEMORY, "attention: no memory for plans");
        }
        all->handle = handle;
        d->kept[KEPT_ATTENTION] = (cuda_kept){all, plans_done};
    }
    *out = d->kept[KEPT_ATTENTION].data;
    CUDNN_TRY(SetStream, (*out)->handle, cuda_handle(s));
    return ST_OK;
}

static status plan_new(stream *s, plans *all, const attention_shape *shape, bool backward,
                       made_plan *out)
{
    if (((const cuda_stream *)s)->capturing)
        return FAIL(
            ST_INTERNAL,
            "attention: a step is captured with a shape that did not run before the capture");
    s->dev->counts.allocations++;
    *out = (made_plan){.shape = *shape, .backward = backward};
    cudnn_target t = {.handle = all->handle, .deterministic = shape->deterministic};
    status st = backward ? attention_graph_backward(shape, &t, &out->plan)
                         : attention_graph_forward(shape, &t, &out->plan);
    if (st == ST_OK)
        return ST_OK;
    return status_context(st,
                          "attention of %lld segments of %lld tokens, %lld heads over %lld of "
                          "width %lld",
                          (long long)shape->segments, (long long)shape->longest,
                          (long long)shape->heads, (long long)shape->kv_heads,
                          (long long)shape->head_dim);
}

/* Finds or makes the plan of a shape. *out is NULL if the library has no engine for it; that is
 * remembered too. */
static status plan_for(stream *s, plans *all, const attention_shape *shape, bool backward,
                       const cudnn_plan **out)
{
    for (int64_t i = 0; i < all->n; i++) {
        const made_plan *p = &all->list[i];
        if (p->backward == backward && memcmp(&p->shape, shape, sizeof *shape) == 0) {
            *out = p->refused ? NULL : &p->plan;
            return ST_OK;
        }
    }
    if (all->n == all->capacity) {
        int64_t capacity = all->capacity ? 2 * all->capacity : PLANS_FIRST;
        made_plan *list = realloc(all->list, (size_t)capacity * sizeof *list);
        if (!list)
            return FAIL(ST_NO_MEMORY, "attention: no memory for plans");
        all->list = list;
        all->capacity = capacity;
    }
    made_plan *made = &all->list[all->n];
    status st = plan_new(s, all, shape, backward, made);
    if (st == ST_UNAVAILABLE) {
        log_warn("attention uses our own kernels direction=%s reason=\"cuDNN: %s\"",
                 backward ? "backward" : "forward", status_text());
        status_clear();
        made->refused = true;
    } else if (st != ST_OK) {
        return st;
    }
    all->n++;
    *out = made->refused ? NULL : &made->plan;
    return ST_OK;
}

/* The parts of scratch, in this order. */
typedef struct workspace {
    char *base;
    int64_t bytes;
} workspace;

static void *take_space(workspace *w, int64_t bytes)
{
    void *p = w->base ? w->base + w->bytes : NULL;
    w->bytes += (bytes + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN;
    return p;
}

typedef struct batch {
    int32_t *length;
    /* First elements of q, k, v, o and lse. */
    int64_t *first[PACK_FIRSTS];
    /* lse: the copy of a group's log-sums, or NULL. */
    void *lse, *sum, *dq_sum, *dk_full, *dv_full, *library;
    int64_t dq_sum_bytes;
} batch;

/* Lays out the workspace of a call, or only measures it. `copies`: a group's log-sums are copied
 * into rows with a stride of their own. */
static void lay_out(batch *b, workspace *w, const attention_shape *a, int64_t tokens, bool backward,
                    bool copies, int64_t library)
{
    int64_t rows = a->segments * a->heads * a->longest, ratio = a->heads / a->kv_heads;
    bool packs = attention_packs_sums(a);
    b->length = take_space(w, a->segments * (int64_t)sizeof(int32_t));
    for (int i = 0; i < PACK_FIRSTS; i++)
        b->first[i] = take_space(w, (a->segments + 1) * (int64_t)sizeof(int64_t));
    if (backward) {
        int64_t f32 = sizeof(float), bf16 = sizeof(uint16_t);
        int64_t row_sums = tokens * a->lse_stride * f32;
        b->lse = copies ? take_space(w, row_sums) : NULL;
        b->sum = !packs ? take_space(w, rows * f32) : copies ? take_space(w, row_sums) : NULL;
        b->dq_sum = NULL;
        b->dq_sum_bytes =
            a->deterministic ? 0 : (packs ? tokens * a->o_stride : rows * a->head_dim) * f32;
        if (b->dq_sum_bytes)
            b->dq_sum = take_space(w, b->dq_sum_bytes);
        b->dk_full = ratio > 1 ? take_space(w, tokens * a->k_stride * ratio * bf16) : NULL;
        b->dv_full = ratio > 1 ? take_space(w, tokens * a->v_stride * ratio * bf16) : NULL;
    }
    b->library = take_space(w, library);
}

static status find_room(stream *s, batch *b, const attention_shape *a, int64_t tokens,
                        bool backward, bool copies, const cudnn_plan *p)
{
    workspace w = {0};
    void *base;
    lay_out(b, &w, a, tokens, backward, copies, p->workspace_bytes);
    TRY(cuda_scratch(s, (size_t)w.bytes, &base));
    w = (workspace){.base = base};
    lay_out(b, &w, a, tokens, backward, copies, p->workspace_bytes);
    return ST_OK;
}

static attention_pack_args packing(const batch *b, const attention_shape *a, int64_t tokens,
                                   const int32_t *cu)
{
    attention_pack_args p = {
        .segments = a->segments,
        .tokens = tokens,
        .cu = cu,
        .length = b->length,
        .stride = {a->q_stride, a->k_stride, a->v_stride, a->o_stride, a->lse_stride}};
    memcpy(p.first, b->first, sizeof p.first);
    return p;
}

static void put_tail(attention_pack_args *p, int i, void *array, int64_t stride, int64_t width)
{
    p->tail[i] = array;
    p->tail_stride[i] = stride;
    p->tail_width[i] = width;
}

/* The pointers of an execution, by the uid of their tensor. The first n are handed over. */
typedef struct hand {
    int64_t n, uid[ATTENTION_COUNT];
    void *pointer[ATTENTION_COUNT];
} hand;

static void give_pointer(hand *h, int64_t uid, const void *p)
{
    if (!p)
        return;
    h->uid[h->n] = uid;
    h->pointer[h->n++] = (void *)p;
}

static void give_batch(hand *h, const batch *b)
{
    give_pointer(h, ATTENTION_LENGTH, b->length);
    give_pointer(h, ATTENTION_LENGTH_KV, b->length);
    for (int i = 0; i < PACK_FIRSTS; i++)
        give_pointer(h, ATTENTION_FIRST_Q + i, b->first[i]);
}

/* The address of head `head` in an array of bf16. */
static const void *head_of(const void *array, int64_t head, int64_t width)
{
    return (const uint16_t *)array + head * width;
}

static const float *row_of(const void *array, int64_t head)
{
    return (const float *)array + head;
}

static attention_shape shape_fwd(const attention_fwd_args *a)
{
    return (attention_shape){.segments = a->segments,
                             .longest = a->longest ? a->longest : a->tokens,
                             .heads = a->heads,
                             .kv_heads = a->kv_heads,
                             .head_dim = a->head_dim,
                             .q_stride = a->q_stride,
                             .k_stride = a->k_stride,
                             .v_stride = a->v_stride,
                             .o_stride = a->o_stride,
                             .lse_stride = a->heads,
                             .causal = a->causal};
}

static attention_fwd_args as_fwd(const attention_bwd_args *a)
{
    return (attention_fwd_args){.tokens = a->tokens,
                                .heads = a->heads,
                                .kv_heads = a->kv_heads,
                                .head_dim = a->head_dim,
                                .segments = a->segments,
                                .longest = a->longest,
                                .causal = a->causal,
                                .scale = a->scale,
                                .cu = a->cu,
                                .q = a->q,
                                .k = a->k,
                                .v = a->v,
                                .q_stride = a->q_stride,
                                .k_stride = a->k_stride,
                                .v_stride = a->v_stride,
                                .o_stride = a->o_stride,
                                .o = (void *)a->o,
                                .lse = (void *)a->lse};
}

/* How many groups of key-value heads run, one after the other. 0: even one key-value head takes too
 * much memory. */
static int64_t groups_of(const attention_shape *a)
{
    if (!a->deterministic)
        return 1;
    return attention_groups(a->segments, a->longest, a->heads, a->kv_heads);
}

static attention_shape shape_bwd(const stream *s, const attention_bwd_args *a, int64_t *out_groups)
{
    attention_fwd_args f = as_fwd(a);
    attention_shape shape = shape_fwd(&f);
    shape.deterministic = ((const cuda_device *)s->dev)->options.deterministic;
    *out_groups = groups_of(&shape);
    if (*out_groups > 1) {
        int64_t copied = attention_copied_row(shape.heads, *out_groups);
        if (copied)
            shape.lse_stride = copied;
        shape.heads /= *out_groups;
        shape.kv_heads /= *out_groups;
    }
    return shape;
}

static bool is_aligned(const void *p)
{
    return (uintptr_t)p % CUDNN_ALIGNMENT == 0;
}

static bool is_dense(const attention_fwd_args *a)
{
    return attention_is_dense(a->tokens, a->segments, a->longest ? a->longest : a->tokens);
}

static enum refusal refusal_of(const stream *s, const attention_fwd_args *a)
{
    if (cuda_facts_of(s)->sm < LEAST_SM)
        return OLD_GPU;
    if (a->head_dim % WIDTH_STEP != 0 || a->head_dim > WIDTH_MAX)
        return WIDTH;
    if (a->q_stride % WIDTH_STEP != 0 || a->k_stride % WIDTH_STEP != 0 ||
        a->v_stride % WIDTH_STEP != 0 || a->o_stride % WIDTH_STEP != 0 || !is_aligned(a->q) ||
        !is_aligned(a->k) || !is_aligned(a->v) || !is_aligned(a->o) || !is_aligned(a->lse))
        return ALIGNMENT;
    return is_dense(a) ? TAKEN : SPARSE;
}

static enum refusal refusal_of_bwd(const stream *s, const attention_bwd_args *a,
                                   const attention_shape *shape, int64_t groups)
{
    attention_fwd_args f = as_fwd(a);
    enum refusal why = refusal_of(s, &f);
    if (why != TAKEN)
        return why;
    if (!is_aligned(a->do_) || !is_aligned(a->dq) || !is_aligned(a->dk) || !is_aligned(a->dv) ||
        !is_aligned(a->work))
        return ALIGNMENT;
    if (groups == 0)
        return MEMORY;
    return a->heads == a->kv_heads || attention_packs_sums(shape) ? TAKEN : GROUPED;
}

/* Logs each reason once per direction, with the first shape that met it. */
static void tell_refusal(const stream *s, const attention_fwd_args *a, bool backward,
                         enum refusal why)
{
    static const char *const text[REFUSALS] = {
        [OLD_GPU] = "cuDNN is used on sm_90 and later",
        [WIDTH] = "cuDNN needs a head width that is a multiple of 8 and at most 128",
        [ALIGNMENT] = "cuDNN needs rows that are aligned to 16 bytes",
        [SPARSE] = "cuDNN would launch too many empty blocks",
        [MEMORY] = "cuDNN's deterministic backward needs too much memory",
        [GROUPED] = "cuDNN packs the sums of grouped queries only for head widths that are a "
                    "multiple of 16"};
    cuda_device *d = (cuda_device *)s->dev;
    unsigned bit = 1u << (2 * why + backward);
    if (d->attention_told & bit)
        return;
    d->attention_told |= bit;
    log_info("attention uses our own kernels direction=%s reason=\"%s\" segments=%lld tokens=%lld "
             "heads=%lld width=%lld",
             backward ? "backward" : "forward", text[why], (long long)a->segments,
             (long long)a->tokens, (long long)a->heads, (long long)a->head_dim);
}

/* Whether this call may go to cuDNN at all: not if the device was opened without it (its
 * description says why), and not if there is nothing to compute. */
static bool is_asked(const stream *s, const attention_fwd_args *a)
{
    return ((const cuda_device *)s->dev)->cudnn && a->segments > 0 && a->tokens > 1;
}

status attention_cudnn_fwd(stream *s, const attention_fwd_args *a, bool *out_done)
{
    attention_shape shape = shape_fwd(a);
    plans *all;
    const cudnn_plan *plan;
    batch b = {0};
    *out_done = false;
    if (!is_asked(s, a))
        return ST_OK;
    enum refusal why = refusal_of(s, a);
    if (why != TAKEN) {
        tell_refusal(s, a, false, why);
        return ST_OK;
    }
    TRY(plans_of(s, &all));
    TRY(plan_for(s, all, &shape, false, &plan));
    *out_done = plan != NULL;
    if (!plan)
        return ST_OK;
    TRY(find_room(s, &b, &shape, a->tokens, false, false, plan));
    attention_pack_args pack = packing(&b, &shape, a->tokens, a->cu);
    put_tail(&pack, 0, a->o, a->o_stride, a->heads * a->head_dim);
    pack.tail_f32 = a->lse;
    pack.f32_width = a->heads;
    TRY(cuda_attention_pack(s, &pack));

    float scale = (float)a->scale, minus = -INFINITY;
    hand h = {0};
    give_batch(&h, &b);
    give_pointer(&h, ATTENTION_Q, a->q);
    give_pointer(&h, ATTENTION_K, a->k);
    give_pointer(&h, ATTENTION_V, a->v);
    give_pointer(&h, ATTENTION_O, a->o);
    give_pointer(&h, ATTENTION_LSE, a->lse);
    give_pointer(&h, ATTENTION_SCALE, &scale);
    give_pointer(&h, ATTENTION_MINUS, &minus);
    return cudnn_plan_run(plan, all->handle, h.n, h.uid, h.pointer, b.library);
}

/* Runs one group: the key-value heads from `kv` on, with their query heads. */
static status run_group(stream *s, const attention_bwd_args *a, const attention_shape *shape,
                        const batch *b, plans *all, const cudnn_plan *plan, int64_t kv)
{
    int64_t d = a->head_dim, q = kv * (a->heads / a->kv_heads);
    const attention_columns_args lse = {.rows = a->tokens,
                                        .width = shape->heads,
                                        .from_stride = a->heads,
                                        .to_stride = shape->lse_stride,
                                        .from = row_of(a->lse, q),
                                        .to = b->lse};
    if (b->lse)
        TRY(cuda_attention_columns(s, &lse));
    float scale = (float)a->scale, minus = -INFINITY, one = 1;
    hand h = {0};
    give_batch(&h, b);
    give_pointer(&h, ATTENTION_Q, head_of(a->q, q, d));
    give_pointer(&h, ATTENTION_K, head_of(a->k, kv, d));
    give_pointer(&h, ATTENTION_V, head_of(a->v, kv, d));
    give_pointer(&h, ATTENTION_O, head_of(a->o, q, d));
    give_pointer(&h, ATTENTION_LSE, b->lse ? b->lse : lse.from);
    give_pointer(&h, ATTENTION_SCALE, &scale);
    give_pointer(&h, ATTENTION_MINUS, &minus);
    give_pointer(&h, ATTENTION_ONE, &one);
    give_pointer(&h, ATTENTION_DO, head_of(a->do_, q, d));
    give_pointer(&h, ATTENTION_DQ, head_of(a->dq, q, d));
    give_pointer(&h, ATTENTION_DK, head_of(a->dk, kv, d));
    give_pointer(&h, ATTENTION_DV, head_of(a->dv, kv, d));
    give_pointer(&h, ATTENTION_SUM, b->sum ? b->sum : row_of(a->work, q));
    give_pointer(&h, ATTENTION_DQ_SUM, b->dq_sum);
    give_pointer(&h, ATTENTION_DK_FULL, b->dk_full);
    give_pointer(&h, ATTENTION_DV_FULL, b->dv_full);
    return cudnn_plan_run(plan, all->handle, h.n, h.uid, h.pointer, b->library);
}

status attention_cudnn_bwd(stream *s, const attention_bwd_args *a, bool *out_done)
{
    int64_t groups;
    attention_fwd_args f = as_fwd(a);
    attention_shape shape = shape_bwd(s, a, &groups);
    plans *all;
    const cudnn_plan *plan;
    batch b = {0};
    *out_done = false;
    if (!is_asked(s, &f))
        return ST_OK;
    enum refusal why = refusal_of_bwd(s, a, &shape, groups);
    if (why != TAKEN) {
        tell_refusal(s, &f, true, why);
        return ST_OK;
    }
    TRY(plans_of(s, &all));
    TRY(plan_for(s, all, &shape, true, &plan));
    const bool copies = attention_copied_row(a->heads, groups) != 0;
    *out_done = plan != NULL;
    if (!plan)
        return ST_OK;
    TRY(find_room(s, &b, &shape, a->tokens, true, copies, plan));
    if (b.dq_sum) /* cuDNN's blocks add to it, so it starts at 0 */
        TRY(s->dev->backend->zero(s, b.dq_sum, (size_t)b.dq_sum_bytes));
    attention_pack_args pack = packing(&b, &shape, a->tokens, a->cu);
    put_tail(&pack, 0, a->dq, a->q_stride, a->heads * a->head_dim);
    put_tail(&pack, 1, a->dk, a->k_stride, a->kv_heads * a->head_dim);
    put_tail(&pack, 2, a->dv, a->v_stride, a->kv_heads * a->head_dim);
    TRY(cuda_attention_pack(s, &pack));
    for (int64_t i = 0; i < groups; i++)
        TRY(run_group(s, a, &shape, &b, all, plan, i * shape.kv_heads));
    return ST_OK;
}

#else

status attention_cudnn_fwd(stream *s, const attention_fwd_args *a, bool *out_done)
{
    (void)s;
    (void)a;
    *out_done = false;
    return ST_OK;
}

status attention_cudnn_bwd(stream *s, const attention_bwd_args *a, bool *out_done)
{
    (void)s;
    (void)a;
    *out_done = false;
    return ST_OK;
}

#endif
