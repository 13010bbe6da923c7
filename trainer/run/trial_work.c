/* trial_work.c: see trial_work.h. */
#include "trainer/run/trial_work.h"

#include <math.h>

#include "trainer/device/graph_replay.h"
#include "trainer/plan/attention_kernels.h"

enum { TEXT, VISION, EXPERTS = 2, EXPERT_ROWS = 192, GRAPH_RUNS = 3 };

static status take_array(trial_work *work, int64_t elements, size_t size, void *out_array)
{
    void **out = out_array, **kept = &work->array[work->arrays];
    TRY(work->dev->backend->alloc(work->dev, (size_t)elements * size, kept));
    work->arrays++;
    *out = *kept;
    return ST_OK;
}

/* The borders of the longest segment, of one with a single token, and of empty ones after them. */
static status take_borders(trial_work *work, const int64_t *border, int64_t segments,
                           const int32_t **out)
{
    int32_t *on_device, *host;
    TRY(take_array(work, segments + 1, sizeof *on_device, &on_device));
    TRY(work->dev->backend->alloc_host(work->dev, (size_t)(segments + 1) * sizeof *host,
                                       (void **)&host));
    for (int64_t i = 0; i <= segments; i++)
        host[i] = (int32_t)border[i < 2 ? i : 2];
    status st = work->dev->backend->to_device(work->queue, on_device, host,
                                              (size_t)(segments + 1) * sizeof *host);
    if (st == ST_OK)
        st = work->dev->backend->wait(work->queue);
    work->dev->backend->release_host(work->dev, host);
    *out = on_device;
    return st;
}

/* stride: elements from a token to the next in q, k and v. backward: that pass too. */
static status attention_new(trial_work *work, int kind, const attention_call *is, int64_t q_stride,
                            int64_t kv_stride, bool backward)
{
    const size_t act = st_dtype_size(work->dev->backend->act),
                 acc = st_dtype_size(work->dev->backend->acc);
    const int64_t wide = is->heads * is->head_dim, longest = attention_longest(is);
    attention_fwd_args *fwd = &work->fwd[kind];
    attention_bwd_args *bwd = &work->bwd[kind];
    const int64_t first = longest < is->tokens ? longest : is->tokens;
    const int64_t border[] = {0, first, first < is->tokens ? first + 1 : first};
    if (is->segments < 1 || is->tokens < 1)
        return ST_OK;
    *fwd = (attention_fwd_args){.tokens = is->tokens,
                                .heads = is->heads,
                                .kv_heads = is->kv_heads,
                                .head_dim = is->head_dim,
                                .longest = is->longest,
                                .causal = is->causal,
                                .scale = 1 / sqrt((double)is->head_dim),
                                .q_stride = q_stride,
                                .k_stride = kv_stride,
                                .v_stride = kv_stride,
                                .o_stride = wide};
    TRY(take_borders(work, border, is->segments, &fwd->cu));
    TRY(take_array(work, is->tokens * q_stride, act, &fwd->q));
    TRY(take_array(work, is->tokens * kv_stride, act, &fwd->k));
    TRY(take_array(work, is->tokens * kv_stride, act, &fwd->v));
    TRY(take_array(work, is->tokens * wide, act, &fwd->o));
    TRY(take_array(work, is->tokens * is->heads, acc, &fwd->lse));
    fwd->segments = is->segments;
    if (!backward)
        return ST_OK;
    *bwd = attention_bwd_of(fwd);
    TRY(take_array(work, is->tokens * wide, act, &bwd->do_));
    TRY(take_array(work, is->tokens * q_stride, act, &bwd->dq));
    TRY(take_array(work, is->tokens * kv_stride, act, &bwd->dk));
    TRY(take_array(work, is->tokens * kv_stride, act, &bwd->dv));
    return take_array(work, is->tokens * is->heads, acc, &bwd->work);
}

/* Two experts, the first with all rows. last: the last GROUPED_* that is tried. */
static status experts_new(trial_work *work, const text_dims *dims, int last)
{
    const size_t act = st_dtype_size(work->dev->backend->act),
                 acc = st_dtype_size(work->dev->backend->acc);
    const int64_t border[] = {0, EXPERT_ROWS, EXPERT_ROWS}, wide = 2 * dims->expert_width;
    grouped_gemm_args args = {.k = dims->hidden, .n = wide, .rows_cap = EXPERT_ROWS};
    TRY(take_borders(work, border, EXPERTS, &args.offset));
    TRY(take_array(work, EXPERT_ROWS * args.k, act, &args.x));
    TRY(take_array(work, EXPERT_ROWS * args.n, act, &args.y));
    TRY(take_array(work, EXPERTS * args.k * args.n, act, &args.w));
    TRY(take_array(work, EXPERTS * args.k * args.n, acc, &args.dw));
    args.experts = EXPERTS;
    for (int mode = GROUPED_FWD; mode <= last; mode++) {
        work->product[mode] = args;
        work->product[mode].mode = mode;
    }
    return ST_OK;
}

