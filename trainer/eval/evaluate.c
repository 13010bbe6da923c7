#include "trainer/eval/evaluate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "trainer/eval/answers.h"
#include "trainer/eval/lender.h"
#include "trainer/stop.h"

/* What a pass over a row's targets needs on the host. */
typedef struct verdicts {
    int32_t *best;  /* [cap.targets] */
    int32_t *label; /* [cap.targets] */
    void *device_nll;
    int32_t *device_best;
} verdicts;

static void verdicts_done(verdicts *w, session *s)
{
    const backend_vtable *v = s->device->v;
    v->release(s->device, w->device_nll);
    v->release(s->device, w->device_best);
    free(w->best);
    free(w->label);
}

static status verdicts_init(verdicts *w, session *s)
{
    const backend_vtable *v = s->device->v;
    memset(w, 0, sizeof *w);
    size_t n = (size_t)s->cap.targets;
    TRY(v->alloc(s->device, n * st_dtype_size(v->acc), &w->device_nll));
    TRY(v->alloc(s->device, n * sizeof(int32_t), (void **)&w->device_best));
    w->best = calloc(n, sizeof *w->best);
    w->label = calloc(n, sizeof *w->label);
    return w->best && w->label ? ST_OK : FAIL(ST_NO_MEMORY, "evaluate: out of memory");
}

/* Forward of one row; wrong[d] is set for documents with a missed target, counted[d] for those with
 * any target. */
static status judge(session *s, verdicts *w, const row *r, bool *wrong, bool *counted)
{
    const backend_vtable *v = s->device->v;
    device_batch *b;
    loss_sums sums = {s->sums.loss, s->sums.weight, s->sums.aux};
    TRY(stage_rows(s->stager, s->stream, r, 1, &b));
    TRY(model_forward(s->model, s->stream, b, &sums, w->device_nll, w->device_best));
    size_t bytes = (size_t)b->targets * sizeof(int32_t);
    TRY(v->to_host(s->stream, w->best, w->device_best, bytes));
    TRY(v->to_host(s->stream, w->label, b->target_label, bytes));
    TRY(v->wait(s->stream));
    memset(wrong, 0, (size_t)r->n_docs * sizeof *wrong);
    memset(counted, 0, (size_t)r->n_docs * sizeof *counted);
    for (int64_t i = 0; i < b->targets; i++) {
        int32_t d = b->host_target_doc[i];
        counted[d] = true;
        if (w->best[i] != w->label[i])
            wrong[d] = true;
    }
    return ST_OK;
}

typedef struct flags {
    bool *wrong, *counted, *lent;
} flags;

static status keep_sums(session *s, double keep[2])
{
    const backend_vtable *v = s->device->v;
    TRY(v->to_host(s->stream, &keep[0], s->sums.loss, sizeof(double)));
    TRY(v->to_host(s->stream, &keep[1], s->sums.weight, sizeof(double)));
    return v->wait(s->stream);
}

static status give_back_sums(session *s, const double keep[2])
{
    const backend_vtable *v = s->device->v;
    TRY(v->to_device(s->stream, s->sums.loss, &keep[0], sizeof(double)));
    TRY(v->to_device(s->stream, s->sums.weight, &keep[1], sizeof(double)));
    return v->wait(s->stream);
}

static status evaluate_row(session *s, verdicts *w, lender *l, flags *f, answers *words, row *r,
                           bool swapped, evaluation *out)
{
    if (r->n_docs == 0)
        return ST_OK;
    TRY(judge(s, w, r, f->wrong, f->counted));
    for (int64_t d = 0; d < r->n_docs; d++) {
        out->documents += f->counted[d];
        out->right += f->counted[d] && !f->wrong[d];
    }
    TRY(answers_row(words, r, f->counted));
    if (!swapped || r->n_items == 0 || r->n_video_patches)
        return ST_OK;
    double keep[2]; /* the swapped pass must not enter the held-out loss */
    TRY(keep_sums(s, keep));
    TRY(lender_exchange(l, r, f->lent));
    TRY(judge(s, w, r, f->wrong, f->counted));
    TRY(give_back_sums(s, keep));
    for (int64_t d = 0; d < r->n_docs; d++) {
        out->swapped_documents += f->counted[d] && f->lent[d];
        out->swapped_right += f->counted[d] && f->lent[d] && !f->wrong[d];
    }
    return ST_OK;
}

