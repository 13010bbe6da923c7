/* SPDX-License-Identifier: Apache-2.0 */
/* snapshot.c: see snapshot.h. */
#include "trainer/checkpoint/save/snapshot.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/program/log.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/checkpoint/save/snapshot_file.h"
#include "trainer/device/pool.h"
#include "trainer/model/params/params_states.h"
#include "trainer/parallel/comm/comm.h"

/* In the folder of checkpoints: the id of the run, which a copy in memory must have too. */
#define SNAPSHOT_RUN_FILE ".run"

struct snapshot {
    const conf *conf;
    const char *folder; /* of checkpoints */
    params *registry;
    stream *queue;
    rank_link *watch;
    int local_ranks; /* of the job, on this machine */
    comm alone;
    const comm *all; /* all ranks */
    char path[STATUS_PATH_MAX];
    char *layout; /* the text of shape; heap */
    snapshot_shape shape;
    snapshot_file *file; /* NULL: none */
    bool on_shm, pinned;
    int newest; /* the side that was written last */
    int kept;   /* the side that a checkpoint is written from */
    bool found; /* snapshot_find has found `newest` */

    pthread_t thread; /* hashes `newest` */
    bool hashes;      /* it runs */
    int64_t step;     /* of that copy */
    char *text;       /* its state; heap */
    status outcome;   /* of the last copy; the first failure stays */
    status_note note; /* its cause */
};

/* ---- keeping copies ---- */

static const comm_at AT = {"keep a copy in memory", -1};
static const comm_at FIND = {"look for a copy in memory", -1};
static const double GIB = 1073741824.0;
enum { STATE_BLOCKS = 3 }; /* values and two moments */

/* Reads the id of the run that checkpoints in this folder belong to, the same on all ranks; all
 * zeros if it has none. */
static status read_run_id(snapshot *shot)
{
    char path[STATUS_PATH_MAX], text[HASH_TEXT] = "";
    hash128 id = {{0}};
    if (shot->all->rank == 0) {
        TRY(hf_path(path, shot->folder, SNAPSHOT_RUN_FILE));
        FILE *file = fopen(path, "re");
        if (file && fread(text, 1, HASH_TEXT - 1, file) == HASH_TEXT - 1)
            hash_parse(text, &id);
        if (file)
            fclose(file);
    }
    TRY(comm_host_broadcast(shot->all, FIND, &id, sizeof id, 0));
    shot->shape.run = id;
    return ST_OK;
}

bool snapshot_wanted(const conf *options)
{
    return options->checkpoint_enable && options->checkpoint_async_mode != CHECKPOINT_SYNC &&
           options->checkpoint_memory_folder[0];
}

/* The blocks of device memory that a copy is made of; of values the trained ones. */
static void *device_block(const params *registry, int block)
{
    void *const blocks[STATE_BLOCKS] = {registry->values.at, registry->moments1.at,
                                        registry->moments2.at};
    return blocks[block];
}

static void print_slice(FILE *to, const slice *held)
{
    for (int i = 0; i < SLICE_AXES; i++)
        fprintf(to, " %" PRId64 ":%" PRId64 "/%" PRId64, held->first[i], held->count[i],
                held->size[i]);
}

/* *out: names and sizes of what this rank stores, in heap memory. Two ranks with the same text have
 * the same blocks. */
static status layout_text(const params *registry, const comm *all, st_dtype dtype, char **out)
{
    size_t size;
    FILE *to = open_memstream(out, &size);
    if (!to)
        return FAIL(ST_NO_MEMORY, "no memory for the layout of a snapshot");
    fprintf(to, "rank %d of %d, %s%s%s\n", all->rank, all->size, st_dtype_name(dtype),
            registry->coded ? ", coded moments by unit" : "",
            registry->act_masters ? ", masters as computed with, by unit" : "");
    for (int64_t i = 0; i < registry->count; i++) {
        const param *row = &registry->list[i];
        if (row->elsewhere)
            continue;
        fprintf(to, "%s%s", row->name, row->frozen ? " frozen" : "");
        print_slice(to, &row->held);
        fprintf(to, " %" PRId64 "+%" PRId64 " span %" PRId64 "\n", row->own_first, row->own_n,
                row->span);
    }
    if (fclose(to) == 0)
        return ST_OK;
    free(*out);
    *out = NULL;
    return FAIL(ST_NO_MEMORY, "no memory for the layout of a snapshot");
}

