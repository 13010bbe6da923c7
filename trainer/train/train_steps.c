/* SPDX-License-Identifier: Apache-2.0 */
/* train_steps.c: the loop over the steps of a run. next_step queues and waits, note_step writes the
 * ledger and the log line, between_steps evaluates and saves if that is due. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/program/bar.h"
#include "common/program/log.h"
#include "trainer/checkpoint/save/save_ranks.h"
#include "trainer/model/params/unit_order.h"
#include "trainer/run/session_memory.h"
#include "trainer/run/stop.h"
#include "trainer/train/training.h"

enum { MEMORY_STEP = 3 }; /* by this step scratch has its final size and steps are captured */

/* If the disk refuses lines of the ledger, the run continues without them. */
static status spare_ledger(training *run, status st)
{
    if (st != ST_IO)
        return st;
    if (!run->ledger_warned)
        log_warn("the ledger has gaps from step %" PRId64 " on (logged once): %s", run->now.step,
                 status_text());
    run->ledger_warned = true;
    return ST_OK;
}

/* Puts into run->now which bad samples any rank knows. Their daemons may be several, each of which
 * finds only those in its own rows. */
static status unite_quarantines(training *run)
{
    const int64_t before = run->known.n;
    char *text = NULL;
    TRY(save_unite_bad_samples(mesh_comm(&run->session.mesh, MESH_WORLD),
                               receiver_bad_samples(run->session.train), &run->known));
    if (run->known.n == before)
        return ST_OK;
    TRY(bad_samples_write(&run->known, &text));
    free(run->now.quarantine);
    run->now.quarantine = text;
    return ST_OK;
}

status training_save(training *run)
{
    if (run->ledger)
        TRY(spare_ledger(run, ledger_sync(run->ledger)));
    int64_t start = clock_ns();
    TRY(unite_quarantines(run));
    TRY(checkpoint_writer_save(run->checkpoint_writer, &run->now));
    reporter_rest(run->reporter, clock_ns() - start);
    return ST_OK;
}

/* Keeps run->now in memory, for a crash of this process. */
static status keep_copy(training *run)
{
    int64_t start = clock_ns();
    TRY(unite_quarantines(run));
    TRY(checkpoint_writer_keep(run->checkpoint_writer, &run->now));
    reporter_rest(run->reporter, clock_ns() - start);
    return ST_OK;
}

/* Whether the loss of a step leaps; if so, warns of it. The warm-up is left out: its losses fall
 * fast, so they say nothing of those after it. */
static bool check_leap(training *run, const step_report *report)
{
    double median;
    if (report->step <= run->session.schedule.warmup_steps ||
        !spike_add(&run->spike, report->loss, &median))
        return false;
    training_warn_leap(run, report, median);
    return true;
}

/* Records a finished step: progress, ledger, log line. */
static status note_step(training *run, const step_report *report)
{
    world_is_steady(run->world, run->conf);
    if (report->step == 1) {
        run->now.first_loss = report->loss;
        session_check_first_loss(&run->session, report->loss);
    }
    if (++run->done == MEMORY_STEP) {
        bar_clear();
        TRY(session_memory_print(&run->session));
    }
    if (report->skipped)
        training_warn_skipped(run, report);
    run->now.step = report->step;
    run->now.rows += report->rows;
    run->now.last_loss = report->loss;
    TRY(progress_set_shares(&run->now, report->unit_share,
                            report->unit_share ? unit_count(&run->session.dims) : 0));
    run->now.eval_loss = NAN;
    TRY(progress_set_text(&run->now.cursor, report->cursor));
    const bool leaps = check_leap(run, report);
    if (run->ledger)
        TRY(spare_ledger(run, ledger_add(run->ledger, report, leaps,
                                         run->done == 1 ? run->session.choices : "")));
    monitor_step(run->monitor, report);
    TRY(reporter_step(run->reporter, report));
    /* The update of a bad step was not applied, so a checkpoint written after it has the values
     * from before it; but of a partial step none is written. */
    run->bad = report->where;
    run->bad_step = run->conf->training_nonfinite == NONFINITE_STOP && report->where;
    run->partial = run->bad_step && report->updated[0];
    return ST_OK;
}

static bool evaluation_due(const training *run, int64_t step)
{
    const conf *options = run->conf;
    return session_evaluates(options) && options->eval_freq && step % options->eval_freq == 0 &&
           step != options->training_steps;
}

static bool checkpoint_due(const training *run, int64_t step)
{
    const conf *options = run->conf;
    return run->checkpoint_writer && options->checkpoint_interval &&
           step % options->checkpoint_interval == 0 && step != options->training_steps;
}

