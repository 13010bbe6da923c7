/* SPDX-License-Identifier: Apache-2.0 */
/* train.c: a run from its start to what it leaves. train_check refuses options that cannot work;
 * open_run opens session, checkpoint writer, ledger and reporter; training_steps (train_steps.c)
 * runs the steps; finish_training has the last checkpoint written and the model left
 * (train_leave.c), and evaluates it. */
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
#include "proto/message/record.h"
#include "trainer/checkpoint/save/folder.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/checkpoint/state/progress.h"
#include "trainer/device/graph_replay.h"
#include "trainer/eval/page.h"
#include "trainer/plan/plan_print.h"
#include "trainer/parallel/comm/comm.h"
#include "trainer/report/rewind.h"
#include "trainer/report/speed.h"
#include "trainer/run/session_memory.h"
#include "trainer/run/stop.h"
#include "trainer/train/training.h"

status train_checkpoint_folder(const conf *options, char out[STATUS_PATH_MAX])
{
    if (snprintf(out, STATUS_PATH_MAX, "%s/checkpoint", options->job_dump_folder) >=
        STATUS_PATH_MAX)
        return FAIL_IN(ST_CONFIG, options->job_dump_folder,
                       "job.dump_folder: the path is too long");
    return ST_OK;
}

/* Makes job.dump_folder and locks it against a second trainer. */
static status take_folder(training *run)
{
    const conf *options = run->conf;
    run->now.eval_loss = run->now.first_loss = run->now.last_loss = NAN;
    TRY(config_text(options, &run->now.config));
    TRY(file_make_folders(options->job_dump_folder));
    if (training_is_first(run))
        TRY(folder_lock(options->job_dump_folder, &run->lock));
    return train_checkpoint_folder(options, run->folder);
}

/* Frozen values are in no copy, and may differ from the model's files, since they were trained
 * before: they come from the newest checkpoint, if there is one. */
static status find_base(training *run)
{
    const params *registry = run->session.params;
    progress state = {0};
    bool found;
    if (run->on_disk == 0 || !base_wanted(registry))
        return ST_OK;
    const status st =
        checkpoint_writer_find(run->folder, run->on_disk, mesh_comm(&run->session.mesh, MESH_WORLD),
                               run->world->rank_link, run->from.base, &state, &found);
    progress_done(&state);
    if (st != ST_BAD_INPUT && st != ST_NO_INPUT)
        return st;
    log_warn("the copy in memory is not used, since the frozen values that belong to it are "
             "damaged: %s",
             status_text());
    snapshot_forget(run->snapshot);
    progress_done(&run->from.progress);
    run->from = (resume_point){0};
    run->resumes = false;
    return ST_OK;
}

/* Looks for a copy in memory that is at least as new as the newest checkpoint. */
static status find_copy(training *run)
{
    const conf *options = run->conf;
    const session *opened = &run->session;
    if (!snapshot_wanted(options))
        return ST_OK;
    TRY(snapshot_new(options, run->folder, run->world->place.local_size, opened->params,
                     opened->stream, run->world->rank_link, &run->snapshot));
    if (options->checkpoint_load_step >= 0)
        return ST_OK;
    TRY(checkpoint_writer_newest(run->folder, mesh_comm(&opened->mesh, MESH_WORLD), &run->on_disk));
    TRY(snapshot_find(run->snapshot, run->on_disk, &run->from.progress, &run->resumes));
    if (!run->resumes)
        return ST_OK;
    run->from.copy = run->snapshot;
    run->from.folder = run->folder;
    snprintf(run->from.path, sizeof run->from.path, "%s", snapshot_path(run->snapshot));
    return find_base(run);
}

/* Finds the copy or the checkpoint to go on from, the same on all ranks, and takes over its
 * progress. The options are this run's own. */
static status find_start(training *run)
{
    const conf *options = run->conf;
    if (!options->checkpoint_enable)
        return ST_OK;
    TRY(find_copy(run));
    if (!run->resumes)
        TRY(checkpoint_writer_find(run->folder, options->checkpoint_load_step,
                                   mesh_comm(&run->session.mesh, MESH_WORLD), run->world->rank_link,
                                   run->from.path, &run->from.progress, &run->resumes));
    if (!run->resumes)
        return ST_OK;
    training_log_changes(run->from.progress.config, run->now.config);
    char *config = run->now.config;
    run->now.config = NULL;
    status st = progress_copy(&run->from.progress, &run->now);
    free(run->now.config);
    run->now.config = config;
    run->now.eval_loss = NAN;
    if (st == ST_OK) /* it was checked when the checkpoint was found */
        st = bad_samples_read_text(&run->known, run->now.quarantine, run->from.path);
    if (st != ST_OK)
        return st;
    free(run->now.quarantine); /* it may have an earlier form */
    run->now.quarantine = NULL;
    return bad_samples_write(&run->known, &run->now.quarantine);
}

