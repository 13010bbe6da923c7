/* SPDX-License-Identifier: Apache-2.0 */
/* folder.c: see folder.h: locking, listing, committing, removing and publishing. The seal is in
 * seal.c. */
#include "trainer/checkpoint/save/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/compare.h"
#include "common/base/file.h"
#include "common/program/log.h"
#include "trainer/checkpoint/hf/adapter.h"
#include "trainer/checkpoint/hf/hf_write.h"

status folder_lock(const char *folder, int *out_fd)
{
    char path[STATUS_PATH_MAX];
    TRY(hf_path(path, folder, ".lock"));
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return FAIL_IN(ST_CANT_CREATE, path,
                       "%s: choose a job.dump_folder that this user may write to", strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        *out_fd = fd;
        return ST_OK;
    }
    int err = errno;
    close(fd);
    if (err == EWOULDBLOCK)
        return FAIL_IN(ST_UNAVAILABLE, folder,
                       "another trainer writes here: wait until it ends, or choose another "
                       "job.dump_folder");
    log_warn("%s: this file system cannot lock files (%s): make sure that no other trainer writes "
             "to this folder",
             path, strerror(err));
    *out_fd = -1;
    return ST_OK;
}

void folder_unlock(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

status folder_remove(const char *path)
{
    DIR *dir = opendir(path);
    if (!dir)
        return errno == ENOENT ? ST_OK : FAIL_IN(ST_IO, path, "%s", strerror(errno));
    status st = ST_OK;
    for (struct dirent *entry; st == ST_OK && (entry = readdir(dir));) {
        char inner[STATUS_PATH_MAX];
        struct stat about;
        if (is_dots(entry->d_name))
            continue;
        st = hf_path(inner, path, entry->d_name);
        if (st == ST_OK && lstat(inner, &about) == 0 && S_ISDIR(about.st_mode))
            st = folder_remove(inner);
        else if (st == ST_OK && unlink(inner) != 0 && errno != ENOENT)
            st = FAIL_IN(ST_IO, inner, "%s", strerror(errno));
    }
    closedir(dir);
    if (st == ST_OK && rmdir(path) != 0 && errno != ENOENT)
        st = FAIL_IN(ST_IO, path, "%s", strerror(errno));
    return st;
}

status folder_step_path(char out[STATUS_PATH_MAX], const char *folder, int64_t step,
                        const char *kind)
{
    char name[64];
    if (kind)
        snprintf(name, sizeof name, ".step-%" PRId64 ".%s", step, kind);
    else
        snprintf(name, sizeof name, "step-%" PRId64, step);
    return hf_path(out, folder, name);
}

status folder_steps(const char *folder, int64_t **out, int64_t *out_n)
{
    int64_t *list = NULL, count = 0, capacity = 0;
    DIR *dir = opendir(folder);
    if (!dir && errno != ENOENT)
        return FAIL_IN(ST_IO, folder, "%s", strerror(errno));
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        int64_t step;
        int end = 0;
        if (sscanf(entry->d_name, "step-%" SCNd64 "%n", &step, &end) != 1 || entry->d_name[end])
            continue;
        if (count == capacity) {
            capacity = capacity ? 2 * capacity : 16;
            int64_t *more = realloc(list, (size_t)capacity * sizeof *list);
            if (!more) {
                free(list);
                closedir(dir);
                return FAIL(ST_NO_MEMORY, "no memory for a list of checkpoints");
            }
            list = more;
        }
        list[count++] = step;
    }
    if (dir)
        closedir(dir);
    if (count)
        qsort(list, (size_t)count, sizeof *list, compare_ints);
    *out = list;
    *out_n = count;
    return ST_OK;
}

status folder_drop(const char *folder, int64_t step)
{
    char path[STATUS_PATH_MAX], trash[STATUS_PATH_MAX];
    TRY(folder_step_path(path, folder, step, NULL));
    TRY(folder_step_path(trash, folder, step, "trash"));
    TRY(folder_remove(trash));
    if (rename(path, trash) != 0)
        return errno == ENOENT ? ST_OK : FAIL_IN(ST_IO, path, "rename: %s", strerror(errno));
    return folder_remove(trash);
}

status folder_tidy(const char *folder)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return errno == ENOENT ? ST_OK : FAIL_IN(ST_IO, folder, "%s", strerror(errno));
    status st = ST_OK;
    for (struct dirent *entry; st == ST_OK && (entry = readdir(dir));) {
        char path[STATUS_PATH_MAX];
        const char *end = strrchr(entry->d_name, '.');
        if (strncmp(entry->d_name, ".step-", 6) != 0 ||
            (strcmp(end, ".writing") != 0 && strcmp(end, ".trash") != 0))
            continue;
        st = hf_path(path, folder, entry->d_name);
        /* A failure is not an error, since such a folder is never read. */
        if (st == ST_OK && folder_remove(path) != ST_OK)
            log_warn("what an earlier run left half written cannot be deleted: %s", status_text());
    }
    closedir(dir);
    return st;
}

