/* SPDX-License-Identifier: Apache-2.0 */
/* trial.c: the trial before step 1 (session_parts.h). In a round each rank moves its choices on
 * until everything works; then all ranks take the last way that any of them took, and if that is
 * news to one of them, there is another round. Ways only move on, so the rounds end. Last comes
 * what only all ranks together can try: a captured collective. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "trainer/device/graph_replay.h"
#include "trainer/ops/table.h"
#include "trainer/parallel/comm/comm.h"
#include "trainer/plan/row_work.h"
#include "trainer/run/session.h"
#include "trainer/run/session_parts.h"

/* ---- the work that a device may do in several ways (device/choices.h), in the shapes that a run
 * will give it: attention of a batch that fills a shape bucket, with its longest document, a
 * document of one token and empty ones after it; the experts' products; and both as a captured
 * graph. All values are 0, and no result is looked at ---- */

enum { TRIAL_ARRAYS = 40 };

typedef struct trial_work {
    device *dev;
    stream *queue; /* its own, so that scratch goes with it */
    void *array[TRIAL_ARRAYS];
    int arrays;
    attention_fwd_args fwd[2]; /* of text and of vision; without segments: there is no such work */
    attention_bwd_args bwd[2]; /* the same */
    grouped_gemm_args product[3]; /* by mode; without experts: none */
    double *sum;                  /* of trial_work_sum, device memory */
} trial_work;

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

/* Makes one with nothing but its stream. */
static status trial_work_empty(const session *run, trial_work *out)
{
    *out = (trial_work){.dev = run->device};
    return run->device->backend->stream_new(run->device, &out->queue);
}

/* Takes device memory for the work of this rank in a micro-batch of these capacities; in an
 * evaluation that is the forward passes. *out is to be freed also after a failure. */
static status trial_work_new(const session *run, const batch_caps *bucket, trial_work *out)
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

static void trial_work_free(trial_work *work)
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

/* Does the work of a choice and waits for it. Returns what the device answers. */
static status trial_work_run(trial_work *work, int choice)
{
    if (choice == CHOICE_GRAPHS)
        return work->dev->choices.way[CHOICE_GRAPHS] == GRAPHS_NONE ? ST_OK : run_as_graph(work);
    TRY(queue_choice(work, choice));
    return work->dev->backend->wait(work->queue);
}

/* Makes a sum over the ranks of the group, whose ranks all call this, and waits for it. */
static status trial_work_sum(trial_work *work, const comm *group, comm_at at)
{
    TRY(take_array(work, 1, sizeof *work->sum, &work->sum));
    TRY(comm_all_reduce(group, work->queue, at, work->sum, 1, DT_F64, COMM_SUM));
    return work->dev->backend->wait(work->queue);
}

/* Captures such a sum, after one that was not captured. *out is to be launched on work->queue by
 * all ranks or by none, and is the caller's. */
static status trial_work_capture_sum(trial_work *work, const comm *group, comm_at at, graph **out)
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

/* ---- rounds ---- */

enum { CAUSE_MAX = 800 };

/* What a rank sends the others: its ways, and those that it began with. */
typedef struct vote {
    uint8_t way[CHOICES], first[CHOICES];
} vote;

typedef struct trial {
    session *run;
    device_choices *made; /* the device's */
    const comm *group;
    vote own;
    uint8_t agreed[CHOICES]; /* after the last round */
    bool begun;              /* there was a round */
    char cause[CHOICES][CAUSE_MAX];
} trial;

static const comm_at AT = {"try kernels", -1};

/* Takes the next way after a failure, and keeps the cause. Returns the failure if there is no other
 * way, or if it is none of the device's or the library's: a lack of memory is no fault of a way,
 * and would make all ranks slower where the remedy is a smaller micro-batch. */