/* Forgets rows, cursor and bad samples of the data's earlier generation; steps and values stay. */
static status begin_generation(training *run)
{
    run->now.rows = 0;
    run->now.earlier_steps = run->now.step;
    if (run->session.schedule.steps > 0)
        log_info("the run has %" PRId64 " steps in all, %" PRId64 " of them done",
                 run->session.schedule.steps, run->now.step);
    bad_samples_done(&run->known);
    TRY(progress_set_text(&run->now.cursor, ""));
    return progress_set_text(&run->now.quarantine, "");
}

/* Plans a layout of several ranks, which fails if the layout is impossible, and prints the plan if
 * `shown`. */
static status print_layout(const plan_input *in, bool shown)
{
    FILE *to = shown ? stdout : fopen("/dev/null", "we");
    if (!to)
        return FAIL_IN(ST_OS, "/dev/null", "cannot open it: %s", strerror(errno));
    status st = layout_print(in, PLAN_SHORT, to, NULL);
    if (shown)
        fflush(stdout);
    else
        fclose(to);
    return st;
}

/* Refuses a file that is no recording. Its rows are checked later, when they are read. */
static status check_recording(const conf *options)
{
    record_reader *reader = NULL;
    if (!options->feed_replay[0])
        return ST_OK;
    status st = record_open(options->feed_replay, &reader);
    record_close(&reader);
    return st;
}

/* Whether the checkpoint is whole is checked later, by all ranks together. */
static status check_load_step(const conf *options)
{
    char folder[STATUS_PATH_MAX], step[STATUS_PATH_MAX];
    if (options->checkpoint_load_step <= 0)
        return ST_OK;
    if (!options->checkpoint_enable)
        return FAIL_IN(ST_CONFIG, conf_place(options),
                       "checkpoint.load_step %" PRId64 " names a checkpoint to go on from, but "
                       "checkpoint.enable is false, so no checkpoint is read: set it to true, or "
                       "leave checkpoint.load_step out to begin anew",
                       options->checkpoint_load_step);
    TRY(train_checkpoint_folder(options, folder));
    TRY(folder_step_path(step, folder, options->checkpoint_load_step, NULL));
    if (access(step, F_OK) != 0)
        return FAIL_IN(ST_NO_INPUT, step,
                       "checkpoint.load_step %" PRId64 ": there is no such checkpoint: name a step "
                       "that is kept beside it, or leave checkpoint.load_step out to resume from "
                       "the newest",
                       options->checkpoint_load_step);
    return ST_OK;
}

status train_check(const conf *options, int there, int here, bool shown)
{
    char why[PLAN_DEVICE_WHY];
    plan_device on;
    layout degrees;
    model_dims dims;
    params *registry;
    TRY(check_load_step(options));
    TRY(session_dims(options, &dims));
    layout_limits limits = params_limits(&dims);
    TRY(layout_of(options, &limits, &degrees));
    TRY(plan_device_here(options, here, &on, why));
    TRY(params_new(&dims, &registry));
    status st = groups_apply(options, registry);
    const plan_input in = {
        .conf = options, .layout = &degrees, .dims = &dims, .params = registry, .device = &on};
    if (st == ST_OK && degrees.world > 1)
        st = print_layout(&in, shown || degrees.world != there);
    params_free(&registry);
    TRY(st);
    TRY(check_recording(options));
    return session_check_layout(options, there);
}

/* Moves aside a page of steps that this run will do again, or of another run in its folder. */
static void rewind_page(const training *run, const char *path, bool any)
{
    char aside[STATUS_PATH_MAX];
    if (html_page_set_aside(path, html_mark_of(run->conf, run->now.step), any, aside) != ST_OK)
        log_warn("%s will be replaced: %s", path, status_text());
    else if (aside[0])
        log_info("%s is of another run, or of a step after %" PRId64 ": it is kept as %s", path,
                 run->now.step, aside);
}

