#include "common/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
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
