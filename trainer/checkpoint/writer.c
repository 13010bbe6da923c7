/* writer.c: see writer.h.
 *
 * A save goes through these steps; the first rank does those marked 1, every writing rank the
 * others:
 *
 *   begin_folder 1         old checkpoints make room if they must; .step-N.writing is made
 *   take_copy              values and moments are copied to host memory; steps go on after that
 *   fill_folder            Hugging Face files, training state, adapters 1, state.json 1
 *   marks                  the others say that they are done; the first one waits for that
 *   folder_seal 1          the manifest
 *   folder_commit_step 1   the rename
 *   prune_by_policy 1      old checkpoints go
 *
 * What follows what from fill_folder on, also after a failure, is decided by core/save_core.h; this
 * file does it. All of that runs in the writer's thread, or at once if the options ask for
 * no thread. The thread reads `view`: a copy of the registry whose arrays are in the snapshot, read
 * through a stream of a CPU device. */
#include "trainer/checkpoint/writer.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/program/log.h"
#include "trainer/checkpoint/adapter.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/hf_export.h"
#include "trainer/checkpoint/hf_write.h"
#include "trainer/checkpoint/prune.h"
#include "trainer/checkpoint/rank_sync.h"
#include "trainer/checkpoint/train_state.h"
#include "trainer/model/lora_params.h"
#include "trainer/ops/open.h"

enum { VALUES, MOMENTS1, MOMENTS2, FROZEN, BLOCKS }; /* parts of a snapshot */
enum { NAP_NS = 50000000 };                          /* between two looks for another rank's mark */
static const char FILES[] =
    "its checkpoint"; /* what the others are told that this rank waits for */

struct checkpoint_writer {
    const conf *conf;
    char folder[STATUS_PATH_MAX];
    const model_dims *dims;
    params *live;
    const run_base *base; /* what it says of frozen parameters; no rows: nothing is frozen */
    stream *live_stream;
    bool background;
    together together;
    rank_link *watch;
    atomic_bool leaving; /* checkpoint_writer_free has begun */
    /* What is written: the live parameters, or in the background the snapshot. */
    params view;
    stream *view_stream;
    device *host;
    snapshot *shot;           /* has the copies, but for frozen values; NULL: own memory has them */
    param_block kept[BLOCKS]; /* in host memory; frozen values that can be read in place: none */
    bool has_frozen;          /* frozen values have been copied */

    pthread_t thread;
    bool thread_runs;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool busy, quit;      /* a save is in progress; the thread is to end */
    int64_t saves;        /* how many were begun, the same number on all ranks */
    progress todo;        /* the state that belongs to it */
    status outcome;       /* how the last save ended */
    status_note note;     /* the cause, if it failed */
    int64_t last_step;    /* of the last whole checkpoint */
    checkpoint_told told; /* NULL: no one asked for it */
    void *told_user;
};

bool checkpoint_writer_in_background(const conf *options)
{
    return options->checkpoint_enable && options->checkpoint_async_mode != CHECKPOINT_SYNC;
}

bool checkpoint_writer_whole(const conf *options)
{
    return options->lora_rank == 0 || options->lora_merge == LORA_MERGE_ALWAYS;
}

bool checkpoint_writer_reads_frozen(const conf *options)
{
    return checkpoint_writer_whole(options) && !base_has_files(options);
}

static status fill_folder(checkpoint_writer *writer, const char *path)
{
    char training[STATUS_PATH_MAX], adapter[STATUS_PATH_MAX];
    const state_writer own = writer->together.writer;
    const hf_export_options options = {.source = writer->conf->model_path,
                                       .tokenizer = writer->conf->model_tokenizer,
                                       .dtype = HF_EXPORT_AS_SOURCE,
                                       .frozen_is_source = base_has_files(writer->conf),
                                       .writer = own.rank,
                                       .writers = own.ranks};
    TRY(hf_path(training, path, FOLDER_TRAINING));
    TRY(hf_path(adapter, path, ADAPTER_FOLDER));
    if (checkpoint_writer_whole(writer->conf))
        TRY(hf_export(&writer->view, writer->view_stream, writer->dims, path, &options));
    TRY(train_state_write(&writer->view, writer->view_stream, own, training));
    if (!writer->together.first)
        return ST_OK;
    if (writer->base->count)
        TRY(base_write(writer->base, training));
    TRY(adapter_export(&writer->view, writer->view_stream, writer->conf->model_path,
                       (adapter_reader)writer->conf->lora_adapter_for, adapter));
    return progress_write(&writer->todo, training);
}