static bool is_weights(const char *name)
{
    size_t length = strlen(name);
    static const char index[] = ".safetensors.index.json", file[] = ".safetensors";
    return strncmp(name, "model", 5) == 0 &&
           ((length >= sizeof file && strcmp(name + length - (sizeof file - 1), file) == 0) ||
            (length >= sizeof index && strcmp(name + length - (sizeof index - 1), index) == 0));
}

static status publish_file(const char *from_folder, const char *folder, const char *name)
{
    char from[STATUS_PATH_MAX], to[STATUS_PATH_MAX], aside[STATUS_PATH_MAX], hidden[300];
    snprintf(hidden, sizeof hidden, ".%.250s.link", name);
    TRY(hf_path(from, from_folder, name));
    TRY(hf_path(to, folder, name));
    TRY(hf_path(aside, folder, hidden));
    unlink(aside);
    if (link(from, aside) != 0)
        return hf_copy_file(from_folder, folder, name);
    if (rename(aside, to) != 0)
        return FAIL_IN(ST_IO, to, "rename: %s", strerror(errno));
    unlink(aside); /* rename does nothing if both names are links to one file already */
    return ST_OK;
}

typedef status (*each_file)(const char *from, const char *folder, const char *name);

static status for_files(const char *dir_path, const char *other, each_file each)
{
    DIR *dir = opendir(dir_path);
    if (!dir)
        return FAIL_IN(ST_IO, dir_path, "%s", strerror(errno));
    status st = ST_OK;
    for (struct dirent *entry; st == ST_OK && (entry = readdir(dir));) {
        char path[STATUS_PATH_MAX];
        struct stat about;
        st = hf_path(path, dir_path, entry->d_name);
        if (st == ST_OK && stat(path, &about) == 0 && S_ISREG(about.st_mode))
            st = each(dir_path, other, entry->d_name);
    }
    closedir(dir);
    return st;
}

/* Deletes a weight file of an earlier model that the new one does not replace, since it would
 * mislead a reader. */
static status remove_stale(const char *folder, const char *step_folder, const char *name)
{
    char mine[STATUS_PATH_MAX], theirs[STATUS_PATH_MAX];
    TRY(hf_path(mine, folder, name));
    TRY(hf_path(theirs, step_folder, name));
    if (is_weights(name) && access(theirs, F_OK) != 0 && unlink(mine) != 0)
        return FAIL_IN(ST_IO, mine, "%s", strerror(errno));
    return ST_OK;
}

/* Puts every file of `from` into the folder, and removes weights that `from` does not have. */
static status put_files(const char *from, const char *folder)
{
    TRY(for_files(from, folder, publish_file));
    TRY(for_files(folder, from, remove_stale));
    return file_sync_folder(folder);
}

status folder_publish(const char *folder, int64_t step)
{
    char path[STATUS_PATH_MAX], inner[STATUS_PATH_MAX], mine[STATUS_PATH_MAX];
    TRY(folder_step_path(path, folder, step, NULL));
    TRY(put_files(path, folder));
    TRY(hf_path(inner, path, ADAPTER_FOLDER));
    TRY(hf_path(mine, folder, ADAPTER_FOLDER));
    if (!file_is_folder(inner))
        return ST_OK;
    TRY(file_make_folders(mine));
    return put_files(inner, mine);
}

status folder_aside(const char *path, char out[STATUS_PATH_MAX])
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    size_t begin = length;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    struct stat about;
    const bool inside = lstat(path, &about) == 0;
    const int size = inside
                         ? snprintf(out, STATUS_PATH_MAX, "%.*s/" FOLDER_ASIDE, (int)length, path)
                         : snprintf(out, STATUS_PATH_MAX, "%.*s.%.*s.writing", (int)begin, path,
                                    (int)(length - begin), path + begin);
    if (size >= STATUS_PATH_MAX)
        return FAIL_IN(ST_CONFIG, path, "the path is too long");
    return folder_remove(out);
}

bool folder_is_unfinished(const char *path)
{
    bool left = false, more = false;
    DIR *dir = opendir(path);
    if (!dir)
        return false;
    for (struct dirent *entry; !more && (entry = readdir(dir));) {
        const bool is_aside = strcmp(entry->d_name, FOLDER_ASIDE) == 0;
        left |= is_aside;
        more = !is_aside && strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    closedir(dir);
    return left && !more;
}

status folder_put(const char *aside, const char *path)
{
    struct stat about;
    if (lstat(path, &about) == 0) {
        TRY(put_files(aside, path));
        return folder_remove(aside);
    }
    if (rename(aside, path) != 0)
        return FAIL_IN(ST_CANT_CREATE, path, "rename: %s", strerror(errno));
    return file_sync_parent(path);
}

/* ---- the commit: does the steps that save_core.h puts in order ---- */

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
