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
#include "trainer/checkpoint/hf_write.h"
#include "trainer/check/dry_run_play.h"
#include "trainer/device/shapes.h"
#include "trainer/plan/plan_print.h"
#include "trainer/plan/stage_plan.h"

/* ---- the run's own folder, options and rows ---- */

/* Makes the folder for rows and checkpoint. Ranks that are processes share one, named after the
 * job. */
static status make_folder(dry *d)
{
    char name[HASH_TEXT], rows[32] = "rows.rec";
    if (d->world) {
        hash_print(d->world->job, name);
        snprintf(rows, sizeof rows, "rows-%d.rec", d->world->place.rank);
    }
    TRY(dry_folder_open(d->world ? name : NULL, &d->folder));
    TRY(hf_path(d->rows, d->folder.path, rows));
    return hf_path(d->written, d->folder.path, "step-1");
}

static bool is_first(const dry *d)
{
    return !d->world || d->world->place.rank == 0;
}

/* Sets the options for one step on rows of text that are written here, without anything else that a
 * run may be asked to do. */
static status set_options(dry *d)
{
    conf *c = &d->conf;
    const struct {
        const char *key, *value;
    } set[] = {{"feed.replay", d->rows},         {"eval.enable", "false"},
               {"training.steps", "1"},          {"cuda_graph.scope", "off"},
               {"checkpoint.enable", "false"},   {"metrics.comm_ledger", "false"},
               {"comm.expert_exchange", "host"}, {"lora.random_base", "true"}};
    for (size_t i = 0; i < sizeof set / sizeof *set; i++)
        TRY(conf_set(c, set[i].key, set[i].value));
    const int64_t budget = c->data_patch_budget ? c->data_patch_budget : 4 * c->training_seq_len;
    return text_rows_record(d->rows, &d->dims, c->training_global_batch_size, c->training_seq_len,
                            0, d->dims.vision.depth ? budget : 0);
}

static status open_dry(const conf *c, const world *w, dry *d)
{
    d->world = w;
    TRY(conf_copy(c, &d->conf));
    TRY(session_dims(c, &d->dims));
    const layout_limits limits = params_limits(&d->dims);
    TRY(layout_of(c, &limits, &d->layout));
    TRY(params_new(&d->dims, &d->whole));
    TRY(groups_apply(c, d->whole));
    TRY(stage_plan(c, &d->dims, d->whole, &d->layout));
    TRY(dry_source_open(d->whole, c->model_path, &d->source));
    TRY(dry_owners_new(d->whole->count, (int)d->layout.world, &d->owners));
    if (!w) {
        d->counts = calloc((size_t)d->layout.world, sizeof *d->counts);
        if (!d->counts)
            return FAIL(ST_NO_MEMORY, "no memory for %" PRId64 " ranks", d->layout.world);
    }
    TRY(make_folder(d));
    return set_options(d);
}

/* After a success of all ranks, the first one removes the shared folder. After a failure every rank
 * removes it, so that the last one to end leaves nothing behind. */
static void close_dry(dry *d, bool well)
{
    dry_folder_close(&d->folder, well && !is_first(d));
    free(d->counts);
    dry_source_close(&d->source);
    dry_owners_free(&d->owners);
    params_free(&d->whole);
    conf_done(&d->conf);
}

/* ---- playing the ranks ---- */

static status check_files(dry *d)
{
    return dry_check_files(&d->checks, &d->source, d->whole,
                           (int)(d->layout.world / d->layout.replicate), d->written);
}

static resume_point written_point(const dry *d)
{
    resume_point from = {.progress = {.step = 1, .rows = d->conf.training_global_batch_size}};
    snprintf(from.path, sizeof from.path, "%s", d->written);
    return from;
}

static status play_all(dry *d)
{
    const int last = (int)d->layout.world - 1;
    for (int rank = 0; rank <= last; rank++)
        TRY(dry_play(d, rank, NULL));
    for (int rank = 0; rank <= last; rank++)
        for (int g = 0; g < d->counts[rank].count; g++) {
            d->checks.sent += d->counts[rank].group[g].sent;
            d->checks.received += d->counts[rank].group[g].received;
        }
    TRY(dry_check(&d->checks, DRY_SENT, d->checks.sent, d->checks.received));
    TRY(dry_owners_check(&d->checks, &d->owners, d->whole, &d->layout));
    TRY(check_files(d));
    const resume_point from = written_point(d);
    TRY(dry_play(d, 0, &from));
    return last > 0 ? dry_play(d, last, &from) : ST_OK;
}

/* Plays this process's own rank. Rank 0 then checks what all ranks have written. */
static status play_own(dry *d)
{
    const int rank = d->world->place.rank;
    TRY(dry_play(d, rank, NULL));
    if (rank == 0) {
        TRY(dry_owners_check(&d->checks, &d->owners, d->whole, &d->layout));
        TRY(check_files(d));
    }
    const resume_point from = written_point(d);
    return dry_play(d, rank, &from);
}

static status play(const conf *c, const world *w, const plan_device *planned)
{
    dry d = {0};
    status st;
    TRY_OR(done, open_dry(c, w, &d));
    printf("dry run: %s, %" PRId64 " parameters in %" PRId64 " tensors, %" PRId64
           " ranks %s; nothing is computed\n",
           escape_text(d.dims.name).text, d.whole->total, d.whole->count, d.layout.world,
           w ? "in processes of their own" : "one after another");
    d.planned = planned;
    plan_input in = dry_plan_input(&d);
    in.conf = c; /* the plan includes evaluation and checkpoints, which are not played */
    TRY_OR(done, layout_print(&in, true, stdout, NULL));
    fflush(stdout);
    TRY_OR(done, w ? play_own(&d) : play_all(&d));
    dry_checks_print(&d.checks, d.layout.pipeline, stdout);
done:
    close_dry(&d, st == ST_OK);
    return st;
}

/* ---- entry ---- */

/* The device is one without storage (dry_run), but the options and the engine are those of GPUs. */
void dry_run_set(conf *c)
{
    c->training_backend = BACKEND_CUDA;
    c->comm_engine = ENGINE_NCCL;
    if (c->log_level > LOG_WARN) /* the user reads the table, not the log of every rank */
        c->log_level = LOG_WARN;
    log_set_level((int)c->log_level);
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

status dry_run(conf *c, const plan_device *planned)
{
    static char library[PATH_MAX]; /* static, since the engine keeps a pointer to it */
    world_place place;
    world w;
    TRY(world_place_find(&place));
    const bool alone = place.size == 1;
    dry_run_set(c);
    if (!alone)
        TRY(find_double(library, sizeof library));
    TRY(world_open_on(c, BACKEND_SHAPES, alone ? NULL : library, &w));
    w.claims = plan_device_claims(planned);
    world_fit(&w, c);
    return world_close(&w, play(c, alone ? NULL : &w, planned));
}