static status move_on(trial *state, int choice, status st)
{
    uint8_t *way = &state->made->way[choice];
    if (st == ST_NO_MEMORY)
        return status_context(st, "trying %s by %s", choice_name(choice), choice_way(choice, *way));
    if (st != ST_BAD_DEVICE && st != ST_UNAVAILABLE)
        return st;
    if (*way == state->made->last[choice]) {
        const bool moved = *way > state->own.first[choice];
        return status_context(st, "%s by %s, after which there is nothing else to try%s%s",
                              choice_name(choice), choice_way(choice, *way),
                              moved ? "; before that: " : "", moved ? state->cause[choice] : "");
    }
    snprintf(state->cause[choice], CAUSE_MAX, "%s", status_text());
    status_clear();
    ++*way;
    return ST_OK;
}

static status try_choice(trial *state, trial_work *work, int choice)
{
    const world *job = state->run->world;
    for (status st; (st = trial_work_run(work, choice)) != ST_OK;) {
        if (job && job->rank_link) /* the job has ended, and the device was given up for it */
            TRY(rank_link_check(job->rank_link));
        TRY(move_on(state, choice, st));
    }
    return ST_OK;
}

static status try_bucket(trial *state, const batch_caps *bucket)
{
    trial_work work;
    status st = trial_work_new(state->run, bucket, &work);
    for (int choice = 0; choice < CHOICES && st == ST_OK; choice++)
        st = try_choice(state, &work, choice);
    trial_work_free(&work);
    return st;
}

/* Tries all shape buckets in the ways that are left in the end: where a bucket moves a way on,
 * those before it have not tried the next one. */
static status try_all(trial *state)
{
    const bucket_list *list = &state->run->buckets;
    const uint8_t *now = state->made->way;
    uint8_t tried[CHOICES];
    int same = 0; /* buckets that were tried in `tried`, one after the other */
    memcpy(tried, now, sizeof tried);
    for (int i = 0; same < list->count; i = (i + 1) % list->count) {
        TRY(try_bucket(state, &list->cap[i]));
        same = memcmp(tried, now, sizeof tried) == 0 ? same + 1 : 1;
        memcpy(tried, now, sizeof tried);
    }
    return ST_OK;
}

/* Corrects the device's description, which bench and the page of a run show. */
static void describe_fallback(device *dev, int choice, const char *now)
{
    const size_t used = strlen(dev->description);
    snprintf(dev->description + used, sizeof dev->description - used, "; %s: %s",
             choice_name(choice), now);
}

/* Says that all ranks take another way, because of rank `who`. */
static status report_fallback(const trial *state, int choice, int who)
{
    char where[48] = "";
    const char *cause = state->cause[choice], *was = choice_way(choice, state->agreed[choice]),
               *now = choice_way(choice, state->made->way[choice]);
    if (state->group->size > 1)
        snprintf(where, sizeof where, " on rank %d", who);
    log_event(state->group->rank == 0 ? LOG_WARN : LOG_INFO,
              "%s: %s instead of %s on all ranks of this run, since %s failed%s: %s (%s asks for "
              "it from the start)",
              choice_name(choice), now, was, was, where, cause, choice_remedy(choice));
    describe_fallback(state->run->device, choice, now);
    return ST_OK;
}

/* Takes the way on which all ranks agree; votes: what each of them has tried. */
static status agree_choice(trial *state, const vote *votes, int choice, bool *inout_again)
{
    int who = 0;
    for (int rank = 0; rank < state->group->size; rank++) {
        if (!state->begun && votes[rank].first[choice] < state->agreed[choice])
            state->agreed[choice] = votes[rank].first[choice];
        if (votes[rank].way[choice] > votes[who].way[choice])
            who = rank;
    }
    const uint8_t way = votes[who].way[choice];
    for (int rank = 0; rank < state->group->size; rank++)
        *inout_again |= votes[rank].way[choice] != way;
    state->made->way[choice] = way;
    if (way == state->agreed[choice])
        return ST_OK;
    TRY(comm_host_broadcast(state->group, AT, state->cause[choice], CAUSE_MAX, who));
    TRY(report_fallback(state, choice, who));
    state->agreed[choice] = way;
    return ST_OK;
}

