/* evaluate.c: the evaluation of evaluate.h, in rounds. In a round every data-parallel rank takes
 * the next rows, one for each of them, and judges its own: it runs the forward pass and compares
 * the likeliest tokens with the labels. All ranks then answer the questions of all these rows
 * together, and with swapped pictures judge their own row once more. At the end the counts are
 * summed over ranks, and rank 0 writes the page. */
#include "trainer/eval/evaluate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "trainer/eval/rows_agreed.h"
#include "trainer/eval/answers.h"
#include "trainer/eval/chance.h"
#include "trainer/eval/figures.h"
#include "trainer/eval/image_swap.h"
#include "trainer/run/stop.h"

/* Buffers for the verdict on a row's targets. */
typedef struct verdicts {
    int32_t *best;  /* [cap.targets] */
    int32_t *label; /* [cap.targets] */
    void *device_nll;
    int32_t *device_best;
} verdicts;

static void verdicts_done(verdicts *verdict, session *s)
{
    const backend_vtable *v = s->device->backend;
    v->release(s->device, verdict->device_nll);
    v->release(s->device, verdict->device_best);
    free(verdict->best);
    free(verdict->label);
}

static status verdicts_init(verdicts *verdict, session *s)
{
    const backend_vtable *v = s->device->backend;
    memset(verdict, 0, sizeof *verdict);
    size_t n = (size_t)s->cap.targets;
    TRY(v->alloc(s->device, n * st_dtype_size(v->acc), &verdict->device_nll));
    TRY(v->alloc(s->device, n * sizeof(int32_t), (void **)&verdict->device_best));
    verdict->best = calloc(n, sizeof *verdict->best);
    verdict->label = calloc(n, sizeof *verdict->label);
    return verdict->best && verdict->label ? ST_OK : FAIL(ST_NO_MEMORY, "evaluate: out of memory");
}

/* Combines verdicts on a row's n replies. Each rank that shares the row has judged a part of its
 * targets, and only on the last pipeline stage; the other stages hear the result from it. */
static status hear_others(session *s, int64_t n, bool *wrong)
{
    const comm *peers = mesh_comm(&s->mesh, MESH_ROW);
    const comm *stages = mesh_comm(&s->mesh, MESH_PIPELINE);
    if (peers->size * stages->size == 1 || n == 0)
        return ST_OK;
    uint8_t *said = calloc((size_t)(n * (peers->size + 1)), 1), *all = said + n;
    if (!said)
        return FAIL(ST_NO_MEMORY, "evaluate: out of memory");
    for (int64_t i = 0; i < n; i++)
        said[i] = wrong[i];
    const comm_at at = {"judge a row", -1};
    status st = comm_host_all_gather(peers, at, said, all, n);
    if (st == ST_OK)
        st = comm_host_broadcast(stages, at, all, n * peers->size, stages->size - 1);
    if (stages->rank + 1 < stages->size) /* this stage has judged nothing itself */
        memset(wrong, 0, (size_t)n * sizeof *wrong);
    for (int64_t i = 0; i < n * peers->size && st == ST_OK; i++)
        wrong[i % n] |= all[i] != 0;
    free(said);
    return st;
}

/* Sums loss and weight over all rows of all ranks. */
static status sum_loss(session *s)
{
    static const mesh_group groups[] = {MESH_WHOLE, MESH_REPLICATE, MESH_PIPELINE};
    const comm_at at = {"sum held-out loss", -1};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        const comm *c = mesh_comm(&s->mesh, groups[i]);
        TRY(comm_all_reduce(c, s->stream, at, s->sums.loss, 1, DT_F64, COMM_SUM));
        TRY(comm_all_reduce(c, s->stream, at, s->sums.weight, 1, DT_F64, COMM_SUM));
    }
    return ST_OK;
}

/* Sums the counts of answers likewise. Ranks that share a row have counted the same ones, so that
 * sum is divided by their number. */
static status sum_counts(const session *s, evaluation *result)
{
    enum { COUNTS = 7 };
    static const mesh_group groups[] = {MESH_WHOLE, MESH_REPLICATE};
    int64_t *const count[COUNTS] = {
        &result->answers, &result->right,         &result->documents, &result->documents_right,
        &result->swapped, &result->swapped_right, &result->own_right};
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        const comm *c = mesh_comm(&s->mesh, groups[g]);
        const int64_t same = g == 0 ? s->mesh.layout.context * s->mesh.layout.tensor : 1;
        int64_t mine[COUNTS], *all = calloc((size_t)c->size, sizeof mine);
        if (!all)
            return FAIL(ST_NO_MEMORY, "evaluate: out of memory");
        for (int i = 0; i < COUNTS; i++)
            mine[i] = *count[i];
        status st =
            comm_host_all_gather(c, (comm_at){"sum held-out answers", -1}, mine, all, sizeof mine);
        for (int i = 0; i < COUNTS && st == ST_OK; i++) {
            *count[i] = 0;
            for (int r = 0; r < c->size; r++)
                *count[i] += all[r * COUNTS + i];
            *count[i] /= same;
        }
        free(all);
        TRY(st);
    }
    return ST_OK;
}