/* Makes the folder that is written into, empty. */
static status make_writing(const checkpoint_writer *writer, int64_t step)
{
    char path[STATUS_PATH_MAX], training[STATUS_PATH_MAX];
    TRY(folder_step_path(path, writer->folder, step, "writing"));
    TRY(folder_remove(path));
    TRY(hf_path(training, path, FOLDER_TRAINING));
    return file_make_folders(training);
}

/* Makes room on the disk first. That can take a while, so the other ranks are told to be patient.
 */
static status begin_folder(const checkpoint_writer *writer, int64_t step)
{
    rank_link_waits(writer->watch, FILES);
    if (prune_for_room(writer->folder, writer->last_step, writer->conf->checkpoint_keep_latest_k) !=
        ST_OK)
        log_warn("no old checkpoint can be removed to make room: %s",
                 status_text()); /* not an error: there may be enough room */
    rank_link_waits(writer->watch, NULL);
    return make_writing(writer, step);
}

/* A save under way on this rank. */
typedef struct saving {
    checkpoint_writer *writer;
    char path[STATUS_PATH_MAX], training[STATUS_PATH_MAX]; /* of the folder that is written into */
    folder_known *theirs;       /* [writers] the training files of the others */
    char text[STATUS_PATH_MAX]; /* of a mark */
} saving;

static void warn_if(status st, const char *what)
{
    if (st != ST_OK)
        log_warn("%s%s", what, status_text());
}

static bool make_room(const checkpoint_writer *writer)
{
    bool gone = false;
    warn_if(
        prune_one(writer->folder, writer->last_step, writer->conf->checkpoint_keep_latest_k, &gone),
        "no old checkpoint can be removed to make room: ");
    return gone;
}

static void prune_old(const checkpoint_writer *writer)
{
    if (prune_by_policy(writer->folder, writer->conf->checkpoint_keep_latest_k) != ST_OK)
        log_warn("old checkpoints cannot be removed: %s; the next save tries again", status_text());
}

static status look_for_mark(saving *save, int writer, save_answer *out)
{
    const together *ranks = &save->writer->together;
    if (together_told(ranks, save->writer->saves, writer, &out->mark, save->text,
                      sizeof save->text))
        return ST_OK;
    return together_look(ranks, save->training, writer, &out->mark, save->text, sizeof save->text,
                         &save->theirs[writer - 1]);
}

/* Does what the core answered, on a rank of several. */
static status do_mark(saving *save, const save_action *action, save_answer *out)
{
    const together *ranks = &save->writer->together;
    out->text = save->text;
    switch (action->kind) {
    case SAVE_DIGEST:
        return together_digest(ranks, save->training, save->text);
    case SAVE_REMOVE_OWN:
        together_remove_own(ranks, save->training);
        return ST_OK;
    case SAVE_TELL:
        together_tell(ranks, save->writer->saves, action->mark, action->text);
        return ST_OK;
    case SAVE_MARK:
        return together_mark(ranks, save->training, action->mark, action->text);
    case SAVE_LOOK:
        return look_for_mark(save, action->writer, out);
    case SAVE_UNMARK:
        return together_unmark(save->training, action->writer);
    default:
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        return ST_OK;
    }
}