/* The file is named after the folder of checkpoints, so that a run finds it again. */
static status name_file(snapshot *shot)
{
    const char *memory = shot->conf->checkpoint_memory_folder;
    char *dump = realpath(shot->conf->job_dump_folder, NULL);
    char name[HASH_TEXT + 64], digest[HASH_TEXT], folder[STATUS_PATH_MAX];
    if (!dump)
        return FAIL_IN(ST_NO_INPUT, shot->conf->job_dump_folder, "%s", strerror(errno));
    const status st = hf_path(folder, dump, "checkpoint");
    free(dump);
    TRY(st);
    hash_print(hash_bytes(folder, strlen(folder)), digest);
    snprintf(name, sizeof name, "tessera-snapshot-%.16s-rank-%d", digest, shot->all->rank);
    TRY(file_make_folders(memory));
    return hf_path(shot->path, memory, name);
}

static status describe(snapshot *shot)
{
    const backend_vtable *backend = shot->queue->dev->backend;
    params_sizes sizes;
    TRY(params_size(shot->registry, backend, true, &sizes)); /* sets what this rank stores */
    TRY(layout_text(shot->registry, shot->all, backend->acc, &shot->layout));
    const int64_t values = backend->act == backend->acc || sizes.act_masters
                               ? sizes.trained * (int64_t)st_dtype_size(backend->act)
                               : sizes.values;
    shot->shape = (snapshot_shape){.layout = shot->layout,
                                   .blocks = STATE_BLOCKS,
                                   .bytes = {values, sizes.moments, sizes.moments}};
    return ST_OK;
}

status snapshot_new(const conf *options, const char *folder, int local_ranks, params *registry,
                    stream *queue, rank_link *watch, snapshot **out)
{
    snapshot *shot = calloc(1, sizeof *shot);
    if (!shot)
        return FAIL(ST_NO_MEMORY, "no memory for a snapshot");
    *shot = (snapshot){.conf = options,
                       .folder = folder,
                       .local_ranks = local_ranks,
                       .registry = registry,
                       .queue = queue,
                       .watch = watch,
                       .alone = comm_alone("snapshot"),
                       .newest = SNAPSHOT_SIDES - 1,
                       .kept = SNAPSHOT_SIDES - 1};
    shot->all = registry->mesh ? mesh_comm(registry->mesh, MESH_WORLD) : &shot->alone;
    status st = name_file(shot);
    if (st == ST_OK)
        st = describe(shot);
    st = comm_agree(shot->all, AT, st, 0);
    if (st == ST_OK)
        st = read_run_id(shot);
    if (st != ST_OK)
        snapshot_free(&shot);
    else
        *out = shot;
    return st;
}

void snapshot_forget(snapshot *shot)
{
    shot->found = false;
    snapshot_file_close(&shot->file);
}

const char *snapshot_path(const snapshot *shot)
{
    return shot->path;
}

bool snapshot_is_on_shm(const snapshot *shot)
{
    return shot && shot->on_shm;
}

status snapshot_load(const snapshot *shot, params *registry)
{
    const backend_vtable *backend = shot->queue->dev->backend;
    for (int i = 0; i < shot->shape.blocks; i++) {
        TRY(backend->to_device(shot->queue, device_block(registry, i),
                               snapshot_file_block(shot->file, shot->newest, i),
                               (size_t)shot->shape.bytes[i]));
        registry->bytes_read += shot->shape.bytes[i];
    }
    TRY(backend->wait(shot->queue));
    return params_refresh(registry, shot->queue);
}

