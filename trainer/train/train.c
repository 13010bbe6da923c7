/* train.c: a run from its start to what it leaves. train_check refuses options that cannot work;
 * open_run opens session, checkpoint writer, ledger and reporter; training_steps (train_steps.c)
 * runs the steps; finish_training writes the last checkpoint, publishes the model, and evaluates
 * it. */
#include "trainer/train/train.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/program/log.h"
#include "proto/record.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/hf_export.h"
#include "trainer/run/config_changes.h"
#include "trainer/device/graph_replay.h"
#include "trainer/eval/page.h"
#include "trainer/plan/plan_print.h"
#include "trainer/report/memory_file.h"
#include "trainer/report/rewind.h"
#include "trainer/report/speed.h"
#include "trainer/run/session_memory.h"
#include "trainer/run/stop.h"
#include "trainer/train/training.h"

status train_checkpoint_folder(const conf *c, char out[STATUS_PATH_MAX])
{
    if (snprintf(out, STATUS_PATH_MAX, "%s/%s", c->job_dump_folder, c->checkpoint_folder) >=
        STATUS_PATH_MAX)
        return FAIL_IN(ST_CONFIG, c->job_dump_folder, "job.dump_folder: the path is too long");
    return ST_OK;
}

/* Makes job.dump_folder and locks it against a second trainer. */
static status take_folder(training *t)
{
    const conf *c = t->conf;
    t->now.eval_loss = t->now.first_loss = t->now.last_loss = NAN;
    TRY(config_text(c, &t->now.config));
    TRY(file_make_folders(c->job_dump_folder));
    if (training_is_first(t))
        TRY(folder_lock(c->job_dump_folder, &t->lock));
    return train_checkpoint_folder(c, t->folder);
}

/* Finds the checkpoint to go on from, the same on all ranks, and takes over its progress. The
 * options are this run's own. */
static status find_start(training *t)
{
    const conf *c = t->conf;
    if (!c->checkpoint_enable)
        return ST_OK;
    TRY(checkpoint_writer_find(t->folder, c->checkpoint_load_step,
                               mesh_comm(&t->session.mesh, MESH_WORLD), t->world->rank_link,
                               t->from.path, &t->from.progress, &t->resumes));
    if (!t->resumes)
        return ST_OK;
    tell_changes(t->from.progress.config, t->now.config);
    char *config = t->now.config;
    t->now.config = NULL;
    status st = progress_copy(&t->from.progress, &t->now);
    free(t->now.config);
    t->now.config = config;
    t->now.eval_loss = NAN;
    return st;
}

/* Plans a layout of several ranks, which fails if the layout is impossible, and prints the plan if
 * `shown`. */
static status print_layout(const plan_input *in, bool shown)
{
    FILE *to = shown ? stdout : fopen("/dev/null", "we");
    if (!to)
        return FAIL_IN(ST_OS, "/dev/null", "cannot open it: %s", strerror(errno));
    status st = layout_print(in, false, to, NULL);
    if (shown)
        fflush(stdout);
    else
        fclose(to);
    return st;
}

/* Refuses a file that is no recording. Its rows are checked later, when they are read. */
static status check_recording(const conf *c)
{
    record_reader *r = NULL;
    if (!c->feed_replay[0])
        return ST_OK;
    status st = record_open(c->feed_replay, &r);
    record_close(&r);
    return st;
}

/* Whether the checkpoint is whole is checked later, by all ranks together. */
static status check_load_step(const conf *c)
{
    char folder[STATUS_PATH_MAX], step[STATUS_PATH_MAX];
    if (c->checkpoint_load_step <= 0)
        return ST_OK;
    if (!c->checkpoint_enable)
        return FAIL_IN(ST_CONFIG, conf_place(c),
                       "checkpoint.load_step %" PRId64 " names a checkpoint to go on from, but "
                       "checkpoint.enable is false, so no checkpoint is read: set it to true, or "
                       "leave checkpoint.load_step out to begin anew",
                       c->checkpoint_load_step);
    TRY(train_checkpoint_folder(c, folder));
    TRY(folder_step_path(step, folder, c->checkpoint_load_step, NULL));
    if (access(step, F_OK) != 0)
        return FAIL_IN(ST_NO_INPUT, step,
                       "checkpoint.load_step %" PRId64 ": there is no such checkpoint: name a step "
                       "that is kept beside it, or leave checkpoint.load_step out to resume from "
                       "the newest",
                       c->checkpoint_load_step);
    return ST_OK;
}