static status keep_sums(session *s, double keep[2])
{
    const backend_vtable *v = s->device->backend;
    TRY(v->to_host(s->stream, &keep[0], s->sums.loss, sizeof(double)));
    TRY(v->to_host(s->stream, &keep[1], s->sums.weight, sizeof(double)));
    return v->wait(s->stream);
}

static status give_back_sums(session *s, const double keep[2])
{
    const backend_vtable *v = s->device->backend;
    TRY(v->to_device(s->stream, s->sums.loss, &keep[0], sizeof(double)));
    TRY(v->to_device(s->stream, s->sums.weight, &keep[1], sizeof(double)));
    return v->wait(s->stream);
}

/* The rows of a round, one for each data-parallel rank. Every rank holds all of them, since it
 * needs their pictures for swapping and their questions for the answers, and judges its own. */
typedef struct rows_turn {
    received *got; /* [ranks] */
    int count, ranks, own;
    row none;            /* an empty row, for a rank without one */
    const row *mine;     /* this rank's row */
    device_batch *batch; /* this rank's row, staged */
} rows_turn;

/* One evaluation. */
typedef struct pass {
    session *run;
    evaluation *out;
    bool swapped;
    receiver *source;
    rows_turn turn;
    verdicts found;
    reply *replies;              /* [cap.targets] of this rank's row */
    int64_t n_replies;           /* how many it has */
    bool *wrong, *wrong_swapped; /* [cap.targets] of these replies: was a target missed? */
    bool *lent, *others; /* [cap.docs + 1] were its pictures exchanged; the same of other rows */
    chance chance;
    image_swap *image_swap;
    answers words;
    int64_t rows, judged; /* rows with documents so far, and how many of them this rank judged */
} pass;

/* An empty row. A rank that has no row in the last round runs it, so that it takes part in the
 * collective calls of the others. */
static row no_row(const row *like)
{
    row r = *like;
    r.n_tokens = r.n_docs = r.n_items = r.n_patches = r.n_video_patches = 0;
    return r;
}

static bool can_swap(const row *r)
{
    return r->n_docs > 0 && r->n_items > 0 && r->n_video_patches == 0;
}

/* Runs the forward pass of a row, staged in b, whose replies are p->replies. wrong [n_replies] is
 * set for those with a missed target. */
static status judge_row(pass *p, const device_batch *b, bool *wrong)
{
    session *s = p->run;
    const backend_vtable *v = s->device->backend;
    const verdicts *verdict = &p->found;
    loss_sums sums = {s->sums.loss, s->sums.weight, s->sums.aux};
    TRY(model_forward(s->model, s->stream, b, &sums, verdict->device_nll, verdict->device_best));
    size_t bytes = (size_t)b->targets * sizeof(int32_t);
    TRY(v->to_host(s->stream, verdict->best, verdict->device_best, bytes));
    TRY(v->to_host(s->stream, verdict->label, b->target_label, bytes));
    TRY(v->wait(s->stream));
    memset(wrong, 0, (size_t)p->n_replies * sizeof *wrong);
    for (int64_t i = 0; i < b->targets; i++)
        wrong[b->host_target_reply[i]] |= verdict->best[i] != verdict->label[i];
    return hear_others(s, p->n_replies, wrong);
}

/* Counts the answers of this rank's row and the documents that they are in. */
static void count_answers(const pass *p)
{
    bool is_right = true; /* the document so far */
    for (int64_t i = 0; i < p->n_replies; i++) {
        const bool is_last = i + 1 == p->n_replies || p->replies[i + 1].doc != p->replies[i].doc;
        is_right = is_right && !p->wrong[i];
        p->out->answers++;
        p->out->right += !p->wrong[i];
        p->out->documents += is_last;
        p->out->documents_right += is_last && is_right;
        is_right = is_right || is_last;
    }
}

