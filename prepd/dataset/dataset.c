/* SPDX-License-Identifier: Apache-2.0 */
/* dataset.c: what can be said of the images of any data set, from its vtable alone. */
#include "prepd/dataset/dataset.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

hash128 dataset_contents(const dataset *set)
{
    return set->adapter->contents ? set->adapter->contents(set) : set->adapter->identity(set);
}

void dataset_image_place(const dataset *set, int64_t index, image_place *out)
{
    out->offset = 0;
    out->bytes = -1;
    out->video = false;
    out->n_frames = 0;
    out->fps = 0;
    if (set->adapter->place)
        set->adapter->place(set, index, out);
    else
        snprintf(out->path, sizeof out->path, "%s", set->adapter->image_path(set, index));
}

bool dataset_image_has(const dataset *set, int64_t index, const char *path)
{
    image_place place;
    dataset_image_place(set, index, &place);
    const size_t length = strlen(place.path);
    if (place.n_frames == 0)
        return strcmp(path, place.path) == 0;
    if (strncmp(path, place.path, length) != 0 || path[length] != '/')
        return false;
    for (int32_t k = 0; k < place.n_frames; k++)
        if (strcmp(path + length + 1, set->adapter->frame(set, index, k)) == 0)
            return true;
    return false;
}

/* Adds the size of a file and its time of change. False if it cannot be read: then a worker could
 * not read it either, and so recorded nothing of it. *out_trouble: nobody can tell just now. */
static bool add_stat(const char *path, int64_t *bytes, int64_t *mtime_ns, bool *out_trouble)
{
    struct stat info;
    if (stat(path, &info) != 0 || (S_ISREG(info.st_mode) && access(path, R_OK) != 0)) {
        *out_trouble = !file_error_is_its_own(errno);
        return false;
    }
    if (!S_ISREG(info.st_mode))
        return false;
    const int64_t mtime = (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec;
    *bytes += (int64_t)info.st_size;
    *mtime_ns = mtime > *mtime_ns ? mtime : *mtime_ns;
    return true;
}

void dataset_image_stat(const dataset *set, int64_t index, int64_t *out_bytes,
                        int64_t *out_mtime_ns)
{
    char path[PATH_MAX + PLACE_PATH];
    image_place place;
    int64_t bytes = 0, mtime_ns = 0;
    bool there = true, trouble = false;
    dataset_image_place(set, index, &place);
    for (int32_t k = 0; there && k < (place.n_frames ? place.n_frames : 1); k++) {
        snprintf(path, sizeof path, "%s/%s%s%s", set->adapter->root(set), place.path,
                 place.n_frames ? "/" : "",
                 place.n_frames ? set->adapter->frame(set, index, k) : "");
        there = add_stat(path, &bytes, &mtime_ns, &trouble);
    }
    *out_bytes = trouble ? -1 : !there ? 0 : place.bytes >= 0 ? place.bytes : bytes;
    *out_mtime_ns = there ? mtime_ns : 0;
}

const char *dataset_holder(const dataset *set, int64_t index)
{
    return set->adapter->holder ? set->adapter->holder(set, index) : set->adapter->root(set);
}

int dataset_image_open(const dataset *set, int64_t index, const char *path, int flags)
{
    char full[PATH_MAX + PLACE_PATH];
    const char *holder = dataset_holder(set, index), *root = set->adapter->root(set);
    if (strcmp(holder, root) == 0)
        return beneath_open(root, path, flags);
    const size_t length = strlen(holder);
    snprintf(full, sizeof full, "%s%s%s", root, root[strlen(root) - 1] == '/' ? "" : "/", path);
    if (strncmp(full, holder, length) == 0 && full[length] == '/')
        return beneath_open(holder, full + length + 1, flags);
    errno = EXDEV;
    return -1;
}

void dataset_close(dataset **set)
{
    if (!set || !*set)
        return;
    (*set)->adapter->close(*set);
    *set = NULL;
}

sample_place dataset_sample_place(const dataset *set, int64_t number)
{
    const dataset_part *parts = NULL;
    const int count = set->adapter->parts ? set->adapter->parts(set, &parts) : 0;
    sample_place place = {0, set->adapter->chunk ? set->adapter->chunk(set, number) : -1};
    while (place.source < count && number >= parts[place.source].first + parts[place.source].count)
        place.source++;
    return place;
}

/* openat2(2) with RESOLVE_BENEATH; where the kernel refuses that call, a walk over the
 * folders of the path that follows no link. */

/* openat2 fails with EAGAIN if a rename anywhere comes between its checks; this is how often it is
 * tried. */
enum { RACES = 64 };

static void close_keeping_errno(int fd)
{
    const int error = errno;
    close(fd);
    errno = error;
}

static int open_folder(const char *folder)
{
    return open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/* Opens one step of the path. EXDEV for a link and for "..", which is told apart from everything
 * else that cannot be opened. */
static int open_no_link(int at, const char *name, int flags)
{
    struct stat info;
    if (strcmp(name, "..") == 0) {
        errno = EXDEV;
        return -1;
    }
    if (fstatat(at, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode)) {
        errno = EXDEV;
        return -1;
    }
    const int fd = openat(at, name, flags | O_NOFOLLOW);
    if (fd < 0 && errno == ELOOP) /* it became a link just now */
        errno = EXDEV;
    if (fd < 0 || !(flags & O_PATH) || fstat(fd, &info) != 0 || !S_ISLNK(info.st_mode))
        return fd;
    close(fd); /* O_PATH opens the link itself */
    errno = EXDEV;
    return -1;
}

int beneath_walk(const char *folder, const char *path, int flags)
{
    char name[NAME_MAX + 1];
    int at = open_folder(folder);
    while (at >= 0) {
        path += strspn(path, "/");
        const size_t count = strcspn(path, "/"), rest = strspn(path + count, "/");
        if (count == 0 || count > NAME_MAX) {
            close(at);
            errno = count == 0 ? ENOENT : ENAMETOOLONG;
            return -1;
        }
        memcpy(name, path, count);
        name[count] = 0;
        path += count + rest;
        const bool last = *path == 0;
        const int next =
            open_no_link(at, name, last ? flags | O_CLOEXEC : O_PATH | O_DIRECTORY | O_CLOEXEC);
        close_keeping_errno(at);
        if (last)
            return next;
        at = next;
    }
    return -1;
}

int beneath_open(const char *folder, const char *path, int flags)
{
    struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC),
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    const int at = open_folder(folder);
    long fd = -1;
    if (at < 0)
        return -1;
    errno = EAGAIN;
    for (int k = 0; k < RACES && fd < 0 && errno == EAGAIN; k++)
        fd = syscall(SYS_openat2, at, path, &how, sizeof(how));
    close_keeping_errno(at);
    if (fd >= 0 || (errno != ENOSYS && errno != EPERM))
        return (int)fd;
    return beneath_walk(folder, path, flags);
}