status train_check(const conf *c, const plan_device *on, int there, int here, bool shown)
{
    char why[PLAN_DEVICE_WHY];
    plan_device own;
    layout l;
    model_dims d;
    params *p;
    TRY(check_load_step(c));
    TRY(session_dims(c, &d));
    layout_limits limits = params_limits(&d);
    TRY(layout_of(c, &limits, &l));
    if (!on)
        TRY(plan_device_here(c, here, &own, why));
    TRY(params_new(&d, &p));
    status st = groups_apply(c, p);
    const plan_input in = {
        .conf = c, .layout = &l, .dims = &d, .params = p, .device = on ? on : &own};
    if (st == ST_OK && l.world > 1)
        st = print_layout(&in, shown || l.world != there);
    params_free(&p);
    TRY(st);
    TRY(check_recording(c));
    return session_check_layout(c, there);
}

/* Moves aside the lines of steps that this run will do again, so that no step has two lines. A disk
 * that refuses this does not end the run. */
static status rewind_files(const training *t)
{
    static const char *const name[] = {"ledger.jsonl", "metrics.jsonl", "eval.jsonl"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        int64_t moved;
        status st = rewind_lines(t->conf->job_dump_folder, name[i], t->now.step, &moved);
        if (st == ST_IO)
            log_warn("%s may now have two lines for some steps: %s", name[i], status_text());
        else
            TRY(st);
        if (moved > 0)
            log_info("%s: moved %" PRId64 " lines that belong to no step up to %" PRId64
                     " to set-aside-%s",
                     name[i], moved, t->now.step, name[i]);
    }
    return ST_OK;
}

/* Prints the plan of this rank by the shapes of the stream, and keeps it as memory.json. With
 * several ranks train_check has printed the plan by the options alone, so in short a line is
 * enough. */
static status show_memory(training *t)
{
    const session *s = &t->session;
    const bool full = t->conf->memory_table == TABLE_FULL;
    char text[MEMORY_BYTES_TEXT];
    memory_plan plan;
    TRY(session_memory_plan(s, &plan));
    if (full || s->mesh.layout.world == 1)
        memory_plan_print(&plan, &s->mesh.layout, &s->planned, (int)t->conf->memory_table, stdout);
    else
        printf("memory: %s by the shapes of the stream\n", memory_bytes_text(plan.total, text));
    if (full && plan.total != s->planned_by_options)
        printf("memory: %" PRId64
               " bytes by the options alone, which is what trainer plan prints; the plan above "
               "uses the stream's shapes\n",
               s->planned_by_options);
    else if (plan.total != s->planned_by_options && s->mesh.layout.world == 1)
        printf("  %-36s %12s  by the options alone, as trainer plan says\n", "",
               memory_bytes_text(s->planned_by_options, text));
    return training_is_first(t) ? memory_file_write(t->conf->job_dump_folder, s, &plan) : ST_OK;
}

static status open_run(training *t)
{
    const conf *c = t->conf;
    peak_rate peak;
    const world_place *place = &t->world->place;
    TRY(train_check(c, NULL, place->size, place->local_size,
                    true)); /* before anything is written */
    TRY(world_log(t->world, c));
    TRY(take_folder(t));
    if (training_is_first(t) && session_evaluates(c) && c->eval_page[0])
        TRY(page_try(c->eval_page)); /* fails now, not hours later at the first evaluation */
    TRY(session_meet(c, t->world, &t->session));
    TRY(find_start(t));
    TRY(session_go_on(t->resumes ? &t->from : NULL, &t->session));
    if (t->resumes)
        tell_finished(t);
    if (c->metrics_profile) {
        graph_replay_free(t->session.stream); /* no graphs: calls are measured one by one */
        TRY(profile_new(t->session.stream, &t->profile));
    }
    TRY(progress_set_text(&t->now.stream_options,
                          t->session.stream_options ? t->session.stream_options : ""));
    TRY(progress_set_text(&t->now.recording, t->session.recording ? t->session.recording : ""));
    groups_print(c, t->session.params, stdout);
    TRY(show_memory(t));
    if (c->checkpoint_enable) { /* conf_check has refused it if ranks are simulated */
        if (training_is_first(t))
            TRY(checkpoint_writer_clear_after(t->folder, t->now.step));
        TRY(checkpoint_writer_new(c, t->folder, &t->session.dims, t->session.params,
                                  t->session.stream, t->world->rank_link, &t->checkpoint_writer));
        if (t->resumes)
            checkpoint_writer_goes_on(t->checkpoint_writer, t->from.progress.step);
    }
    TRY(speed_peak(t->session.stream, c->metrics_peak_tflops, &peak));
    if (training_is_first(t) && !world_simulated(t->world)) { /* a simulated run is not verified */
        TRY(rewind_files(t));
        TRY(ledger_open(c->job_dump_folder, c->metrics_ledger_ids, &t->ledger));
    }
    const char *folder = training_is_first(t) ? c->job_dump_folder : "";
    return reporter_new(c, &t->session, &peak, folder, &t->reporter);
}