static bool copy_due(const training *run, int64_t step)
{
    const int64_t interval = run->conf->checkpoint_memory_interval;
    return snapshot_is_on_shm(run->snapshot) && interval && step % interval == 0 &&
           step != run->conf->training_steps;
}

/* True if an evaluation failed because of the held-out rows, the connection they come over, or the
 * files it writes, and not because of this process or its device. The run can then go on. */
static bool costs_a_figure(status st)
{
    return st != ST_OK && st != ST_STOPPED && st != ST_BAD_DEVICE && st != ST_NO_MEMORY &&
           st != ST_OS && st != ST_INTERNAL;
}

/* Evaluates and saves if that is due. If the evaluation fails, the checkpoint is still written. */
static status between_steps(training *run)
{
    if (evaluation_due(run, run->now.step)) {
        int64_t start = clock_ns();
        monitor_phase(run->monitor, PHASE_EVALUATING);
        status st = training_evaluate(run);
        monitor_phase(run->monitor, PHASE_TRAINING);
        if (costs_a_figure(st)) {
            log_warn("step %" PRId64 " is not evaluated: %s", run->now.step, status_text());
            reporter_rest(run->reporter, clock_ns() - start);
            st = ST_OK;
        }
        TRY(st);
    }
    const bool saves = checkpoint_due(run, run->now.step);
    if (!saves && !copy_due(run, run->now.step))
        return ST_OK;
    monitor_phase(run->monitor, PHASE_SAVING);
    TRY(saves ? training_save(run) : keep_copy(run));
    monitor_phase(run->monitor, PHASE_TRAINING);
    return ST_OK;
}

/* Queues as many steps as may be under way beside the one that is waited for next. None is queued after a
 * step whose values are about to be evaluated or saved, nor after the last one. */
static status queue_steps(training *run)
{
    const conf *options = run->conf;
    session *opened = &run->session;
    /* A run that ends at a bad step must leave the values from before it, so no step may be queued
     * after one. Nor is one queued after the step that follows a bad one: if that one is bad too,
     * its outputs must still be there to find the layer. */
    int ahead = options->training_nonfinite == NONFINITE_STOP || run->bad
                    ? 0
                    : opened->device->backend->ahead;
    while (step_under_way(opened) <= ahead && !stop_asked()) {
        int64_t under_way = step_under_way(opened), last = run->now.step + under_way;
        if (options->training_steps && last >= options->training_steps)
            return ST_OK;
        if (under_way &&
            (evaluation_due(run, last) || checkpoint_due(run, last) || copy_due(run, last)))
            return ST_OK;
        TRY(step_queue(opened, last + 1));
    }
    return ST_OK;
}

/* Runs a step under the profile. The first one warms up; it counts only if it is the only one. */
static status measured_step(training *run, step_report *out)
{
    if (run->profile && profile_read(run->profile)->steps == 1 && !run->profile_warm) {
        profile_reset(run->profile);
        run->profile_warm = true;
    }
    TRY(profile_begin(run->profile));
    TRY(step_run(&run->session, run->now.step + 1, out));
    return profile_end(run->profile, out->wait_ns);
}

/* Waits for the next step. ST_END after the last one; ST_STOPPED if the run was asked to stop
 * before another step was queued. */
static status next_step(training *run, bool *inout_ended, step_report *out)
{
    session *opened = &run->session;
    if (run->profile)
        return measured_step(run, out);
    status st = *inout_ended ? ST_END : queue_steps(run);
    *inout_ended = st == ST_END;
    if (st != ST_OK && st != ST_END && st != ST_STOPPED)
        return st;
    if (step_under_way(opened) == 0)
        return st == ST_OK ? ST_STOPPED : st;
    st = step_wait(opened, out); /* a step that is under way is finished and counts */
    while (step_is_void(opened) && step_under_way(opened) > 0)
        st = step_wait(opened, out); /* steps queued after a void one are void too */
    return st;
}

status training_steps(training *run)
{
    const conf *options = run->conf;
    bool ended = false;
    while (options->training_steps == 0 || run->now.step < options->training_steps) {
        step_report report;
        status st = next_step(run, &ended, &report);
        if (st == ST_END) {
            training_log_end(run);
            return ST_OK;
        }
        if (st == ST_OK)
            st = note_step(run, &report);
        if (st == ST_OK && run->bad_step)
            return ST_OK;
        if (st == ST_OK && !stop_asked())
            st = between_steps(run);
        if (stop_asked() && st == ST_OK && step_under_way(&run->session) > 0)
            continue;
        if (stop_asked() && (st == ST_OK || st == ST_STOPPED)) {
            log_info("stopping after step %" PRId64 " as asked", run->now.step);
            return ST_OK;
        }
        run->no_rows = step_is_void(&run->session);
        TRY(st);
    }
    return ST_OK;
}
