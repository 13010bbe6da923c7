/* SPDX-License-Identifier: Apache-2.0 */
/* dry_run.c: runs all ranks of a layout on devices without storage, and compares each of them with
 * what trainer plan says.
 *
 *   dry_ranks FOLDER DEVICE all|step [--section.key VALUE ..]
 *
 * DEVICE is the GPU that the ranks would have, as in trainer plan --device. Alone, the process
 * plays the ranks one after another, with an engine that counts calls (comm_count.h). Started as
 * one of several ranks, it is one of them, with the NCCL engine on top of a library that moves
 * nothing (tests/nccl/double) and compares the ranks' calls. The run makes one step of full rows of
 * text, with the capacities of the configuration, and with `all` one checkpoint of zeros in FOLDER.
 * It prints a table; what differs ends it.
 *
 *   what must hold                                  how it is checked
 *   each stored element belongs to one rank         params.own_* of all ranks against the registry
 *   a rank reads its own slices and no more         bytes its loader read against those slices
 *   memory is what the plan says                    allocations, and the run's own plan, against
 *                                                   plan/layout_plan.h
 *   a step's collectives are what the formula says  the ledger against plan/received.h
 *   ranks of a group make the same calls in order   each rank's against the group's first rank's
 *   a checkpoint is whole                           its files are opened again; ranks resume from
 * it
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/words.h"
#include "common/program/log.h"
#include "tests/dry_run/dry_run_play.h"
#include "tests/dry_run/without_storage.h"
#include "trainer/bench/bench.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/checkpoint/save/writer.h"
#include "trainer/plan/plan_print.h"
#include "trainer/plan/layout_plan.h"

/* ---- options and rows ---- */

/* Sets the options for one step on rows of text that are written here, without anything else that a
 * run may be asked to do. */
static status set_options(dry *played)
{
    conf *options = &played->conf;
    const struct {
        const char *key, *value;
    } set[] = {{"feed.replay", played->rows},  {"eval.enable", "false"},
               {"training.steps", "1"},        {"cuda_graph.scope", "off"},
               {"checkpoint.enable", "false"}, {"comm.expert_exchange", "host"},
               {"lora.random_base", "true"}};
    for (size_t i = 0; i < sizeof set / sizeof *set; i++)
        TRY(conf_set(options, set[i].key, set[i].value));
    const int64_t budget =
        options->data_patch_budget ? options->data_patch_budget : 4 * options->training_seq_len;
    return text_rows_record(played->rows, &played->dims, options->training_global_batch_size,
                            options->training_seq_len, 0, played->dims.vision.depth ? budget : 0);
}

static status open_dry(const conf *options, const world *job, dry *played)
{
    char rows[32];
    played->world = job;
    TRY(conf_copy(options, &played->conf));
    TRY(session_dims(options, &played->dims));
    const layout_limits limits = params_limits(&played->dims);
    TRY(layout_of(options, &limits, &played->layout));
    TRY(params_new(&played->dims, &played->whole));
    TRY(groups_apply(options, played->whole));
    TRY(stage_plan(options, &played->dims, played->whole, &played->layout));
    TRY(dry_source_open(played->whole, options->model_path, &played->source));
    TRY(dry_owners_new(played->whole->count, (int)played->layout.world, &played->owners));
    if (!job) {
        played->counts = calloc((size_t)played->layout.world, sizeof *played->counts);
        if (!played->counts)
            return FAIL(ST_NO_MEMORY, "no memory for %" PRId64 " ranks", played->layout.world);
    }
    TRY(hf_path(played->written, played->folder, "step-1"));
    snprintf(rows, sizeof rows, "rows-%d.rec", job ? job->place.rank : 0);
    TRY(hf_path(played->rows, played->folder, rows));
    return set_options(played);
}

static void close_dry(dry *played)
{
    free(played->counts);
    dry_source_close(&played->source);
    dry_owners_free(&played->owners);
    params_free(&played->whole);
    conf_done(&played->conf);
}

/* ---- playing the ranks ---- */