/* Exchanges the pictures of the round's rows, and judges this rank's row again if it has any. */
static status evaluate_swapped(pass *p)
{
    session *s = p->run;
    const rows_turn *turn = &p->turn;
    const bool lends = can_swap(turn->mine);
    double keep[2]; /* the swapped pass must not enter the held-out loss */
    const row none = no_row(turn->mine), *judged = lends ? turn->mine : &none;
    device_batch *b;
    for (int i = 0; i < turn->count; i++)
        if (can_swap(&turn->got[i].row))
            TRY(image_swap_exchange(p->image_swap, &turn->got[i].row,
                                    i == turn->own ? p->lent : p->others));
    if (!lends && turn->ranks == 1)
        return ST_OK;
    TRY(keep_sums(s, keep));
    TRY(stage_rows(s->stager, s->stream, judged, 1, &b));
    p->n_replies = replies_of_row(judged, p->replies);
    TRY(judge_row(p, b, p->wrong_swapped));
    TRY(give_back_sums(s, keep));
    for (int64_t i = 0; i < p->n_replies; i++) {
        if (!p->lent[p->replies[i].doc])
            continue;
        p->out->swapped++;
        p->out->swapped_right += !p->wrong_swapped[i];
        p->out->own_right += !p->wrong[i];
    }
    return ST_OK;
}

/* What all ranks do with every row of the round: the answers of a row in the model's own words, and
 * its part in the chance level. */
static status answer_row(pass *p, const row *r)
{
    const int64_t n = replies_of_row(r, NULL);
    reply *replies = calloc((size_t)n + 1, sizeof *replies);
    if (!replies)
        return FAIL(ST_NO_MEMORY, "evaluate: out of memory");
    replies_of_row(r, replies);
    status st = chance_add(&p->chance, r, replies, n);
    if (st == ST_OK)
        st = answers_row(&p->words, r, replies, n);
    free(replies);
    return st;
}

static status evaluate_round(pass *p)
{
    const rows_turn *turn = &p->turn;
    if (turn->mine->n_docs == 0 && turn->ranks == 1)
        return ST_OK;
    p->judged += turn->mine->n_docs > 0;
    p->n_replies = replies_of_row(turn->mine, p->replies);
    TRY(judge_row(p, turn->batch, p->wrong));
    count_answers(p);
    for (int i = 0; i < turn->count; i++) {
        if (turn->got[i].row.n_docs == 0)
            continue;
        p->rows++;
        TRY(answer_row(p, &turn->got[i].row));
    }
    return p->swapped ? evaluate_swapped(p) : ST_OK;
}

/* Tells the other ranks that this one waits for rows, so that they do not take it for lost. */
static void say_waiting(const session *s, bool waits)
{
    rank_link_waits(s->world ? s->world->rank_link : NULL, waits ? "rows" : NULL);
}

/* Receives the rows of the next round; at the end of the stream they are fewer or none. */
static status take_rows(pass *p)
{
    rows_turn *turn = &p->turn;
    int64_t waited = 0;
    status st = ST_OK;
    say_waiting(p->run, true);
    while (turn->count < turn->ranks && st == ST_OK) {
        st = receiver_next(p->source, &turn->got[turn->count], &waited);
        turn->count += st == ST_OK;
    }
    say_waiting(p->run, false);
    return st == ST_END ? ST_OK : st;
}

/* Begins a round: receives its rows and stages this rank's. Everything here can fail on one rank
 * alone, so at the end the ranks agree; a failure with the answers of the last round is passed on
 * now too. After the last round turn.n is 0. */
static status take_round(pass *p)
{
    session *s = p->run;
    rows_turn *turn = &p->turn;
    const status_note *trouble = &p->words.trouble;
    status st = ST_OK;
    turn->count = 0;
    if (trouble->code != ST_OK) {
        status_set(trouble);
        return agree_rows(s, trouble->code, 0);
    }
    if (stop_heard()) /* asked here, since take_rows notices a signal only if it has to wait */
        st = FAIL(ST_STOPPED, "the evaluation was stopped by a signal");
    if (st == ST_OK)
        st = take_rows(p);
    if (st == ST_OK && turn->count > 0) {
        turn->none = no_row(&turn->got[0].row);
        turn->mine = turn->own < turn->count ? &turn->got[turn->own].row : &turn->none;
        st = stage_rows(s->stager, s->stream, turn->mine, 1, &turn->batch);
    }
    return agree_rows(s, st, turn->count);
}

static void give_back_round(pass *p)
{
    for (rows_turn *turn = &p->turn; turn->count > 0; turn->count--)
        receiver_give_back(p->source, &turn->got[turn->count - 1]);
}