static status do_action(saving *save, const save_action *action, save_answer *out)
{
    checkpoint_writer *const writer = save->writer;
    switch (action->kind) {
    case SAVE_FILL:
        return fill_folder(writer, save->path);
    case SAVE_SEAL:
        return folder_seal(save->path, save->theirs, writer->together.writer.ranks - 1);
    case SAVE_COMMIT:
        return folder_commit_step(writer->folder, writer->todo.step, action->commit, &out->absent);
    case SAVE_DISCARD: /* so that it does not fill the disk */
        warn_if(folder_remove(save->path), "");
        return ST_OK;
    case SAVE_MAKE_ROOM:
        out->gone = make_room(writer);
        return ST_OK;
    case SAVE_MAKE_FOLDER:
        return make_writing(writer, writer->todo.step);
    case SAVE_PRUNE:
        prune_old(writer);
        return ST_OK;
    default:
        return do_mark(save, action, out);
    }
}

static status write_checkpoint(checkpoint_writer *writer)
{
    const state_writer own = writer->together.writer;
    saving save = {.writer = writer};
    save_core core;
    save_answer answer = {.now_ns = clock_ns()};
    TRY(folder_step_path(save.path, writer->folder, writer->todo.step, "writing"));
    TRY(hf_path(save.training, save.path, FOLDER_TRAINING));
    save.theirs = calloc((size_t)own.ranks, sizeof *save.theirs);
    if (!save.theirs)
        return FAIL(ST_NO_MEMORY, "no memory for %d ranks' digests", own.ranks);
    save_core_begin(&core, writer->together.mesh ? writer->together.mesh->rank : 0, own.rank,
                    own.ranks);
    save_action action = save_core_next(&core, &answer);
    while (action.kind != SAVE_END) {
        answer = (save_answer){0};
        answer.code = do_action(&save, &action, &answer);
        answer.now_ns = clock_ns();
        answer.leaving = atomic_load(&writer->leaving);
        action = save_core_next(&core, &answer);
    }
    free(save.theirs);
    return action.code;
}

static void tell_outcome(const checkpoint_writer *writer, int64_t step, int64_t start_ns, status st)
{
    if (writer->told)
        writer->told(writer->told_user, step, (double)(clock_ns() - start_ns) * 1e-9, st);
}

static void save_and_tell(checkpoint_writer *writer)
{
    int64_t start = clock_ns();
    status st = write_checkpoint(writer);
    writer->outcome = st;
    tell_outcome(writer, writer->todo.step, start, st);
    if (st == ST_OK) {
        writer->last_step = writer->todo.step;
        if (writer->together.first)
            log_info("checkpoint written step=%" PRId64 " seconds=%.1f", writer->todo.step,
                     (double)(clock_ns() - start) * 1e-9);
        return;
    }
    writer->note = *status_last();
    log_error("the checkpoint of step %" PRId64
              " is not written: %s; the last whole one is of step %" PRId64,
              writer->todo.step, status_text(), writer->last_step);
}

static void *writer_thread(void *user)
{
    checkpoint_writer *writer = user;
    pthread_mutex_lock(&writer->lock);
    for (;;) {
        while (!writer->busy && !writer->quit)
            pthread_cond_wait(&writer->changed, &writer->lock);
        if (!writer->busy)
            break;
        pthread_mutex_unlock(
            &writer->lock); /* while busy, todo and snapshot belong to this thread */
        save_and_tell(writer);
        pthread_mutex_lock(&writer->lock);
        writer->busy = false;
        pthread_cond_broadcast(&writer->changed);
    }
    pthread_mutex_unlock(&writer->lock);
    return NULL;
}

static size_t bytes_of(const param_block *block)
{
    return (size_t)block->count * st_dtype_size(block->dtype);
}

int64_t checkpoint_writer_snapshot(const params_sizes *size, const backend_vtable *backend,
                                   int copies, bool with_frozen)
{
    const int64_t act = (int64_t)st_dtype_size(backend->act);
    const int64_t values =
        backend->act == backend->acc || size->act_masters ? size->trained * act : size->values;
    const int64_t frozen =
        backend->immediate || !with_frozen ? 0 : size->acts - size->trained * act;
    return copies ? copies * (values + 2 * size->moments) + frozen : 0;
}

/* The place in a block of the snapshot of what a row has in the live block. */
static void *moved(const param_block *to, const void *from, const param_block *live)
{
    return from ? (char *)to->at + ((const char *)from - (const char *)live->at) : NULL;
}