static status write_page(const answers *words, const evaluation *e)
{
    char summary[1024];
    snprintf(summary, sizeof summary,
             "model    %s\nloss     %.4f\naccuracy %.1f %% of %" PRId64
             " documents, all target tokens right\n"
             "         %.1f %% of %" PRId64 " with the pictures exchanged\n"
             "         %.2f %% of %" PRId64 " questions, VQAv2's official, generated answers",
             words->session->conf->model_path, e->loss, evaluation_percent(e->right, e->documents),
             e->documents, evaluation_percent(e->swapped_right, e->swapped_documents),
             e->swapped_documents, vqa_share_percent(&e->vqa.all), e->vqa.all.n);
    TRY(page_finish(words->page, summary, &e->vqa));
    log_info("questions with their pictures: %s", words->session->conf->eval_page);
    return ST_OK;
}

status evaluate(session *s, bool swapped, int64_t show, evaluation *out)
{
    const backend_vtable *v = s->device->v;
    memset(out, 0, sizeof *out);
    int64_t start = clock_ns();
    status st = ST_OK;
    receiver *source = NULL;
    verdicts w = {0};
    flags f = {0};
    size_t docs = (size_t)s->cap.docs + 1;
    lender *l = NULL;
    answers words = {.session = s, .show = show, .tally = &out->vqa};
    f.wrong = calloc(docs, sizeof(bool));
    f.counted = calloc(docs, sizeof(bool));
    f.lent = calloc(docs, sizeof(bool));
    if (!f.wrong || !f.counted || !f.lent) {
        st = FAIL(ST_NO_MEMORY, "evaluate: out of memory");
        goto done;
    }
    if (s->conf->eval_page[0])
        TRY_OR(done, page_new(s->conf->eval_page, &words.page));
    TRY_OR(done, lender_new(&l));
    TRY_OR(done, verdicts_init(&w, s));
    TRY_OR(done, session_stream(s, "eval", s->conf, &source));
    TRY_OR(done, v->zero(s->stream, s->sums.loss, sizeof(double)));
    TRY_OR(done, v->zero(s->stream, s->sums.weight, sizeof(double)));
    for (;;) {
        received got;
        int64_t waited = 0;
        if (stop_asked()) { /* rows may be there without a wait that would notice */
            st = FAIL(ST_STOPPED, "the evaluation was stopped by a signal");
            goto done;
        }
        st = receiver_next(source, &got, &waited);
        if (st == ST_END)
            break;
        if (st != ST_OK)
            goto done;
        st = evaluate_row(s, &w, l, &f, &words, &got.row, swapped, out);
        receiver_give_back(source, &got);
        if (st != ST_OK)
            goto done;
    }
    double loss, weight;
    TRY_OR(done, v->to_host(s->stream, &loss, s->sums.loss, sizeof loss));
    TRY_OR(done, v->to_host(s->stream, &weight, s->sums.weight, sizeof weight));
    TRY_OR(done, v->wait(s->stream));
    out->loss = weight > 0.0 ? loss / weight : 0.0;
    out->seconds = (double)(clock_ns() - start) * 1e-9;
    st = words.page ? write_page(&words, out) : ST_OK;
done:
    page_free(&words.page);
    receiver_close(&source);
    verdicts_done(&w, s);
    lender_free(&l);
    free(f.wrong);
    free(f.counted);
    free(f.lent);
    return st;
}