/* Gives the run an id of its own if it begins, or if it went on from a checkpoint that has none. */
static status settle_id(snapshot *shot, bool begins)
{
    static const hash128 none;
    char text[HASH_TEXT];
    status st = ST_OK;
    if (!begins && !hash_equal(shot->shape.run, none))
        return ST_OK;
    if (shot->all->rank == 0 &&
        getrandom(&shot->shape.run, sizeof shot->shape.run, 0) != (ssize_t)sizeof shot->shape.run)
        st = FAIL(ST_OS, "getrandom: %s", strerror(errno));
    if (shot->all->rank == 0 && st == ST_OK)
        st = file_make_folders(shot->folder);
    if (shot->all->rank == 0 && st == ST_OK) {
        hash_print(shot->shape.run, text);
        st = hf_write_text(shot->folder, SNAPSHOT_RUN_FILE, text, strlen(text));
    }
    TRY(comm_agree(shot->all, AT, st, 0));
    return comm_host_broadcast(shot->all, AT, &shot->shape.run, sizeof shot->shape.run, 0);
}

/* Removes copies that this run does not resume from: the one in the place of its own, and
 * those of ranks that it does not have. */
static void log_replaced(const snapshot *shot)
{
    const size_t length = strlen(shot->path) - strlen(strrchr(shot->path, '-') + 1);
    char path[STATUS_PATH_MAX];
    for (int rank = shot->all->rank;; rank += shot->all->size) {
        if (snprintf(path, sizeof path, "%.*s%d", (int)length, shot->path, rank) >=
                (int)sizeof path ||
            access(path, F_OK) != 0)
            return;
        log_warn("%s: this copy in memory, which the run does not resume from, %s", path,
                 rank == shot->all->rank ? "is replaced" : "is removed");
        if (unlink(path) != 0)
            log_warn("%s: %s", path, strerror(errno));
    }
}

/* Takes the room, or keeps the file whose step was loaded. */
static status take_room(snapshot *shot)
{
    if (shot->found)
        return snapshot_file_begin(shot->file, 1 - shot->newest);
    snapshot_file_close(&shot->file);
    log_replaced(shot);
    /* All ranks look before any of them takes its room. */
    TRY(comm_agree(
        shot->all, AT,
        snapshot_file_room(shot->conf->checkpoint_memory_folder, &shot->shape, shot->local_ranks),
        0));
    return snapshot_file_make(shot->path, &shot->shape, &shot->file);
}

static status pin(snapshot *shot)
{
    device *dev = shot->queue->dev;
    int64_t bytes;
    void *memory = snapshot_file_memory(shot->file, &bytes);
    if (!dev->backend->pin || bytes == 0)
        return ST_OK;
    TRY(dev->backend->pin(dev, memory, (size_t)bytes));
    shot->pinned = true;
    return ST_OK;
}

static void drop_file(snapshot *shot, bool removed)
{
    int64_t bytes;
    if (!shot->file)
        return;
    if (shot->pinned) { /* else the stream may be gone: a run that fails while it opens closes it */
        device *dev = shot->queue->dev;
        dev->backend->unpin(dev, snapshot_file_memory(shot->file, &bytes));
    }
    shot->pinned = false;
    if (removed && unlink(shot->path) != 0 && errno != ENOENT)
        log_warn("%s: this copy is no longer needed and cannot be removed: %s", shot->path,
                 strerror(errno));
    snapshot_file_close(&shot->file);
}