/* Agrees with all ranks on the ways, after a rank has tried its own; `tried` is how that went.
 * *out_again: a rank is to take a way that it has not tried. */
static status agree_all(trial *state, status tried, bool *out_again)
{
    bool again = false;
    TRY(comm_agree(state->group, AT, tried, 0));
    vote *votes = calloc((size_t)state->group->size, sizeof *votes);
    if (!votes)
        return FAIL(ST_NO_MEMORY, "no memory for the answers of %d ranks", state->group->size);
    memcpy(state->own.way, state->made->way, sizeof state->own.way);
    status st = comm_host_all_gather(state->group, AT, &state->own, votes, sizeof *votes);
    for (int choice = 0; choice < CHOICES && st == ST_OK; choice++)
        st = agree_choice(state, votes, choice, &again);
    free(votes);
    state->begun = true;
    *out_again = again;
    return st;
}

/* Captures a sum over the ranks, as the steps of several ranks have it, and runs it only where all
 * have captured it: a rank that runs a graph waits in it for the others. A rank that fails before
 * the capture cannot agree on anything: the others are in the sum. It ends the job, as in a step.
 */
static status try_shared_graph(trial *state)
{
    trial_work work;
    graph *captured = NULL;
    bool again;
    if (state->group->size == 1 || state->made->way[CHOICE_GRAPHS] == GRAPHS_NONE)
        return ST_OK;
    status st = trial_work_empty(state->run, &work);
    if (st == ST_OK)
        st = trial_work_sum(&work, state->group, AT);
    if (st == ST_OK) {
        st = trial_work_capture_sum(&work, state->group, AT, &captured);
        if (st != ST_OK)
            st = move_on(state, CHOICE_GRAPHS, st);
        st = agree_all(state, st, &again);
    }
    if (st == ST_OK && state->made->way[CHOICE_GRAPHS] != GRAPHS_NONE) {
        st = work.dev->backend->graph_launch(work.queue, captured);
        if (st == ST_OK)
            st = work.dev->backend->wait(work.queue);
    }
    if (captured)
        work.dev->backend->graph_free(&captured);
    trial_work_free(&work);
    return st;
}

/* Notes what our own kernels do whatever is chosen: text whose documents go on after prefixes, or
 * whose keys are other ranks' too. */
static void note_ours(const session *run, device_choices *made)
{
    if (run->conf->data_group == GROUP_SHARED_PREFIX || run->mesh.layout.context > 1)
        made->also_ours |= (uint8_t)(1u << CHOICE_TEXT_FORWARD | 1u << CHOICE_TEXT_BACKWARD);
}

status trial_run(session *run)
{
    device *dev = run->device;
    trial state = {.run = run, .made = &dev->choices, .group = mesh_comm(&run->mesh, MESH_WORLD)};
    if (!dev->choices.open)
        return ST_OK;
    bool uncaptured;
    TRY(session_uncaptured(run, &uncaptured));
    if (uncaptured)
        dev->choices.way[CHOICE_GRAPHS] = GRAPHS_NONE;
    memcpy(state.own.first, dev->choices.way, sizeof state.own.first);
    memcpy(state.agreed, dev->choices.way, sizeof state.agreed);
    for (int choice = 0; choice < CHOICES; choice++)
        snprintf(state.cause[choice], CAUSE_MAX, "it is not there");
    note_ours(run, &dev->choices);
    const int64_t captures = dev->counts.captures;
    bool again = true;
    status st = ST_OK;
    dev->choices.strict = true;
    while (again && st == ST_OK)
        st = agree_all(&state, try_all(&state), &again);
    if (st == ST_OK)
        st = try_shared_graph(&state);
    dev->choices.strict = false;
    dev->counts.captures = captures; /* they are no part of a step's */
    comm_ledger_close_step(state.group->ledger);
    return st;
}
