/* SPDX-License-Identifier: Apache-2.0 */
/* prune.c: implements folder.h. The room that another checkpoint takes is estimated from the last
 * whole one, counted in whole blocks of the file system. */

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "common/program/log.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/checkpoint/save/folder.h"
#include "trainer/checkpoint/state/progress.h"

/* One part in so many of a checkpoint's bytes is added for what the file system itself needs. */
enum { SPARE_SHARE = 64 };

/* The step with the lowest held-out loss, the newest of equals; -1: none was evaluated. */
static status find_best(const char *folder, const int64_t *step, int64_t count, int64_t *out)
{
    double lowest = INFINITY;
    *out = -1;
    for (int64_t i = 0; i < count; i++) {
        char path[STATUS_PATH_MAX], training[STATUS_PATH_MAX];
        progress state = {0};
        TRY(folder_step_path(path, folder, step[i], NULL));
        TRY(hf_path(training, path, FOLDER_TRAINING));
        if (progress_read(training, &state) != ST_OK)
            continue; /* without its state it cannot be compared */
        if (isfinite(state.eval_loss) && state.eval_loss <= lowest) {
            lowest = state.eval_loss;
            *out = step[i];
        }
        progress_done(&state);
    }
    return ST_OK;
}

status prune_by_policy(const char *folder, int64_t keep)
{
    int64_t *step = NULL, count = 0, best;
    status st;
    if (keep == 0)
        return ST_OK;
    TRY(folder_steps(folder, &step, &count));
    TRY_OR(done, find_best(folder, step, count, &best));
    for (int64_t i = 0; i + keep < count; i++)
        if (step[i] != best)
            TRY_OR(done, folder_drop(folder, step[i]));
done:
    free(step);
    return st;
}

/* The step that is removed first if there is no room; -1: none may be. */
static status find_first(const char *folder, int64_t whole, int64_t *out, bool *out_is_best)
{
    int64_t *step = NULL, count = 0, best;
    *out = -1;
    TRY(folder_steps(folder, &step, &count));
    status st = find_best(folder, step, count, &best);
    for (int64_t i = count - 1; i >= 0 && st == ST_OK; i--)
        if (step[i] != whole && (step[i] != best || *out < 0))
            *out = step[i];
    *out_is_best = *out == best;
    free(step);
    return st;
}

static status add_bytes(const char *path, int64_t block, int64_t *inout)
{
    DIR *dir = opendir(path);
    if (!dir)
        return FAIL_IN(ST_IO, path, "%s", strerror(errno));
    status st = ST_OK;
    for (struct dirent *entry; st == ST_OK && (entry = readdir(dir));) {
        char inner[STATUS_PATH_MAX];
        struct stat about;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        st = hf_path(inner, path, entry->d_name);
        if (st != ST_OK || lstat(inner, &about) != 0)
            continue;
        if (S_ISDIR(about.st_mode))
            st = add_bytes(inner, block, inout);
        else
            *inout += ((int64_t)about.st_size + block - 1) / block * block;
    }
    closedir(dir);
    return st;
}

typedef struct room {
    int64_t free;   /* bytes that this user may still write */
    int64_t wanted; /* bytes of another checkpoint: as many as the last whole one has */
    int64_t others; /* bytes of all checkpoints that may be removed */
} room;

static status add_steps(const char *folder, int64_t whole, int64_t block, room *inout)
{
    int64_t *step = NULL, count = 0;
    status st;
    TRY(folder_steps(folder, &step, &count));
    for (int64_t i = 0; i < count; i++) {
        char path[STATUS_PATH_MAX];
        TRY_OR(done, folder_step_path(path, folder, step[i], NULL));
        TRY_OR(done, add_bytes(path, block, step[i] == whole ? &inout->wanted : &inout->others));
    }
    st = ST_OK;
done:
    free(step);
    return st;
}

/* False if the room is not known. */
static bool find_room(const char *folder, int64_t whole, room *out)
{
    struct statvfs disk;
    *out = (room){0};
    if (statvfs(folder, &disk) != 0 || disk.f_frsize == 0)
        return false;
    if (add_steps(folder, whole, (int64_t)disk.f_frsize, out) != ST_OK) {
        status_clear();
        return false;
    }
    out->free = (int64_t)(disk.f_bavail * disk.f_frsize);
    return true;
}

static bool is_short(const room *left)
{
    return left->free < left->wanted + left->wanted / SPARE_SHARE;
}

/* Whether removing all other checkpoints would make enough room. If not, none is removed, since
 * that would be in vain. */
static bool others_help(const room *left)
{
    return left->free + left->others >= left->wanted;
}

status prune_one(const char *folder, int64_t whole, int64_t keep, bool *out_gone)
{
    int64_t step;
    bool is_best;
    room left;
    *out_gone = false;
    if (keep == 0 || whole == 0 || (find_room(folder, whole, &left) && !others_help(&left)))
        return ST_OK;
    TRY(find_first(folder, whole, &step, &is_best));
    if (step < 0)
        return ST_OK;
    TRY(folder_drop(folder, step));
    *out_gone = true;
    log_warn("%s: the disk has no room for another checkpoint: that of step %" PRId64
             ", the oldest%s, is removed, though checkpoint.keep_latest_k is %" PRId64
             "; make room, or lower that option",
             folder, step, is_best ? " and the one with the lowest held-out loss" : "", keep);
    return ST_OK;
}

status prune_for_room(const char *folder, int64_t whole, int64_t keep)
{
    bool gone = whole > 0;
    room left;
    while (gone && find_room(folder, whole, &left) && is_short(&left))
        TRY(prune_one(folder, whole, keep, &gone));
    return ST_OK;
}