static status check_files(dry *played)
{
    return dry_check_files(&played->checks, &played->source, played->whole,
                           (int)(played->layout.world / played->layout.replicate),
                           checkpoint_writer_whole(&played->conf, played->whole), played->written);
}

static resume_point written_point(const dry *played)
{
    resume_point from = {.progress = {.step = 1, .rows = played->conf.training_global_batch_size}};
    snprintf(from.path, sizeof from.path, "%s", played->written);
    return from;
}

static status play_all(dry *played)
{
    const int last = (int)played->layout.world - 1;
    for (int rank = 0; rank <= last; rank++)
        TRY(dry_play(played, rank, NULL));
    for (int rank = 0; rank <= last; rank++)
        for (int world_size = 0; world_size < played->counts[rank].count; world_size++) {
            played->checks.sent += played->counts[rank].group[world_size].sent;
            played->checks.received += played->counts[rank].group[world_size].received;
        }
    TRY(dry_check(&played->checks, DRY_SENT, played->checks.sent, played->checks.received));
    TRY(dry_owners_check(&played->checks, &played->owners, played->whole, &played->layout));
    if (!played->files)
        return ST_OK;
    TRY(check_files(played));
    const resume_point from = written_point(played);
    TRY(dry_play(played, 0, &from));
    return last > 0 ? dry_play(played, last, &from) : ST_OK;
}

/* Plays this process's own rank. Rank 0 then checks what all ranks have written. */
static status play_own(dry *played)
{
    const int rank = played->world->place.rank;
    TRY(dry_play(played, rank, NULL));
    if (rank == 0) {
        TRY(dry_owners_check(&played->checks, &played->owners, played->whole, &played->layout));
        if (played->files)
            TRY(check_files(played));
    }
    if (!played->files)
        return ST_OK;
    const resume_point from = written_point(played);
    return dry_play(played, rank, &from);
}

static status play(const conf *options, const world *job, const plan_device *planned,
                   const char *folder, bool files)
{
    dry played = {.planned = planned, .folder = folder, .files = files};
    status st;
    TRY_OR(done, open_dry(options, job, &played));
    printf("dry run: %s, %" PRId64 " parameters in %" PRId64 " tensors, %" PRId64
           " ranks %s; nothing is computed\n",
           escape_text(played.dims.name).text, played.whole->total, played.whole->count,
           played.layout.world, job ? "in separate processes" : "one after another");
    plan_input in = dry_plan_input(&played);
    in.conf = options; /* the plan includes evaluation and checkpoints, which are not played */
    TRY_OR(done, layout_print(&in, PLAN_FULL, stdout, NULL));
    fflush(stdout);
    TRY_OR(done, job ? play_own(&played) : play_all(&played));
    dry_checks_print(&played.checks, played.layout.pipeline, stdout);
done:
    close_dry(&played);
    return st;
}

/* ---- entry ---- */

static status run(conf *options, const char *folder, const char *card, bool files)
{
    plan_device planned;
    world_place place;
    world job;
    options->training_backend = BACKEND_CUDA;
    options->comm_engine = ENGINE_NCCL;
    TRY(world_place_find(&place));
    TRY(plan_device_named(card, &planned));
    without_storage_like = &planned;
    if (place.size == 1)
        return play(options, NULL, &planned, folder, files);
    TRY(world_open(options, &job));
    world_fit(&job, options);
    return world_close(&job, play(options, &job, &planned, folder, files));
}

int main(int argc, char **argv)
{
    conf options;
    log_init("dry run", LOG_WARN, false);
    status st = conf_load(&options, &argc, argv);
    if (st == ST_OK && argc != 4)
        st = FAIL(ST_USAGE, "dry_ranks FOLDER DEVICE all|step [--section.key VALUE ..]");
    if (st == ST_OK) {
        options.log_level = LOG_WARN;
        st = run(&options, argv[1], argv[2], strcmp(argv[3], "all") == 0);
        conf_done(&options);
    }
    if (st != ST_OK)
        fprintf(stderr, "%s\n", status_text());
    return status_exit_code(st);
}
