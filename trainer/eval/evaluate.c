/* SPDX-License-Identifier: Apache-2.0 */
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
#include "trainer/eval/answers.h"
#include "trainer/eval/image_swap.h"
#include "trainer/eval/html_page.h"
#include "trainer/parallel/comm/comm.h"
#include "trainer/run/stop.h"

/* Keeps ranks that evaluate together at the same row. Each rank receives the held-out rows by
 * itself, so one may miss a row that another has, or run out of disk space. Every rank calls it
 * before the collective calls of a row, so that they continue or end together. mine: this rank's
 * status; count: how many rows it has for the next round. ST_OK if all ranks are well and have
 * equally many rows; else, on all of them, the code of the first rank that is not, with its text
 * and number. A signal that one rank has received stops all (stop.h). On a single rank it returns
 * mine. */
static status agree_rows(const session *run, status mine, int64_t count)
{
    const comm *all = mesh_comm(&run->mesh, MESH_WORLD);
    status st = comm_agree(all, (comm_at){"agree on held-out rows", -1}, mine, count);
    if (st == ST_STOPPED && all->size > 1)
        stop_agree();
    return st;
}

/* Buffers for the verdict on a row's targets. */
typedef struct verdicts {
    int32_t *best;  /* [cap.targets] */
    int32_t *label; /* [cap.targets] */
    void *device_nll;
    int32_t *device_best;
} verdicts;

static void verdicts_done(verdicts *verdict, session *run)
{
    const backend_vtable *backend = run->device->backend;
    backend->release(run->device, verdict->device_nll);
    backend->release(run->device, verdict->device_best);
    free(verdict->best);
    free(verdict->label);
}

static status verdicts_init(verdicts *verdict, session *run)
{
    const backend_vtable *backend = run->device->backend;
    memset(verdict, 0, sizeof *verdict);
    size_t count = (size_t)run->cap.targets;
    TRY(backend->alloc(run->device, count * st_dtype_size(backend->acc), &verdict->device_nll));
    TRY(backend->alloc(run->device, count * sizeof(int32_t), (void **)&verdict->device_best));
    verdict->best = calloc(count, sizeof *verdict->best);
    verdict->label = calloc(count, sizeof *verdict->label);
    return verdict->best && verdict->label ? ST_OK : FAIL(ST_NO_MEMORY, "evaluate: out of memory");
}

/* Combines verdicts on a row's `n_replies` replies. Each rank that shares the row has judged a part
 * of its targets, and only on the last pipeline stage; the other stages hear the result from it. */
static status hear_others(session *run, int64_t n_replies, bool *wrong)
{
    const comm *peers = mesh_comm(&run->mesh, MESH_ROW);
    const comm *stages = mesh_comm(&run->mesh, MESH_PIPELINE);
    if (peers->size * stages->size == 1 || n_replies == 0)
        return ST_OK;
    uint8_t *said = calloc((size_t)(n_replies * (peers->size + 1)), 1), *all = said + n_replies;
    if (!said)
        return FAIL(ST_NO_MEMORY, "evaluate: out of memory");
    for (int64_t i = 0; i < n_replies; i++)
        said[i] = wrong[i];
    const comm_at at = {"judge a row", -1};
    status st = comm_host_all_gather(peers, at, said, all, n_replies);
    if (st == ST_OK)
        st = comm_host_broadcast(stages, at, all, n_replies * peers->size, stages->size - 1);
    if (stages->rank + 1 < stages->size) /* this stage has judged nothing itself */
        memset(wrong, 0, (size_t)n_replies * sizeof *wrong);
    for (int64_t i = 0; i < n_replies * peers->size && st == ST_OK; i++)
        wrong[i % n_replies] |= all[i] != 0;
    free(said);
    return st;
}

/* Sums loss and weight over all rows of all ranks. */
static status sum_loss(session *run)
{
    static const mesh_group groups[] = {MESH_WHOLE, MESH_REPLICATE, MESH_PIPELINE};
    const comm_at at = {"sum held-out loss", -1};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        const comm *group = mesh_comm(&run->mesh, groups[i]);
        TRY(comm_all_reduce(group, run->stream, at, run->sums.loss, 1, DT_F64, COMM_SUM));
        TRY(comm_all_reduce(group, run->stream, at, run->sums.weight, 1, DT_F64, COMM_SUM));
    }
    return ST_OK;
}

/* Sums the counts of answers likewise. Ranks that share a row have counted the same ones, so that
 * sum is divided by their number. */
