/* snapshot_find.c: finds the copy in memory that a run goes on from (snapshot_find of snapshot.h).
 * Every rank opens its own file; then all of them compare which steps they have. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/program/log.h"
#include "trainer/checkpoint/hf_write.h"
#include "trainer/checkpoint/snapshot_run.h"
#include "trainer/device/pool.h"
#include "trainer/parallel/agree.h"

static const comm_at AT = {"look for a copy in memory", -1};
enum { CHECK_THREADS = 8 };

status snapshot_run_id(snapshot *shot)
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
    TRY(comm_host_broadcast(shot->all, AT, &id, sizeof id, 0));
    shot->shape.run = id;
    return ST_OK;
}

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
    TRY(comm_host_broadcast(shot->all, AT, &size, sizeof size, 0));
    char *text = calloc((size_t)size + 1, 1);
    if (!text)
        return FAIL(ST_NO_MEMORY, "no memory for the state in a snapshot");
    if (shot->all->rank == 0)
        memcpy(text, own, (size_t)size);
    status st = comm_host_broadcast(shot->all, AT, text, size, 0);
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
    st = comm_agree(shot->all, AT, st, step);
    if (st == ST_OK)
        st = comm_agree(shot->all, AT, share_state(shot, text, out), step);
    free(text);
    return st;
}

static bool is_damage(status st)
{
    return st == ST_BAD_INPUT || st == ST_NO_INPUT || st == ST_CONFIG || st == ST_PROTOCOL;
}

/* Says why copies that are there cannot be used. */
static status tell_unusable(const snapshot *shot, status mine)
{
    status st = comm_agree(shot->all, AT, mine, 0);
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
        return tell_unusable(shot, mine);
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
    TRY(snapshot_run_id(shot));
    const own_steps own = open_own(shot, &mine);
    own_steps *of = calloc((size_t)shot->all->size, sizeof *of);
    if (!of)
        return FAIL(ST_NO_MEMORY, "no memory for the copies of %d ranks", shot->all->size);
    of[0] = own;
    const status_note why = *status_last();
    status st =
        shot->all->size > 1 ? comm_host_all_gather(shot->all, AT, &own, of, sizeof own) : ST_OK;
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