/* Frozen values are the end of the block of what is computed with. */
static char *first_frozen(const params *live)
{
    return (char *)live->acts.at + (size_t)live->trained_elements * st_dtype_size(live->acts.dtype);
}

/* Points writer->view at the copy: each array is moved from the live block to the same place in the
 * copy's block. */
static void point_view(checkpoint_writer *writer)
{
    const params *live = writer->live;
    const param_block *kept = writer->kept, frozen = {.at = first_frozen(live)};
    for (int i = 0; i < FROZEN && writer->shot; i++)
        writer->kept[i].at = snapshot_block(writer->shot, i);
    for (int64_t i = 0; i < live->count; i++) {
        const param *from = &live->list[i];
        param *to =
            &writer->view.list[i]; /* an adapter's `whole` is set by each save (take_adapters) */
        to->value = to->own_act = to->act = to->grad = to->own_grad = NULL;
        if (!from->frozen && from->value_dtype != live->values.dtype)
            to->value = moved(&kept[MOMENTS1], from->value, &live->moments1);
        else if (!from->frozen)
            to->value = moved(&kept[VALUES], from->value, &live->values);
        else
            to->own_act =
                kept[FROZEN].at ? moved(&kept[FROZEN], from->own_act, &frozen) : from->own_act;
        to->moment1 = moved(&kept[MOMENTS1], from->moment1, &live->moments1);
        to->moment2 = moved(&kept[MOMENTS2], from->moment2, &live->moments2);
        to->scale1 = moved(&kept[MOMENTS1], from->scale1, &live->moments1);
        to->scale2 = moved(&kept[MOMENTS2], from->scale2, &live->moments2);
    }
}

/* Makes writer->view, a copy of the live registry. */
static status make_view(checkpoint_writer *writer)
{
    const size_t bytes = (size_t)writer->live->count * sizeof *writer->view.list;
    writer->view = *writer->live;
    writer->view.list = malloc(bytes);
    if (!writer->view.list)
        return FAIL(ST_NO_MEMORY, "no memory for a snapshot of the parameters");
    memcpy(writer->view.list, writer->live->list, bytes);
    return ST_OK;
}

/* Whether the snapshot needs frozen values. Without the options' saying so it does if a row is
 * frozen now and was trained before. */
static bool reads_frozen(const checkpoint_writer *writer)
{
    bool reads = checkpoint_writer_reads_frozen(writer->conf);
    for (int64_t i = 0; i < writer->live->count && !reads; i++)
        reads = writer->live->list[i].frozen && !param_in_base(&writer->live->list[i]);
    return reads;
}

/* Takes host memory for what the snapshot does not have. */
static status take_memory(checkpoint_writer *writer)
{
    device *dev = writer->live_stream->dev;
    const params *live = writer->live;
    const param_block frozen = {.dtype = live->acts.dtype,
                                .count = live->block_elements - live->trained_elements};
    const param_block blocks[BLOCKS] = {
        [VALUES] = {.dtype = live->values.dtype, .count = live->trained_elements},
        [MOMENTS1] = {.dtype = live->moments1.dtype, .count = live->moments1.count},
        [MOMENTS2] = {.dtype = live->moments2.dtype, .count = live->moments2.count},
        [FROZEN] = reads_frozen(writer) && !dev->backend->immediate ? frozen : (param_block){0}};
    for (int i = 0; i < BLOCKS; i++) {
        writer->kept[i] = blocks[i];
        if (blocks[i].count && (i == FROZEN || !writer->shot))
            TRY(dev->backend->alloc_host(dev, bytes_of(&blocks[i]), &writer->kept[i].at));
    }
    return ST_OK;
}

static status open_background(checkpoint_writer *writer)
{
    TRY(take_memory(writer));
    TRY(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &writer->host));
    TRY(writer->host->backend->stream_new(writer->host, &writer->view_stream));
    TRY(make_view(writer));
    if (pthread_create(&writer->thread, NULL, writer_thread, writer) != 0)
        return FAIL(ST_OS, "the thread that writes checkpoints cannot be started");
    writer->thread_runs = true;
    return ST_OK;
}