static void log_ready(const snapshot *shot)
{
    char when[64] = "";
    if (shot->conf->checkpoint_memory_interval > 0)
        snprintf(when, sizeof when, "every %" PRId64 " steps and ",
                 shot->conf->checkpoint_memory_interval);
    log_info("a copy of values and moments is kept in %s %swith each checkpoint, to resume from "
             "after a crash; it takes %.3f GiB of memory until the run ends",
             shot->path, when, (double)snapshot_file_bytes(&shot->shape) / GIB);
}

status snapshot_ready(snapshot *shot, bool begins)
{
    TRY(settle_id(shot, begins));
    if (begins)
        shot->found = false;
    status st = take_room(shot);
    if (st == ST_OK)
        st = pin(shot);
    st = comm_agree(shot->all, AT, st == ST_OK ? ST_OK : ST_CANT_CREATE, 0);
    shot->on_shm = st == ST_OK;
    if (st == ST_OK) {
        log_ready(shot);
        return ST_OK;
    }
    drop_file(shot, true);
    if (st != ST_CANT_CREATE)
        return st;
    log_warn("after a crash this run can resume only from the disk, since no copy is kept in "
             "checkpoint.memory_folder: %s",
             status_text());
    return ST_OK;
}

static void *hash_copy(void *user)
{
    snapshot *shot = user;
    const status st = snapshot_file_end(shot->file, shot->newest, shot->step, shot->text);
    shot->outcome = st;
    if (st != ST_OK)
        shot->note = *status_last();
    return NULL;
}

/* Waits until the last copy is hashed; returns how that went. */
static status wait_hashed(snapshot *shot)
{
    if (shot->hashes)
        pthread_join(shot->thread, NULL);
    shot->hashes = false;
    free(shot->text);
    shot->text = NULL;
    if (shot->outcome != ST_OK)
        status_set(&shot->note);
    return shot->outcome;
}

/* Tells whether some rank is still writing a checkpoint from its copy. */
static status any_writes(const snapshot *shot, bool written, bool *out)
{
    const int32_t mine = written;
    int32_t *of = calloc((size_t)shot->all->size, sizeof *of);
    if (!of)
        return FAIL(ST_NO_MEMORY, "no memory for the answers of %d ranks", shot->all->size);
    of[0] = mine;
    status st =
        shot->all->size > 1 ? comm_host_all_gather(shot->all, AT, &mine, of, sizeof mine) : ST_OK;
    *out = false;
    for (int i = 0; i < shot->all->size && st == ST_OK; i++)
        *out |= of[i] != 0;
    free(of);
    return st;
}

static status copy_blocks(const snapshot *shot)
{
    const backend_vtable *backend = shot->queue->dev->backend;
    TRY(states_settle(shot->registry, shot->queue));
    for (int i = 0; i < shot->shape.blocks; i++)
        TRY(backend->to_host(shot->queue, snapshot_file_block(shot->file, shot->newest, i),
                             device_block(shot->registry, i), (size_t)shot->shape.bytes[i]));
    return backend->wait(shot->queue);
}

/* A copy that cannot be hashed or described costs only the way back from memory. The mapped blocks
 * stay in use for checkpoints. */
static void give_up(snapshot *shot)
{
    shot->on_shm = false;
    unlink(shot->path);
    log_warn("from now on, after a crash this run can resume only from the disk: %s",
             status_text());
}

static status begin_hashing(snapshot *shot, const progress *state)
{
    shot->step = state->step;
    TRY(progress_text(state, &shot->text));
    if (pthread_create(&shot->thread, NULL, hash_copy, shot) != 0)
        return FAIL(ST_OS, "the thread that hashes copies cannot be started");
    shot->hashes = true;
    return ST_OK;
}

/* All ranks have hashed the last copy, or give it up. */
static status settle_hashes(snapshot *shot, int64_t step)
{
    status st = wait_hashed(shot);
    if (!shot->on_shm)
        return ST_OK;
    st = comm_agree(shot->all, AT, st == ST_OK ? ST_OK : ST_IO, step);
    if (st != ST_IO)
        return st;
    give_up(shot);
    return ST_OK;
}

