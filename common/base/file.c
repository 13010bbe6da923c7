/* SPDX-License-Identifier: Apache-2.0 */
#include "common/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

status file_sync_folder(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return FAIL_IN(ST_IO, folder, "cannot open: %s", strerror(errno));
    int failed = fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
    close(fd);
    return failed ? FAIL_IN(ST_IO, folder, "cannot sync: %s", strerror(failed)) : ST_OK;
}

status file_sync_parent(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (!slash)
        return file_sync_folder(".");
    const size_t count = slash == path ? 1 : (size_t)(slash - path);
    if (count >= sizeof folder)
        return FAIL_IN(ST_IO, path, "the path is longer than %zu bytes", sizeof folder - 1);
    memcpy(folder, path, count);
    folder[count] = 0;
    return file_sync_folder(folder);
}

/* Whether the file has bytes after this place, by its size. */
static bool ends_later(int fd, int64_t at)
{
    struct stat info;
    return at >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && at < info.st_size;
}

ssize_t file_read_at(int fd, void *out, size_t size, int64_t offset)
{
    enum { TRIES = 8, NAP_NS = 1000 * 1000 }; /* naps of 1, 2, 4, .. ms */
    for (int tries = 0;;) {
        const ssize_t got = offset < 0 ? read(fd, out, size) : pread(fd, out, size, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got != 0 || size == 0 || !ends_later(fd, offset < 0 ? lseek(fd, 0, SEEK_CUR) : offset))
            return got;
        if (tries == TRIES) {
            errno = EIO;
            return -1;
        }
        nanosleep(&(struct timespec){.tv_nsec = (long)NAP_NS << tries++}, NULL);
    }
}

int64_t file_read_all(int fd, void *out, size_t size, int64_t offset)
{
    size_t done = 0;
    while (done < size) {
        const ssize_t some = file_read_at(fd, (char *)out + done, size - done,
                                          offset < 0 ? -1 : offset + (int64_t)done);
        if (some < 0)
            return -1;
        if (some == 0)
            break;
        done += (size_t)some;
    }
    return (int64_t)done;
}

bool file_write_all(int fd, const void *data, size_t size)
{
    enum { MOST = 1 << 30 }; /* one write(2) takes less than 2 GiB */
    const char *at = data;
    while (size > 0) {
        const ssize_t sent = write(fd, at, size < MOST ? size : MOST);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return false;
        at += sent;
        size -= (size_t)sent;
    }
    return true;
}

status file_make_folders(const char *path)
{
    char part[STATUS_PATH_MAX];
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
        return FAIL_IN(ST_CANT_CREATE, path, "the path is longer than %zu bytes", sizeof part - 1);
    for (char *at = part + 1;; at++) {
        if (*at && *at != '/')
            continue;
        char kept = *at;
        *at = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return FAIL_IN(ST_CANT_CREATE, part, "cannot make the folder: %s", strerror(errno));
        *at = kept;
        if (!kept)
            return ST_OK;
    }
}

bool file_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}
