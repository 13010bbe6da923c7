/* folder_commit.c: folder_commit of folder.h:
 * does the steps that core/commit_core.h puts in order. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "common/base/file.h"
#include "common/program/log.h"
#include "trainer/checkpoint/folder.h"

typedef struct commit_paths {
    const char *folder;
    char path[STATUS_PATH_MAX], writing[STATUS_PATH_MAX], trash[STATUS_PATH_MAX];
} commit_paths;

static status find_paths(const char *folder, int64_t step, commit_paths *out)
{
    out->folder = folder;
    TRY(folder_step_path(out->path, folder, step, NULL));
    TRY(folder_step_path(out->writing, folder, step, "writing"));
    return folder_step_path(out->trash, folder, step, "trash");
}

/* blamed: the path that an error names. */
static status rename_one(const char *from, const char *to, const char *blamed, bool *out_absent)
{
    if (rename(from, to) == 0)
        return ST_OK;
    *out_absent = errno == ENOENT;
    return FAIL_IN(ST_IO, blamed, "rename: %s", strerror(errno));
}

static status exchange_names(const commit_paths *paths)
{
    if (renameat2(AT_FDCWD, paths->writing, AT_FDCWD, paths->path, RENAME_EXCHANGE) == 0)
        return ST_OK;
    return FAIL_IN(ST_IO, paths->path, "exchange of names: %s", strerror(errno));
}

/* The new checkpoint could not be placed: the one before gets its name again. */
static status put_back(const commit_paths *paths)
{
    if (rename(paths->trash, paths->path) != 0)
        log_warn("%s: the earlier checkpoint cannot be renamed back from %s: %s", paths->path,
                 paths->trash, strerror(errno));
    return ST_OK;
}

/* Deletes the checkpoint that was replaced. A failure is only logged: the new one is in place, and
 * the next run deletes what is left (folder_tidy). */
static status drop_old(const commit_paths *paths)
{
    if (folder_remove(paths->trash) != ST_OK)
        log_warn("%s", status_text());
    return ST_OK;
}

static status do_step(const commit_paths *paths, commit_step what, bool *out_absent)
{
    *out_absent = false;
    switch (what) {
    case COMMIT_CLEAR_TRASH:
        return folder_remove(paths->trash);
    case COMMIT_EXCHANGE:
        return exchange_names(paths);
    case COMMIT_TRASH_OLD:
        return rename_one(paths->writing, paths->trash, paths->writing, out_absent);
    case COMMIT_SET_ASIDE:
        return rename_one(paths->path, paths->trash, paths->path, out_absent);
    case COMMIT_PLACE:
        return rename_one(paths->writing, paths->path, paths->path, out_absent);
    case COMMIT_PUT_BACK:
        return put_back(paths);
    case COMMIT_SYNC:
        return file_sync_folder(paths->folder);
    case COMMIT_DROP_OLD:
        return drop_old(paths);
    default:
        return ST_OK;
    }
}

status folder_commit_step(const char *folder, int64_t step, commit_step what, bool *out_absent)
{
    commit_paths paths;
    TRY(find_paths(folder, step, &paths));
    return do_step(&paths, what, out_absent);
}

status folder_commit(const char *folder, int64_t step)
{
    commit_core core = {0};
    commit_step what;
    bool absent = false;
    status how = ST_OK;
    while ((what = commit_core_next(&core, how, absent)) != COMMIT_END)
        how = folder_commit_step(folder, step, what, &absent);
    return core.code;
}