static status sum_counts(const session *run, evaluation *result)
{
    enum { COUNTS = 7 };
    static const mesh_group groups[] = {MESH_WHOLE, MESH_REPLICATE};
    int64_t *const count[COUNTS] = {
        &result->answers, &result->right,         &result->documents, &result->documents_right,
        &result->swapped, &result->swapped_right, &result->own_right};
    for (size_t j = 0; j < sizeof groups / sizeof *groups; j++) {
        const comm *group = mesh_comm(&run->mesh, groups[j]);
        const int64_t same = j == 0 ? run->mesh.layout.context * run->mesh.layout.tensor : 1;
        int64_t mine[COUNTS], *all = calloc((size_t)group->size, sizeof mine);
        if (!all)
            return FAIL(ST_NO_MEMORY, "evaluate: out of memory");
        for (int i = 0; i < COUNTS; i++)
            mine[i] = *count[i];
        status st = comm_host_all_gather(group, (comm_at){"sum held-out answers", -1}, mine, all,
                                         sizeof mine);
        for (int i = 0; i < COUNTS && st == ST_OK; i++) {
            *count[i] = 0;
            for (int k = 0; k < group->size; k++)
                *count[i] += all[k * COUNTS + i];
            *count[i] /= same;
        }
        free(all);
        TRY(st);
    }
    return ST_OK;
}

static status keep_sums(session *run, double keep[2])
{
    const backend_vtable *backend = run->device->backend;
    TRY(backend->to_host(run->stream, &keep[0], run->sums.loss, sizeof(double)));
    TRY(backend->to_host(run->stream, &keep[1], run->sums.weight, sizeof(double)));
    return backend->wait(run->stream);
}

static status give_back_sums(session *run, const double keep[2])
{
    const backend_vtable *backend = run->device->backend;
    TRY(backend->to_device(run->stream, run->sums.loss, &keep[0], sizeof(double)));
    TRY(backend->to_device(run->stream, run->sums.weight, &keep[1], sizeof(double)));
    return backend->wait(run->stream);
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
    int64_t step;
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
    row packed = *like;
    packed.n_tokens = packed.n_docs = packed.n_items = packed.n_patches = packed.n_video_patches =
        0;
    return packed;
}

static bool can_swap(const row *packed)
{
    return packed->n_docs > 0 && packed->n_items > 0 && packed->n_video_patches == 0;
}

/* Runs the forward pass of a row, staged in `batch`, whose replies are walk->replies. wrong
 * [n_replies] is set for those with a missed target. */
static status judge_row(pass *walk, const device_batch *batch, bool *wrong)
{
    session *run = walk->run;
    const backend_vtable *backend = run->device->backend;
    const verdicts *verdict = &walk->found;
    loss_sums sums = {run->sums.loss, run->sums.weight, run->sums.aux};
    TRY(model_forward(run->model, run->stream, batch, &sums, verdict->device_nll,
                      verdict->device_best));
    size_t bytes = (size_t)batch->targets * sizeof(int32_t);
    TRY(backend->to_host(run->stream, verdict->best, verdict->device_best, bytes));
    TRY(backend->to_host(run->stream, verdict->label, batch->target_label, bytes));
    TRY(backend->wait(run->stream));
    memset(wrong, 0, (size_t)walk->n_replies * sizeof *wrong);
    for (int64_t i = 0; i < batch->targets; i++)
        wrong[batch->host_target_reply[i]] |= verdict->best[i] != verdict->label[i];
    return hear_others(run, walk->n_replies, wrong);
}

/* Counts the answers of this rank's row and the documents that they are in. */
static void count_answers(const pass *walk)
{
    bool is_right = true; /* the document so far */
    for (int64_t i = 0; i < walk->n_replies; i++) {
        const bool is_last =
            i + 1 == walk->n_replies || walk->replies[i + 1].doc != walk->replies[i].doc;
        is_right = is_right && !walk->wrong[i];
        walk->out->answers++;
        walk->out->right += !walk->wrong[i];
        walk->out->documents += is_last;
        walk->out->documents_right += is_last && is_right;
        is_right = is_right || is_last;
    }
}

/* Exchanges the pictures of the round's rows, and judges this rank's row again if it has any. */
static status evaluate_swapped(pass *walk)
{
    session *run = walk->run;
    const rows_turn *turn = &walk->turn;
    const bool lends = can_swap(turn->mine);
    double keep[2]; /* the swapped pass must not enter the held-out loss */
    const row none = no_row(turn->mine), *judged = lends ? turn->mine : &none;
    device_batch *batch;
    for (int i = 0; i < turn->count; i++)
        if (can_swap(&turn->got[i].row))
            TRY(image_swap_exchange(walk->image_swap, &turn->got[i].row,
                                    i == turn->own ? walk->lent : walk->others));
    if (!lends && turn->ranks == 1)
        return ST_OK;
    TRY(keep_sums(run, keep));
    TRY(stage_rows(run->stager, run->stream, judged, 1, &batch));
    walk->n_replies = replies_of_row(judged, walk->replies);
    TRY(judge_row(walk, batch, walk->wrong_swapped));
    TRY(give_back_sums(run, keep));
    for (int64_t i = 0; i < walk->n_replies; i++) {
        if (!walk->lent[walk->replies[i].doc])
            continue;
        walk->out->swapped++;
        walk->out->swapped_right += !walk->wrong_swapped[i];
        walk->out->own_right += !walk->wrong[i];
    }
    return ST_OK;
}