/* Moves aside the lines and pages of steps that this run will do again, so that no step has two
 * lines. A disk that refuses this does not end the run. */
static status rewind_files(const training *run)
{
    static const char *const name[] = {"ledger.jsonl", "metrics.jsonl", "eval.jsonl"};
    char report[STATUS_PATH_MAX];
    TRY(hf_path(report, run->conf->job_dump_folder, "report.html"));
    rewind_page(run, report, true);
    if (run->conf->eval_page[0] && session_evaluates(run->conf))
        rewind_page(run, run->conf->eval_page, false);
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        int64_t moved;
        status st = rewind_lines(run->conf->job_dump_folder, name[i], run->now.step, &moved);
        if (st == ST_IO)
            log_warn("%s may now have two lines for some steps: %s", name[i], status_text());
        else
            TRY(st);
        if (moved > 0)
            log_info("%s: moved %" PRId64 " lines that belong to no step up to %" PRId64
                     " to set-aside-%s",
                     name[i], moved, run->now.step, name[i]);
    }
    return ST_OK;
}

/* Prints the plan of this rank, made from the shapes of the stream, and keeps it as memory.json.
 * With several ranks train_check has printed the plan made from the options alone, so one line is
 * enough. */
static status show_memory(training *run)
{
    const session *opened = &run->session;
    /* Where there is no GPU, plan is about an H200 unless an option names another. */
    const char *named = plan_device_is_cpu(&opened->planned) ? " --device cpu" : "";
    char text[MEMORY_BYTES_TEXT];
    memory_plan plan;
    TRY(session_memory_plan(opened, &plan));
    monitor_opened(run->monitor, opened, plan.total);
    if (opened->mesh.layout.world == 1)
        memory_plan_print(&plan, &opened->mesh.layout, &opened->planned, false, stdout);
    else
        printf("memory: planned %s from the shapes of the stream\n",
               memory_bytes_text(plan.total, text));
    if (plan.total != opened->planned_by_options && opened->mesh.layout.world == 1)
        printf("  %-36s %12s  planned from the options alone, as trainer plan%s does\n", "",
               memory_bytes_text(opened->planned_by_options, text), named);
    return training_is_first(run) ? plan_json_write(run->conf->job_dump_folder, &opened->planned,
                                                    &plan, opened->planned_by_options)
                                  : ST_OK;
}

/* Opens what keeps the run: copies in memory and checkpoints. */
static status open_writer(training *run)
{
    if (training_is_first(run))
        TRY(checkpoint_writer_clear_after(run->folder, run->now.step));
    TRY(session_base(&run->session));
    const status st = training_is_first(run) ? checkpoint_folder_probe(run->folder) : ST_OK;
    TRY(comm_agree(mesh_comm(&run->session.mesh, MESH_WORLD), (comm_at){"open checkpoints", -1}, st,
                   0));
    if (run->snapshot)
        TRY(snapshot_ready(run->snapshot, !run->resumes));
    /* No checkpoint says yet which base a copy in memory belongs to. */
    if (snapshot_is_on_shm(run->snapshot) && !run->resumes && training_is_first(run) &&
        base_wanted(run->session.params))
        TRY(base_write(&run->session.base, run->folder));
    TRY(checkpoint_writer_new(run->conf, run->folder, &run->session.dims, run->session.params,
                              &run->session.base, run->session.stream, run->world->rank_link,
                              run->snapshot, &run->checkpoint_writer));
    checkpoint_writer_on_saved(run->checkpoint_writer, monitor_saved, run->monitor);
    if (run->resumes)
        checkpoint_writer_set_resumed(run->checkpoint_writer, training_on_disk(run));
    training_log_parts(run);
    return ST_OK;
}