static status write_page(const answers *words, const evaluation *result)
{
    const conf *c = words->session->conf;
    html_fact facts[EVALUATION_FACTS + 2];
    const int n = evaluation_facts(result, facts);
    data_fact(c, true, &facts[n]);
    facts[n + 1] = (html_fact){.name = "model"};
    path_shown(c->model_path, c->data_path, facts[n + 1].value, sizeof facts[n + 1].value);
    TRY(page_finish(words->page, facts, n + 2, &result->vqa));
    log_info("wrote held-out questions with their pictures to %s", c->eval_page);
    return ST_OK;
}

/* Opens the page and the stream, which may fail on one rank alone. */
static status open_own(const session *s, page **out_page, receiver **out)
{
    if (s->conf->eval_page[0] && s->mesh.rank == 0)
        TRY(page_new(s->conf->eval_page, out_page));
    say_waiting(s, true);
    status st = session_stream(s, "eval", s->conf, out);
    say_waiting(s, false);
    return st;
}

static status pass_init(pass *p)
{
    const session *s = p->run;
    const size_t docs = (size_t)s->cap.docs + 1, targets = (size_t)s->cap.targets + 1;
    p->turn.ranks = (int)(s->mesh.layout.replicate * s->mesh.layout.shard);
    p->turn.own = s->mesh.place.consumer;
    p->turn.got = calloc((size_t)p->turn.ranks, sizeof *p->turn.got);
    p->replies = calloc(targets, sizeof *p->replies);
    p->wrong = calloc(targets, sizeof *p->wrong);
    p->wrong_swapped = calloc(targets, sizeof *p->wrong_swapped);
    p->lent = calloc(docs, sizeof *p->lent);
    p->others = calloc(docs, sizeof *p->others);
    if (!p->turn.got || !p->replies || !p->wrong || !p->wrong_swapped || !p->lent || !p->others)
        return FAIL(ST_NO_MEMORY, "evaluate: out of memory");
    TRY(image_swap_new(&p->image_swap));
    return verdicts_init(&p->found, p->run);
}

static void pass_done(pass *p)
{
    page_free(&p->words.page);
    receiver_close(&p->source);
    verdicts_done(&p->found, p->run);
    image_swap_free(&p->image_swap);
    free(p->replies);
    free(p->wrong);
    free(p->wrong_swapped);
    chance_done(&p->chance);
    free(p->lent);
    free(p->others);
    free(p->turn.got);
}

static status pass_rows(pass *p)
{
    for (;;) {
        status st = take_round(p);
        if (st == ST_OK && p->turn.count == 0)
            return ST_OK;
        if (st == ST_OK)
            st = evaluate_round(p);
        give_back_round(p);
        TRY(st);
    }
}

static status sum_pass(pass *p)
{
    session *s = p->run;
    const backend_vtable *v = s->device->backend;
    double loss, weight;
    TRY(sum_loss(s));
    TRY(sum_counts(s, p->out));
    TRY(v->to_host(s->stream, &loss, s->sums.loss, sizeof loss));
    TRY(v->to_host(s->stream, &weight, s->sums.weight, sizeof weight));
    TRY(v->wait(s->stream));
    p->out->loss = weight > 0.0 ? loss / weight : 0.0;
    p->out->chance_percent = chance_percent(&p->chance);
    return ST_OK;
}

static status pass_run(pass *p)
{
    session *s = p->run;
    const backend_vtable *v = s->device->backend;
    const int64_t start = clock_ns();
    TRY(agree_rows(s, open_own(s, &p->words.page, &p->source), 0));
    TRY(v->zero(s->stream, s->sums.loss, sizeof(double)));
    TRY(v->zero(s->stream, s->sums.weight, sizeof(double)));
    TRY(pass_rows(p));
    if (p->turn.ranks > 1)
        log_info("held-out rows: %" PRId64 " of %" PRId64 " by this rank", p->judged, p->rows);
    TRY(sum_pass(p));
    p->out->seconds = (double)(clock_ns() - start) * 1e-9;
    return agree_rows(s, p->words.page ? write_page(&p->words, p->out) : ST_OK, 0);
}

status evaluate_model(session *s, bool swapped, int64_t show, evaluation *out)
{
    memset(out, 0, sizeof *out);
    pass p = {.run = s,
              .out = out,
              .swapped = swapped,
              .words = {.session = s, .show = show, .tally = &out->vqa}};
    status st = pass_init(&p);
    if (st == ST_OK)
        st = pass_run(&p);
    const status_note why = *status_last(); /* closing the source may overwrite it */
    pass_done(&p);
    if (st != ST_OK)
        status_set(&why);
    return st;
}