/* What all ranks do with every row of the round: the answers of a row in the model's own words, and
 * its part in the chance level. */
static status answer_row(pass *walk, const row *packed)
{
    const int64_t count = replies_of_row(packed, NULL);
    reply *replies = calloc((size_t)count + 1, sizeof *replies);
    if (!replies)
        return FAIL(ST_NO_MEMORY, "evaluate: out of memory");
    replies_of_row(packed, replies);
    status st = chance_add(&walk->chance, packed, replies, count);
    if (st == ST_OK)
        st = answers_row(&walk->words, packed, replies, count);
    free(replies);
    return st;
}

static status evaluate_round(pass *walk)
{
    const rows_turn *turn = &walk->turn;
    if (turn->mine->n_docs == 0 && turn->ranks == 1)
        return ST_OK;
    walk->judged += turn->mine->n_docs > 0;
    walk->n_replies = replies_of_row(turn->mine, walk->replies);
    TRY(judge_row(walk, turn->batch, walk->wrong));
    count_answers(walk);
    for (int i = 0; i < turn->count; i++) {
        if (turn->got[i].row.n_docs == 0)
            continue;
        walk->rows++;
        TRY(answer_row(walk, &turn->got[i].row));
    }
    return walk->swapped ? evaluate_swapped(walk) : ST_OK;
}

/* Tells the other ranks that this one waits for rows, so that they do not take it for lost. */
static void say_waiting(const session *run, bool waits)
{
    rank_link_waits(run->world ? run->world->rank_link : NULL, waits ? "rows" : NULL);
}

/* Receives the rows of the next round; at the end of the stream they are fewer or none. */
static status take_rows(pass *walk)
{
    rows_turn *turn = &walk->turn;
    int64_t waited = 0;
    status st = ST_OK;
    say_waiting(walk->run, true);
    while (turn->count < turn->ranks && st == ST_OK) {
        st = receiver_next(walk->source, &turn->got[turn->count], &waited);
        turn->count += st == ST_OK;
    }
    say_waiting(walk->run, false);
    return st == ST_END ? ST_OK : st;
}

/* Begins a round: receives its rows and stages this rank's. Everything here can fail on one rank
 * alone, so at the end the ranks agree; a failure with the answers of the last round is passed on
 * now too. After the last round turn.n is 0. */
static status take_round(pass *walk)
{
    session *run = walk->run;
    rows_turn *turn = &walk->turn;
    const status_note *trouble = &walk->words.trouble;
    status st = ST_OK;
    turn->count = 0;
    if (trouble->code != ST_OK) {
        status_set(trouble);
        return agree_rows(run, trouble->code, 0);
    }
    if (stop_signalled()) /* asked here, since take_rows notices a signal only if it has to wait */
        st = FAIL(ST_STOPPED, "the evaluation was stopped by a signal");
    if (st == ST_OK)
        st = take_rows(walk);
    if (st == ST_OK && turn->count > 0) {
        turn->none = no_row(&turn->got[0].row);
        turn->mine = turn->own < turn->count ? &turn->got[turn->own].row : &turn->none;
        st = stage_rows(run->stager, run->stream, turn->mine, 1, &turn->batch);
    }
    return agree_rows(run, st, turn->count);
}

static void give_back_round(pass *walk)
{
    for (rows_turn *turn = &walk->turn; turn->count > 0; turn->count--)
        receiver_give_back(walk->source, &turn->got[turn->count - 1]);
}

static status write_page(const pass *walk)
{
    const conf *options = walk->run->conf;
    const page *sheet = walk->words.page;
    html_fact facts[EVALUATION_FACTS + 4];
    int count = evaluation_facts(walk->out, facts);
    data_fact(options, true, &facts[count++]);
    facts[count] = (html_fact){.name = "model"};
    path_shown(options->model_path, options->data_path, facts[count].value,
               sizeof facts[count].value);
    facts[++count] = (html_fact){.name = "step", .value = "none", .note = "as it is in model.path"};
    if (walk->step >= 0) {
        facts[count].note[0] = 0;
        snprintf(facts[count].value, sizeof facts[count].value, "%" PRId64, walk->step);
        run_fact(options, &facts[++count]);
    }
    TRY(page_finish(walk->words.page, facts, count + 1, &walk->out->vqa));
    log_info("wrote held-out questions with their pictures to %s%s", page_path(sheet),
             strcmp(page_path(sheet), options->eval_page) == 0
                 ? ""
                 : ", since eval.page is not of this run, or of a later step");
    return ST_OK;
}