status snapshot_take(snapshot *shot, const progress *state, bool written)
{
    bool busy;
    TRY(settle_hashes(shot, state->step));
    TRY(any_writes(shot, written, &busy));
    shot->newest = 1 - (busy ? shot->kept : shot->newest);
    status st = shot->on_shm ? snapshot_file_begin(shot->file, shot->newest) : ST_OK;
    TRY(copy_blocks(shot));
    if (st == ST_OK && shot->on_shm)
        st = begin_hashing(shot, state);
    if (st != ST_OK) { /* the other ranks learn of it in the next call */
        shot->outcome = st;
        shot->note = *status_last();
    }
    return ST_OK;
}

void snapshot_keep_side(snapshot *shot)
{
    shot->kept = shot->newest;
}

void *snapshot_block(const snapshot *shot, int block)
{
    return snapshot_file_block(shot->file, shot->kept, block);
}

void snapshot_finish(snapshot *shot)
{
    if (wait_hashed(shot) != ST_OK)
        status_clear(); /* it goes all the same */
    if (shot->on_shm)
        unlink(shot->path);
    shot->on_shm = false;
}

void snapshot_free(snapshot **held)
{
    snapshot *shot = *held;
    if (!shot)
        return;
    const bool is_whole = wait_hashed(shot) == ST_OK && shot->on_shm &&
                          snapshot_file_step(shot->file, shot->newest) > 0;
    if (is_whole)
        log_event(shot->all->rank == 0 ? LOG_WARN : LOG_INFO,
                  "%s keeps step %" PRId64 " in %.3f GiB of memory: the same command resumes "
                  "from it; remove it if you will not",
                  shot->path, snapshot_file_step(shot->file, shot->newest),
                  (double)snapshot_file_bytes(&shot->shape) / GIB);
    drop_file(shot, shot->on_shm && !is_whole);
    free(shot->layout);
    free(shot);
    *held = NULL;
}

/* ---- finding the copy of an earlier process: every rank opens its own file; then all of them
 * compare which steps they have ---- */

enum { CHECK_THREADS = 8 };

/* What a rank has: the steps of its sides, 0 for one that is not whole. */
typedef struct own_steps {
    int64_t there; /* it has a file, usable or not */
    int64_t step[SNAPSHOT_SIDES];
} own_steps;

/* *mine: why this rank can use nothing. */
static own_steps open_own(snapshot *shot, status *mine)
{
    own_steps own = {.there = access(shot->path, F_OK) == 0};
    *mine = snapshot_file_open(shot->path, &shot->shape, &shot->file);
    for (int side = 0; side < SNAPSHOT_SIDES && *mine == ST_OK; side++)
        own.step[side] = snapshot_file_step(shot->file, side);
    if (*mine == ST_OK && !own.step[0] && !own.step[1])
        *mine = FAIL_IN(ST_BAD_INPUT, shot->path, "its process ended before any copy was whole");
    return own;
}

static bool has_step(const own_steps *of, int64_t step)
{
    return of->step[0] == step || of->step[1] == step;
}

/* The newest step below `before` that all ranks have; 0: none. */
static int64_t common_step(const own_steps *of, int ranks, int64_t before)
{
    int64_t newest = 0;
    for (int side = 0; side < SNAPSHOT_SIDES; side++) {
        const int64_t step = of[0].step[side];
        bool all = step > newest && step < before;
        for (int i = 1; i < ranks && all; i++)
            all = has_step(&of[i], step);
        newest = all ? step : newest;
    }
    return newest;
}

/* Compares this rank's copy of a step with its hashes. */
static status check_own(snapshot *shot, int64_t step, char **out)
{
    shot->newest = snapshot_file_step(shot->file, 0) == step ? 0 : 1;
    TRY(snapshot_file_text(shot->file, shot->newest, out));
    return snapshot_file_check(shot->file, shot->newest,
                               pool_share(shot->local_ranks, CHECK_THREADS));
}