status trial_work_empty(const session *run, trial_work *out)
{
    *out = (trial_work){.dev = run->device};
    return run->device->backend->stream_new(run->device, &out->queue);
}

status trial_work_new(const session *run, const batch_caps *bucket, trial_work *out)
{
    const text_dims *text = &run->dims.text;
    const vision_dims *vision = &run->dims.vision;
    const bool trains = run->use == SESSION_TRAIN;
    const attention_call of_text = attention_call_text(&run->dims, &run->mesh, bucket),
                         of_vision = attention_call_vision(&run->dims, &run->mesh, bucket);
    TRY(trial_work_empty(run, out));
    if (run->mesh.layout.context == 1) /* else keys are others' too: our own kernels do it */
        TRY(attention_new(out, TEXT, &of_text, of_text.heads * of_text.head_dim,
                          of_text.kv_heads * of_text.head_dim, trains));
    TRY(attention_new(out, VISION, &of_vision, 3 * vision->hidden, 3 * vision->hidden, trains));
    return text->experts > 0 ? experts_new(out, text, trains ? GROUPED_WGRAD : GROUPED_FWD) : ST_OK;
}

void trial_work_free(trial_work *work)
{
    if (!work->queue)
        return;
    graph_replay_free(work->queue);
    work->dev->backend->stream_free(&work->queue);
    while (work->arrays > 0)
        work->dev->backend->release(work->dev, work->array[--work->arrays]);
}

static status queue_choice(trial_work *work, int choice)
{
    const int kind = choice <= CHOICE_TEXT_BACKWARD ? TEXT : VISION;
    if (choice == CHOICE_EXPERTS) {
        for (int mode = GROUPED_FWD; mode <= GROUPED_WGRAD && work->product[mode].experts; mode++)
            TRY(op_grouped_gemm(work->queue, &work->product[mode]));
        return ST_OK;
    }
    if (choice == choice_attention(kind == TEXT, false))
        return work->fwd[kind].segments == 0 ? ST_OK
                                             : op_attention_fwd(work->queue, &work->fwd[kind]);
    return work->bwd[kind].segments == 0 ? ST_OK : op_attention_bwd(work->queue, &work->bwd[kind]);
}

static status queue_all(trial_work *work)
{
    for (int choice = 0; choice < CHOICE_GRAPHS; choice++)
        TRY(queue_choice(work, choice));
    return ST_OK;
}

/* Runs all of it as a step does: once as it is, then captured, then as a graph. */
static status run_as_graph(trial_work *work)
{
    const graph_replay_key key = {.piece = REPLAY_STEP};
    status st = graph_replay_new(work->queue, "step");
    for (int i = 0; i < GRAPH_RUNS && st == ST_OK; i++) {
        bool done = false;
        st = graph_replay_begin(work->queue, &key, &done);
        if (st == ST_OK && !done)
            st = graph_replay_end(work->queue, queue_all(work));
        if (st == ST_OK)
            st = work->dev->backend->wait(work->queue);
    }
    graph_replay_free(work->queue);
    return st;
}

status trial_work_run(trial_work *work, int choice)
{
    if (choice == CHOICE_GRAPHS)
        return work->dev->choices.way[CHOICE_GRAPHS] == GRAPHS_NONE ? ST_OK : run_as_graph(work);
    TRY(queue_choice(work, choice));
    return work->dev->backend->wait(work->queue);
}

status trial_work_sum(trial_work *work, const comm *group, comm_at at)
{
    TRY(take_array(work, 1, sizeof *work->sum, &work->sum));
    TRY(comm_all_reduce(group, work->queue, at, work->sum, 1, DT_F64, COMM_SUM));
    return work->dev->backend->wait(work->queue);
}

status trial_work_capture_sum(trial_work *work, const comm *group, comm_at at, graph **out)
{
    const backend_vtable *backend = work->dev->backend;
    TRY(backend->capture_begin(work->queue));
    status st = comm_all_reduce(group, work->queue, at, work->sum, 1, DT_F64, COMM_SUM);
    const status_note why = *status_last();
    const status ended = backend->capture_end(work->queue, out);
    if (st == ST_OK)
        return ended;
    if (ended == ST_OK && *out)
        backend->graph_free(out);
    *out = NULL;
    status_set(&why);
    return st;
}