/* Opens the page and the stream, which may fail on one rank alone. */
static status open_own(const session *run, int64_t step, page **out_page, receiver **out)
{
    if (run->conf->eval_page[0] && run->mesh.rank == 0)
        TRY(page_new(run->conf->eval_page, html_mark_of(run->conf, step), out_page));
    say_waiting(run, true);
    status st = session_stream(run, "eval", run->conf, out);
    say_waiting(run, false);
    return st;
}

static status pass_init(pass *walk)
{
    const session *run = walk->run;
    const size_t docs = (size_t)run->cap.docs + 1, targets = (size_t)run->cap.targets + 1;
    walk->turn.ranks = (int)layout_consumers(&run->mesh.layout);
    walk->turn.own = run->mesh.place.consumer;
    walk->turn.got = calloc((size_t)walk->turn.ranks, sizeof *walk->turn.got);
    walk->replies = calloc(targets, sizeof *walk->replies);
    walk->wrong = calloc(targets, sizeof *walk->wrong);
    walk->wrong_swapped = calloc(targets, sizeof *walk->wrong_swapped);
    walk->lent = calloc(docs, sizeof *walk->lent);
    walk->others = calloc(docs, sizeof *walk->others);
    if (!walk->turn.got || !walk->replies || !walk->wrong || !walk->wrong_swapped || !walk->lent ||
        !walk->others)
        return FAIL(ST_NO_MEMORY, "evaluate: out of memory");
    TRY(image_swap_new(&walk->image_swap));
    return verdicts_init(&walk->found, walk->run);
}

static void pass_done(pass *walk)
{
    page_free(&walk->words.page);
    receiver_close(&walk->source);
    verdicts_done(&walk->found, walk->run);
    image_swap_free(&walk->image_swap);
    free(walk->replies);
    free(walk->wrong);
    free(walk->wrong_swapped);
    chance_done(&walk->chance);
    free(walk->lent);
    free(walk->others);
    free(walk->turn.got);
}

/* Evaluates one row of each rank. */
static status pass_round(pass *walk)
{
    TRY(take_round(walk));
    return walk->turn.count > 0 ? evaluate_round(walk) : ST_OK;
}

/* Ranks do not agree here on the shapes of their rows,
 * so what holds calls of NCCL is not captured. */
static status pass_rows(pass *walk)
{
    session *run = walk->run;
    bool more = true;
    status st = ST_OK;
    session_capture_pause(run, run->same_shapes);
    while (st == ST_OK && more) {
        st = pass_round(walk);
        more = walk->turn.count > 0;
        give_back_round(walk);
    }
    session_capture_pause(run, false);
    return st;
}

static status sum_pass(pass *walk)
{
    session *run = walk->run;
    const backend_vtable *backend = run->device->backend;
    double loss, weight;
    TRY(sum_loss(run));
    TRY(sum_counts(run, walk->out));
    TRY(backend->to_host(run->stream, &loss, run->sums.loss, sizeof loss));
    TRY(backend->to_host(run->stream, &weight, run->sums.weight, sizeof weight));
    TRY(backend->wait(run->stream));
    walk->out->loss = weight > 0.0 ? loss / weight : 0.0;
    walk->out->chance_percent = chance_percent(&walk->chance);
    return ST_OK;
}

static status pass_run(pass *walk)
{
    session *run = walk->run;
    const backend_vtable *backend = run->device->backend;
    const int64_t start = clock_ns();
    TRY(agree_rows(run, open_own(run, walk->step, &walk->words.page, &walk->source), 0));
    TRY(backend->zero(run->stream, run->sums.loss, sizeof(double)));
    TRY(backend->zero(run->stream, run->sums.weight, sizeof(double)));
    TRY(pass_rows(walk));
    if (walk->turn.ranks > 1)
        log_info("held-out rows: %" PRId64 " of %" PRId64 " by this rank", walk->judged,
                 walk->rows);
    TRY(sum_pass(walk));
    walk->out->seconds = (double)(clock_ns() - start) * 1e-9;
    return agree_rows(run, walk->words.page ? write_page(walk) : ST_OK, 0);
}

status evaluate_model(session *run, int64_t step, bool swapped, int64_t show, evaluation *out)
{
    memset(out, 0, sizeof *out);
    pass walk = {.run = run,
                 .step = step,
                 .out = out,
                 .swapped = swapped,
                 .words = {.session = run, .show = show, .tally = &out->vqa}};
    status st = pass_init(&walk);
    if (st == ST_OK)
        st = pass_run(&walk);
    const status_note why = *status_last(); /* closing the source may overwrite it */
    pass_done(&walk);
    if (st != ST_OK)
        status_set(&why);
    return st;
}