static void close_run(training *t)
{
    checkpoint_writer_free(&t->checkpoint_writer);
    ledger_close(&t->ledger);
    reporter_free(&t->reporter);
    profile_free(&t->profile);
    session_close(&t->session);
    progress_done(&t->now);
    progress_done(&t->from.progress);
    folder_unlock(&t->lock);
}

/* Writes the last checkpoint, and publishes its model in the checkpoint folder itself. */
static status leave_model(training *t)
{
    const conf *c = t->conf;
    if (t->now.step == 0)
        return ST_OK; /* nothing was trained */
    /* With several ranks the model is written in parts, as a checkpoint. */
    const bool alone = t->session.mesh.layout.world == 1;
    const bool is_over = !stop_asked() && !t->no_rows;
    if (c->checkpoint_last_save_model_only && is_over && alone) {
        hf_export_options o = {
            .source = c->model_path, .tokenizer = c->model_tokenizer, .dtype = HF_EXPORT_AS_SOURCE};
        TRY(hf_export(t->session.params, t->session.stream, &t->session.dims, t->folder, &o));
        log_info("model written to %s", t->folder);
        return ST_OK;
    }
    bool is_kept = t->resumes && t->from.progress.step == t->now.step;
    if (!is_kept)
        TRY(training_save(t));
    status st = tell_unkept(t, checkpoint_writer_wait(t->checkpoint_writer));
    if (st == ST_OK)
        st = checkpoint_writer_publish(t->checkpoint_writer, t->now.step);
    /* A rank that leaves with an error ends the other ranks. So even on an error it first waits
     * until all of them have finished writing. */
    TRY(checkpoint_writer_settle(t->checkpoint_writer, st, t->now.step));
    if (training_is_first(t))
        log_info("model written to %s", t->folder);
    return ST_OK;
}

/* Writes what the steps have left; st: how they ended. */
static status finish_training(training *t, status st)
{
    const conf *c = t->conf;
    const status_note why = *status_last();
    if (t->no_rows)
        stop_by_deadline();
    if (reporter_finish(t->reporter) != ST_OK) /* a failed line must not cost the model */
        log_warn("the last line is missing: %s", status_text());
    if (t->profile)
        profile_print(profile_read(t->profile), stdout);
    if (t->profile && world_simulated(t->world))
        printf("%s\n", world_simulated(t->world));
    if (c->metrics_report && training_is_first(t))
        tell_report(t, NULL);
    if (c->checkpoint_enable) /* before the evaluation, whose failure must not cost the model */
        st = leave_model(t);
    if (t->no_rows)
        return tell_no_rows(t, &why, st);
    TRY(st);
    if (t->bad_step)
        return FAIL(ST_BAD_INPUT,
                    "step %" PRId64
                    ": the gradient is not finite and training.nonfinite says stop: %s",
                    t->now.step, t->bad);
    return tell_result(t);
}

/* Whether this is a trial run, too short for its model to be missed. */
static bool is_short(const conf *c)
{
    return c->training_steps > 0 && c->training_steps < c->checkpoint_interval;
}

status train_run(const conf *c, const world *w)
{
    training t = {.conf = c, .world = w, .lock = -1};
    status st;
    if (c->eval_enable && !session_evaluates(c))
        log_warn("eval.enable: the recording of feed.replay has no held-out rows, so there will be "
                 "no evaluation");
    if (!c->checkpoint_enable && !is_short(c) && w->place.rank == 0 && !world_simulated(w))
        log_warn("checkpoint.enable is false: this run keeps no model");
    TRY_OR(done, open_run(&t));
    if (t.session.mesh.layout.world > 1)
        stop_together();
    /* Up to here there is nothing to finish, so a signal may simply end the process. */
    TRY_OR(done, stop_listen(c->checkpoint_exit_deadline, w->place.rank == 0));
    st = training_steps(&t);
    if (st == ST_OK || t.no_rows)
        st = finish_training(&t, st);
done:
    close_run(&t);
    return st;
}
