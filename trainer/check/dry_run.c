/* dry_run.c: sets up a dry run, plays its ranks or this process's own, and prints the table. */
#include "trainer/check/dry_run.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/visible.h"
#include "common/program/log.h"
#include "common/program/module.h"
#include "trainer/bench/text_rows.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/checkpoint/save/writer.h"
#include "trainer/check/dry_run_play.h"
#include "trainer/device/shapes.h"
#include "trainer/plan/plan_print.h"
#include "trainer/plan/layout_plan.h"

/* ---- the run's own folder, options and rows ---- */

/* Makes the folder for rows and checkpoint. Ranks that are processes share one, named after the
 * job. */
static status make_folder(dry *played)
{
    char name[HASH_TEXT], rows[32] = "rows.rec";
    if (played->world) {
        hash_print(played->world->job, name);
        snprintf(rows, sizeof rows, "rows-%d.rec", played->world->place.rank);
    }
    TRY(dry_folder_open(played->world ? name : NULL, &played->folder));
    TRY(hf_path(played->rows, played->folder.path, rows));
    return hf_path(played->written, played->folder.path, "step-1");
}

static bool is_first(const dry *played)
{
    return !played->world || played->world->place.rank == 0;
}

/* Sets the options for one step on rows of text that are written here, without anything else that a
 * run may be asked to do. */
static status set_options(dry *played)
{
    conf *options = &played->conf;
    const struct {
        const char *key, *value;
    } set[] = {{"feed.replay", played->rows},  {"eval.enable", "false"},
               {"training.steps", "1"},        {"cuda_graph.scope", "off"},
               {"checkpoint.enable", "false"}, {"comm.expert_exchange", "host"}};
    for (size_t i = 0; i < sizeof set / sizeof *set; i++)
        TRY(conf_set(options, set[i].key, set[i].value));
    const int64_t budget =
        options->data_patch_budget ? options->data_patch_budget : 4 * options->training_seq_len;
    return text_rows_record(played->rows, &played->dims, options->training_global_batch_size,
                            options->training_seq_len, 0, played->dims.vision.depth ? budget : 0);
}

static status open_dry(const conf *options, const world *job, dry *played)
{
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
    TRY(make_folder(played));
    return set_options(played);
}

/* After a success of all ranks, the first one removes the shared folder. After a failure every rank
 * removes it, so that the last one to end leaves nothing behind. */
static void close_dry(dry *played, bool well)
{
    dry_folder_close(&played->folder, well && !is_first(played));
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
        TRY(check_files(played));
    }
    const resume_point from = written_point(played);
    return dry_play(played, rank, &from);
}

static status play(const conf *options, const world *job, const plan_device *planned)
{
    dry played = {0};
    status st;
    TRY_OR(done, open_dry(options, job, &played));
    printf("dry run: %s, %" PRId64 " parameters in %" PRId64 " tensors, %" PRId64
           " ranks %s; nothing is computed\n",
           escape_text(played.dims.name).text, played.whole->total, played.whole->count,
           played.layout.world, job ? "in processes of their own" : "one after another");
    played.planned = planned;
    plan_input in = dry_plan_input(&played);
    in.conf = options; /* the plan includes evaluation and checkpoints, which are not played */
    TRY_OR(done, layout_print(&in, PLAN_FULL, stdout, NULL));
    fflush(stdout);
    TRY_OR(done, job ? play_own(&played) : play_all(&played));
    dry_checks_print(&played.checks, played.layout.pipeline, stdout);
done:
    close_dry(&played, st == ST_OK);
    return st;
}

/* ---- entry ---- */

/* The device is one without storage (dry_run), but the options and the engine are those of GPUs. */
void dry_run_set(conf *options)
{
    options->training_backend = BACKEND_CUDA;
    options->comm_engine = ENGINE_NCCL;
    if (options->log_level > LOG_WARN) /* the user reads the table, not the log of every rank */
        options->log_level = LOG_WARN;
    log_set_level((int)options->log_level);
}

/* Finds the library that stands in for NCCL. It is used even where NCCL is installed, since ranks
 * without storage have no bytes for NCCL to move. */
static status find_double(char *out, size_t size)
{
    static const char where_built[] = "where nvcc and nccl.h are found";
    status st = module_find("libtessera_nccl.so", "NCCL engine", where_built, out, size);
    if (st == ST_OK)
        st = module_find("libtessera_nccl_double.so", "library that stands in for NCCL",
                         where_built, out, size);
    return st == ST_OK
               ? st
               : status_context(st, "the ranks of a dry run can only be processes where the "
                                    "NCCL engine was built; without --nproc one process "
                                    "plays them all");
}

status dry_run(conf *options, const plan_device *planned)
{
    static char library[PATH_MAX]; /* static, since the engine keeps a pointer to it */
    world_place place;
    world job;
    TRY(world_place_find(&place));
    const bool alone = place.size == 1;
    dry_run_set(options);
    if (!alone)
        TRY(find_double(library, sizeof library));
    TRY(world_open_on(options, BACKEND_SHAPES, alone ? NULL : library, &job));
    job.claims = plan_device_claims(planned);
    world_fit(&job, options);
    return world_close(&job, play(options, alone ? NULL : &job, planned));
}