status checkpoint_writer_try(const char *folder)
{
    TRY(file_make_folders(folder));
    if (access(folder, W_OK | X_OK) == 0)
        return ST_OK;
    return FAIL_IN(ST_CANT_CREATE, folder,
                   "checkpoints cannot be written here: %s (job.dump_folder and "
                   "checkpoint.folder set the folder)",
                   strerror(errno));
}

status checkpoint_writer_new(const conf *options, const char *folder, const model_dims *dims,
                             params *registry, const run_base *base, stream *queue,
                             rank_link *watch, snapshot *shot, checkpoint_writer **out)
{
    checkpoint_writer *writer = calloc(1, sizeof *writer);
    if (!writer)
        return FAIL(ST_NO_MEMORY, "no memory for the writer of checkpoints");
    *writer = (checkpoint_writer){.conf = options,
                                  .dims = dims,
                                  .live = registry,
                                  .base = base,
                                  .live_stream = queue,
                                  .view = *registry,
                                  .view_stream = queue,
                                  .shot = snapshot_lives(shot) ? shot : NULL,
                                  .watch = watch};
    pthread_mutex_init(&writer->lock, NULL);
    pthread_cond_init(&writer->changed, NULL);
    snprintf(writer->folder, sizeof writer->folder, "%s", folder);
    writer->together = together_of(registry, watch);
    writer->background = checkpoint_writer_in_background(options) && writer->together.writes;
    status st = writer->together.first ? checkpoint_writer_try(folder) : file_make_folders(folder);
    st = together_see(&writer->together, folder, st);
    if (st == ST_OK && writer->background)
        st = open_background(writer);
    if (st != ST_OK) {
        checkpoint_writer_free(&writer);
        return st;
    }
    *out = writer;
    return ST_OK;
}

void checkpoint_writer_free(checkpoint_writer **held)
{
    checkpoint_writer *writer = *held;
    if (!writer)
        return;
    atomic_store(&writer->leaving, true);
    if (writer->thread_runs) {
        pthread_mutex_lock(&writer->lock);
        writer->quit = true;
        pthread_cond_broadcast(&writer->changed);
        pthread_mutex_unlock(&writer->lock);
        pthread_join(writer->thread, NULL);
    }
    if (writer->background) {
        const backend_vtable *backend = writer->live_stream->dev->backend;
        for (int i = 0; i < BLOCKS; i++)
            if (writer->kept[i].at && (i == FROZEN || !writer->shot))
                backend->release_host(writer->live_stream->dev, writer->kept[i].at);
        if (writer->host && writer->view_stream != writer->live_stream)
            writer->host->backend->stream_free(&writer->view_stream);
        device_close(&writer->host);
        if (writer->view.list != writer->live->list)
            free(writer->view.list);
    }
    progress_done(&writer->todo);
    pthread_cond_destroy(&writer->changed);
    pthread_mutex_destroy(&writer->lock);
    free(writer);
    *held = NULL;
}

/* Copies to the writer's own memory what the snapshot does not have. */
static status copy_live(checkpoint_writer *writer)
{
    const backend_vtable *backend = writer->live_stream->dev->backend;
    const params *live = writer->live;
    const void *from[BLOCKS] = {live->values.at, live->moments1.at, live->moments2.at,
                                first_frozen(live)};
    for (int i = writer->shot ? FROZEN : 0; i < (writer->has_frozen ? FROZEN : BLOCKS); i++)
        if (writer->kept[i].at)
            TRY(backend->to_host(writer->live_stream, writer->kept[i].at, from[i],
                                 bytes_of(&writer->kept[i])));
    writer->has_frozen = true;
    return backend->wait(writer->live_stream);
}

/* Makes the copy that this save is written from. A snapshot has it on every rank, the writer's own
 * memory only on those that write. */
static status take_copy(checkpoint_writer *writer, const progress *state)
{
    if (writer->shot) {
        TRY(snapshot_take(writer->shot, state, false));
        snapshot_keep_side(writer->shot);
    }
    if (!writer->background)
        return ST_OK;
    TRY(copy_live(writer));
    point_view(writer);
    return ST_OK;
}