/* All ranks take the first one's state, as from a checkpoint. */
static status share_state(const snapshot *shot, char *own, progress *out)
{
    int64_t size = (int64_t)strlen(own);
    TRY(comm_host_broadcast(shot->all, FIND, &size, sizeof size, 0));
    char *text = calloc((size_t)size + 1, 1);
    if (!text)
        return FAIL(ST_NO_MEMORY, "no memory for the state in a snapshot");
    if (shot->all->rank == 0)
        memcpy(text, own, (size_t)size);
    status st = comm_host_broadcast(shot->all, FIND, text, size, 0);
    progress state = {0};
    if (st == ST_OK)
        st = progress_parse(text, shot->path, &state);
    if (st == ST_OK)
        st = progress_check(&state, shot->path);
    free(text);
    if (st == ST_OK)
        *out = state;
    else
        progress_done(&state);
    return st;
}

/* Whether all ranks can use this step. The outcome is the same on all of them. */
static status try_step(snapshot *shot, int64_t step, progress *out)
{
    char *text = NULL;
    rank_link_waits(shot->watch, "its copy in memory");
    status st = check_own(shot, step, &text);
    rank_link_waits(shot->watch, NULL);
    st = comm_agree(shot->all, FIND, st, step);
    if (st == ST_OK)
        st = comm_agree(shot->all, FIND, share_state(shot, text, out), step);
    free(text);
    return st;
}

static bool is_damage(status st)
{
    return st == ST_BAD_INPUT || st == ST_NO_INPUT || st == ST_CONFIG || st == ST_PROTOCOL;
}

/* Says why copies that are there cannot be used. */
static status log_unusable(const snapshot *shot, status mine)
{
    status st = comm_agree(shot->all, FIND, mine, 0);
    if (st == ST_OK)
        st = FAIL_IN(ST_BAD_INPUT, shot->path, "the ranks have no step in common that is whole");
    if (!is_damage(st))
        return st;
    log_warn("the copies in memory cannot be used, so only the disk is left: %s", status_text());
    return ST_OK;
}

static status find_common(snapshot *shot, const own_steps *of, status mine, int64_t least,
                          progress *out, bool *out_found)
{
    const int ranks = shot->all->size;
    bool there = false;
    int64_t step = common_step(of, ranks, INT64_MAX);
    for (int i = 0; i < ranks; i++)
        there |= of[i].there != 0;
    if (!there)
        return ST_OK;
    if (step == 0)
        return log_unusable(shot, mine);
    for (; step > 0 && step >= least && !*out_found; step = common_step(of, ranks, step)) {
        const status st = try_step(shot, step, out);
        *out_found = st == ST_OK;
        if (st != ST_OK && !is_damage(st))
            return st;
        if (st != ST_OK)
            log_warn("the copy of step %" PRId64 " in memory is passed over: %s", step,
                     status_text());
    }
    return ST_OK;
}

status snapshot_find(snapshot *shot, int64_t least, progress *out, bool *out_found)
{
    status mine;
    *out_found = false;
    TRY(read_run_id(shot));
    const own_steps own = open_own(shot, &mine);
    own_steps *of = calloc((size_t)shot->all->size, sizeof *of);
    if (!of)
        return FAIL(ST_NO_MEMORY, "no memory for the copies of %d ranks", shot->all->size);
    of[0] = own;
    const status_note why = *status_last();
    status st =
        shot->all->size > 1 ? comm_host_all_gather(shot->all, FIND, &own, of, sizeof own) : ST_OK;
    if (mine != ST_OK)
        status_set(&why);
    if (st == ST_OK)
        st = find_common(shot, of, mine, least, out, out_found);
    free(of);
    shot->found = *out_found;
    if (!*out_found)
        snapshot_file_close(&shot->file);
    return st;
}
