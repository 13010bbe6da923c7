/* train_steps.c: the loop over the steps of a run. next_step queues and waits, note_step writes the
 * ledger and the log line, between_steps evaluates and saves if that is due. */
#include <inttypes.h>
#include <math.h>

#include "common/base/clock.h"
#include "common/program/bar.h"
#include "common/program/log.h"
#include "trainer/run/session_memory.h"
#include "trainer/run/stop.h"
#include "trainer/train/training.h"

enum { MEMORY_STEP = 3 }; /* by this step scratch has its final size and steps are captured */

/* If the disk refuses lines of the ledger, the run goes on without them. */
static status spare_ledger(training *t, status st)
{
    if (st != ST_IO)
        return st;
    if (!t->ledger_told)
        log_warn("the ledger has gaps from step %" PRId64 " on (this is said once): %s",
                 t->now.step, status_text());
    t->ledger_told = true;
    return ST_OK;
}

status training_save(training *t)
{
    if (t->ledger)
        TRY(spare_ledger(t, ledger_sync(t->ledger)));
    int64_t start = clock_ns();
    TRY(checkpoint_writer_save(t->checkpoint_writer, &t->now));
    reporter_rest(t->reporter, clock_ns() - start);
    return ST_OK;
}

/* Whether the loss of a step leaps; if so, warns of it. The warm-up is left out: its losses fall
 * fast, so they say nothing of those after it. */
static bool check_leap(training *t, const step_report *r)
{
    double median;
    if (r->step <= t->session.schedule.warmup_steps || !spike_add(&t->spike, r->loss, &median))
        return false;
    tell_leap(t, r, median);
    return true;
}

/* Records a finished step: progress, ledger, log line. */
static status note_step(training *t, const step_report *r)
{
    world_is_steady(t->world, t->conf);
    if (r->step == 1) {
        t->now.first_loss = r->loss;
        session_check_first_loss(&t->session, r->loss);
    }
    if (++t->told == MEMORY_STEP) {
        bar_clear();
        TRY(session_memory_tell(&t->session));
    }
    if (r->skipped)
        tell_skipped(t, r);
    t->now.step = r->step;
    t->now.rows += r->rows;
    t->now.last_loss = r->loss;
    t->now.eval_loss = NAN;
    TRY(progress_set_text(&t->now.cursor, r->cursor));
    const bool leaps = check_leap(t, r);
    if (t->ledger)
        TRY(spare_ledger(t, ledger_add(t->ledger, r, leaps)));
    TRY(reporter_step(t->reporter, r));
    /* The update of a bad step was not applied, so a checkpoint written after it has the values
     * from before it. */
    t->bad = r->where;
    t->bad_step = t->conf->training_nonfinite == NONFINITE_STOP && r->where;
    return ST_OK;
}

static bool evaluation_due(const training *t, int64_t step)
{
    const conf *c = t->conf;
    return session_evaluates(c) && c->eval_freq && step % c->eval_freq == 0 &&
           step != c->training_steps;
}

static bool checkpoint_due(const training *t, int64_t step)
{
    const conf *c = t->conf;
    return t->checkpoint_writer && c->checkpoint_interval && step % c->checkpoint_interval == 0 &&
           step != c->training_steps;
}

/* True if an evaluation failed because of the held-out rows, the connection they come over, or the
 * files it writes, and not because of this process or its device. The run can then go on. */
static bool costs_a_figure(status st)
{
    return st != ST_OK && st != ST_STOPPED && st != ST_BAD_DEVICE && st != ST_NO_MEMORY &&
           st != ST_OS && st != ST_INTERNAL;
}

/* Evaluates and saves if that is due. If the evaluation fails, the checkpoint is still written.
 */
static status between_steps(training *t)
{
    if (evaluation_due(t, t->now.step)) {
        int64_t start = clock_ns();
        status st = tell_evaluation(t);
        if (costs_a_figure(st)) {
            log_warn("step %" PRId64 " is not evaluated: %s", t->now.step, status_text());
            reporter_rest(t->reporter, clock_ns() - start);
            st = ST_OK;
        }
        TRY(st);
    }
    return checkpoint_due(t, t->now.step) ? training_save(t) : ST_OK;
}

/* Queues as many steps as may be under way beside the one that is told next. None is queued after a
 * step whose values are about to be evaluated or saved, nor after the last one. */
static status queue_steps(training *t)
{
    const conf *c = t->conf;
    session *s = &t->session;
    /* A run that ends at a bad step must leave the values from before it, so no step may be queued
     * after one. Nor is one queued after the step that follows a bad one: if that one is bad too,
     * its outputs must still be there to find the layer. */
    int ahead = c->training_nonfinite == NONFINITE_STOP || t->bad ? 0 : s->device->backend->ahead;
    while (step_under_way(s) <= ahead && !stop_asked()) {
        int64_t under_way = step_under_way(s), last = t->now.step + under_way;
        if (c->training_steps && last >= c->training_steps)
            return ST_OK;
        if (under_way && (evaluation_due(t, last) || checkpoint_due(t, last)))
            return ST_OK;
        TRY(step_queue(s, last + 1));
    }
    return ST_OK;
}

/* Runs a step under the profile. The first one warms up; it counts only if it is the only one. */
static status measured_step(training *t, step_report *out)
{
    if (t->profile && profile_read(t->profile)->steps == 1 && !t->profile_warm) {
        profile_reset(t->profile);
        t->profile_warm = true;
    }
    TRY(profile_begin(t->profile));
    TRY(step_run(&t->session, t->now.step + 1, out));
    return profile_end(t->profile, out->wait_ns);
}

/* Waits for the next step. ST_END after the last one; ST_STOPPED if the run was asked to stop
 * before another step was queued. */
static status next_step(training *t, bool *inout_ended, step_report *out)
{
    session *s = &t->session;
    if (t->profile)
        return measured_step(t, out);
    status st = *inout_ended ? ST_END : queue_steps(t);
    *inout_ended = st == ST_END;
    if (st != ST_OK && st != ST_END && st != ST_STOPPED)
        return st;
    if (step_under_way(s) == 0)
        return st == ST_OK ? ST_STOPPED : st;
    st = step_told(s, out); /* a step that is under way is finished and counts */
    while (step_is_void(s) && step_under_way(s) > 0)
        st = step_told(s, out); /* steps queued after a void one are void too */
    return st;
}

status training_steps(training *t)
{
    const conf *c = t->conf;
    bool ended = false;
    while (c->training_steps == 0 || t->now.step < c->training_steps) {
        step_report report;
        status st = next_step(t, &ended, &report);
        if (st == ST_END) {
            tell_end(t);
            return ST_OK;
        }
        if (st == ST_OK)
            st = note_step(t, &report);
        if (st == ST_OK && t->bad_step)
            return ST_OK;
        if (st == ST_OK && !stop_asked())
            st = between_steps(t);
        if (stop_asked() && st == ST_OK && step_under_way(&t->session) > 0)
            continue;
        if (stop_asked() && (st == ST_OK || st == ST_STOPPED)) {
            log_info("stopping after step %" PRId64 " as asked", t->now.step);
            return ST_OK;
        }
        t->no_rows = step_is_void(&t->session);
        TRY(st);
    }
    return ST_OK;
}