enum { SAVE_KEPT, SAVE_GO, SAVE_NO_FOLDER };

/* Gathers the adapters' values from all ranks that store them, since merging a part of a matrix
 * needs all of its adapter. */
static status take_adapters(checkpoint_writer *writer)
{
    TRY(lora_gather(writer->live, writer->live_stream));
    for (int64_t i = 0; i < writer->live->count && writer->background; i++)
        writer->view.list[i].whole = writer->live->list[i].whole;
    return ST_OK;
}

/* Begins a save: the first rank makes the folder, and *out says on all ranks what it found. */
static status begin_save(checkpoint_writer *writer, int64_t step, int32_t *out)
{
    /* The log already said how the save before this one ended. */
    bool kept = checkpoint_writer_wait(writer) == ST_OK && writer->last_step == step;
    TRY(together_settled(&writer->together, ST_OK, step));
    *out = kept ? SAVE_KEPT : SAVE_GO;
    if (!kept && writer->together.first && begin_folder(writer, step) != ST_OK) {
        writer->outcome = status_last()->code;
        writer->note = *status_last();
        tell_outcome(writer, step, clock_ns(), writer->outcome);
        log_error("the checkpoint of step %" PRId64 " is not written: %s", step, status_text());
        *out = SAVE_NO_FOLDER;
    }
    return together_agree(&writer->together, out);
}

status checkpoint_writer_save(checkpoint_writer *writer, const progress *state)
{
    int32_t begin;
    TRY(begin_save(writer, state->step, &begin));
    if (begin == SAVE_NO_FOLDER)
        return checkpoint_writer_keep(writer, state);
    if (begin != SAVE_GO)
        return ST_OK;
    writer->saves++;
    TRY(take_adapters(writer));
    TRY(take_copy(writer, state));
    if (!writer->together.writes)
        return ST_OK;
    TRY(progress_copy(state, &writer->todo));
    if (!writer->background) {
        rank_link_waits(writer->watch, FILES);
        save_and_tell(writer);
        rank_link_waits(writer->watch, NULL);
        return ST_OK;
    }
    pthread_mutex_lock(&writer->lock);
    writer->busy = true;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
    return ST_OK;
}

status checkpoint_writer_keep(checkpoint_writer *writer, const progress *state)
{
    if (!snapshot_lives(writer->shot))
        return ST_OK;
    pthread_mutex_lock(&writer->lock);
    const bool written = writer->busy;
    pthread_mutex_unlock(&writer->lock);
    return snapshot_take(writer->shot, state, written);
}

status checkpoint_writer_wait(checkpoint_writer *writer)
{
    status st = ST_OK;
    rank_link_waits(writer->watch, FILES);
    pthread_mutex_lock(&writer->lock);
    while (writer->busy)
        pthread_cond_wait(&writer->changed, &writer->lock);
    rank_link_waits(writer->watch, NULL);
    if (writer->outcome != ST_OK) {
        st = writer->outcome;
        status_set(&writer->note);
    }
    pthread_mutex_unlock(&writer->lock);
    return st;
}

status checkpoint_writer_publish(checkpoint_writer *writer, int64_t step)
{
    if (!writer->together.first)
        return ST_OK;
    rank_link_waits(writer->watch,
                    FILES); /* without hard links all files are copied, which takes long */
    status st = folder_publish(writer->folder, step);
    rank_link_waits(writer->watch, NULL);
    return st;
}

status checkpoint_writer_settle(const checkpoint_writer *writer, status mine, int64_t step)
{
    return together_settled(&writer->together, mine, step);
}

void checkpoint_writer_goes_on(checkpoint_writer *writer, int64_t from)
{
    writer->last_step = from;
}

void checkpoint_writer_tells(checkpoint_writer *writer, checkpoint_told told, void *user)
{
    writer->told = told;
    writer->told_user = user;
}

int64_t checkpoint_writer_last_step(const checkpoint_writer *writer)
{
    return writer->last_step;
}