static status open_run(training *run)
{
    const conf *options = run->conf;
    peak_rate peak;
    const world_place *place = &run->world->place;
    TRY(train_check(options, place->size, place->local_size,
                    true)); /* before anything is written */
    TRY(world_log(run->world, options));
    TRY(take_folder(run));
    if (training_is_first(run))
        TRY(monitor_new(options, &run->monitor));
    if (training_is_first(run) && session_evaluates(options) && options->eval_page[0])
        TRY(page_try(options->eval_page)); /* fails now, not hours later at the first evaluation */
    TRY(session_connect(options, run->world, SESSION_TRAIN, &run->session));
    TRY(find_start(run));
    TRY(session_load(run->resumes ? &run->from : NULL, &run->session));
    if (run->resumes) {
        training_log_choices(run);
        training_log_finished(run);
    }
    if (run->session.new_generation)
        TRY(begin_generation(run));
    TRY(progress_set_text(&run->now.choices, run->session.choices));
    if (run->profiled) {
        graph_replay_free(run->session.stream); /* no graphs: calls are measured one by one */
        TRY(profile_new(run->session.stream, &run->profile));
    }
    TRY(progress_set_text(&run->now.stream_options,
                          run->session.stream_options ? run->session.stream_options : ""));
    TRY(progress_set_text(&run->now.recording,
                          run->session.recording ? run->session.recording : ""));
    groups_print(options, run->session.params, stdout);
    TRY(show_memory(run));
    if (options->checkpoint_enable)
        TRY(open_writer(run));
    TRY(speed_peak(run->session.stream, options->metrics_peak_tflops, &peak));
    if (training_is_first(run)) {
        TRY(rewind_files(run));
        TRY(ledger_open(options, &run->ledger));
    }
    const char *folder = training_is_first(run) ? options->job_dump_folder : "";
    TRY(reporter_new(options, &run->session, &peak, folder, &run->reporter));
    reporter_watch(run->reporter, run->monitor);
    return ST_OK;
}

static void close_run(training *run)
{
    checkpoint_writer_free(&run->checkpoint_writer);
    snapshot_free(&run->snapshot);
    monitor_free(&run->monitor); /* after the writer, which reports its last save to it */
    ledger_close(&run->ledger);
    reporter_free(&run->reporter);
    profile_free(&run->profile);
    session_close(&run->session);
    progress_done(&run->now);
    bad_samples_done(&run->known);
    progress_done(&run->from.progress);
    folder_unlock(&run->lock);
}

/* Writes what the steps have left; st: how they ended. */
static status finish_training(training *run, status st)
{
    const conf *options = run->conf;
    const status_note why = *status_last();
    monitor_phase(run->monitor, PHASE_ENDING);
    if (run->no_rows)
        stop_by_deadline();
    if (reporter_finish(run->reporter) != ST_OK) /* a failed line must not cost the model */
        log_warn("the last line is missing: %s", status_text());
    if (run->profile)
        profile_print(profile_read(run->profile), stdout);
    if (training_is_first(run))
        training_write_report(run, NULL);
    if (options->checkpoint_enable &&
        !run->partial) /* before the evaluation, whose failure must not cost the model */
        st = training_leave(run);
    if (st == ST_OK && run->snapshot && !run->partial)
        snapshot_finish(run->snapshot);
    if (run->no_rows)
        return training_no_rows(run, &why, st);
    TRY(st);
    if (run->bad_step)
        return FAIL(ST_BAD_INPUT,
                    "step %" PRId64
                    ": the gradient is not finite and training.nonfinite says stop: %s%s",
                    run->now.step, run->bad,
                    run->partial ? "; a part of the model was updated in this step, so it is not "
                                   "saved, and the same command resumes from the last checkpoint"
                                 : "");
    return training_result(run);
}

/* Whether this is a trial run, too short for its model to be missed. */
static bool is_short(const conf *options)
{
    return options->training_steps > 0 && options->training_steps < options->checkpoint_interval;
}

status train_run(const conf *options, const world *job, bool profiled)
{
    training run = {.conf = options, .world = job, .lock = -1, .profiled = profiled};
    status st;
    if (options->eval_enable && !session_evaluates(options))
        log_warn("eval.enable: the recording of feed.replay has no held-out rows, so there will be "
                 "no evaluation");
    if (!options->checkpoint_enable && !is_short(options) && job->place.rank == 0)
        log_warn("checkpoint.enable is false: this run keeps no model");
    TRY_OR(done, open_run(&run));
    if (run.session.mesh.layout.world > 1)
        stop_together();
    /* Up to here there is nothing to finish, so a signal may simply end the process. */
    monitor_phase(run.monitor, PHASE_TRAINING);
    TRY_OR(done, stop_listen(options->checkpoint_exit_deadline, job->place.rank == 0));
    st = training_steps(&run);
    if (st == ST_OK || run.no_rows)
        st = finish_training(&run, st);
done:
    close_run(&run);
    return st;
}
