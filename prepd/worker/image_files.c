/* image_files.c: opens, checks and reads image files. A read that fails for want of a resource is
 * tried again (file_again). */
#include "prepd/worker/image_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"
#include "prepd/dataset/file_error.h"
#include "prepd/worker/time_limit.h"

status file_resolve(const char *root, const char *path, char *out, size_t size)
{
    if (path[0] == 0 || path[0] == '/')
        return FAIL_IN(ST_BAD_INPUT, path,
                       "the path is not relative: images must lie under the data root");
    for (const char *at = path; *at; at += strcspn(at, "/"), at += *at == '/')
        if (strncmp(at, "..", 2) == 0 && (at[2] == '/' || at[2] == 0))
            return FAIL_IN(ST_BAD_INPUT, path, "the path leaves the data root through \"..\"");
    if (snprintf(out, size, "%s/%s", root, path) >= (int)size)
        return FAIL_IN(ST_BAD_INPUT, path, "the path is longer than %zu bytes", size);
    return ST_OK;
}

bool file_again(int error)
{
    return error == EINTR || (!file_error_is_its_own(error) && time_limit_wait());
}

status file_fail(int error, const char *full, int64_t offset, const char *what)
{
    const status st = error == ENOMEM                ? ST_NO_MEMORY
                      : file_error_is_its_own(error) ? ST_NO_INPUT
                                                     : ST_IO;
    return FAIL_AT(st, full, -1, offset, "cannot be %s: %s", what, strerror(error));
}

static status open_file(const char *full, int *out_fd, struct stat *info)
{
    int fd;
    while ((fd = open(full, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) < 0)
        if (!file_again(errno))
            return file_fail(errno, full, -1, "opened");
    while (fstat(fd, info) != 0)
        if (!file_again(errno)) {
            const status st = file_fail(errno, full, -1, "read");
            close(fd);
            return st;
        }
    if (!S_ISREG(info->st_mode)) {
        close(fd);
        return FAIL_IN(ST_BAD_INPUT, full, "is not a regular file");
    }
    *out_fd = fd;
    return ST_OK;
}

static status check_size(const char *full, int64_t bytes, int64_t max_bytes)
{
    if (bytes == 0)
        return FAIL_IN(ST_BAD_INPUT, full, "is empty (0 bytes)");
    if (bytes > max_bytes)
        return FAIL_IN(
            ST_BAD_INPUT, full,
            "has %lld bytes, but image.file_bytes (for a video: video.file_bytes) allows %lld",
            (long long)bytes, (long long)max_bytes);
    return ST_OK;
}

static int64_t mtime_of(const struct stat *info)
{
    return (int64_t)info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec;
}

static status read_exactly(int fd, const char *full, int64_t offset, uint8_t *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t some = file_read_at(fd, to + done, bytes - done, offset + (int64_t)done);
        if (some < 0 && file_again(errno))
            continue;
        if (some < 0)
            return file_fail(errno, full, offset + (int64_t)done, "read");
        if (some == 0)
            return FAIL_AT(ST_BAD_INPUT, full, -1, offset + (int64_t)done,
                           "the file became shorter while it was read");
        done += (size_t)some;
    }
    return ST_OK;
}

status file_check(const char *full, int64_t offset, int64_t bytes, int64_t max_bytes,
                  int64_t file_bytes)
{
    if (offset >= 0 && offset > file_bytes - bytes)
        return FAIL_AT(ST_NO_INPUT, full, -1, offset,
                       "has %lld bytes, so not %lld at this place: the file changed; restart the "
                       "daemon to index it again",
                       (long long)file_bytes, (long long)bytes);
    if (offset < 0 && bytes >= 0 && file_bytes != bytes)
        return FAIL_IN(ST_NO_INPUT, full,
                       "has %lld bytes, but the index recorded %lld: the file changed; restart the "
                       "daemon to index it again",
                       (long long)file_bytes, (long long)bytes);
    return check_size(full, offset < 0 ? file_bytes : bytes, max_bytes);
}

status file_open(const char *full, int64_t offset, int64_t bytes, int64_t max_bytes, int *out_fd,
                 int64_t *out_bytes, int64_t *out_mtime_ns)
{
    int fd;
    struct stat info;
    TRY(open_file(full, &fd, &info));
    *out_mtime_ns = mtime_of(&info);
    *out_bytes = offset < 0 ? info.st_size : bytes;
    const status st = file_check(full, offset, bytes, max_bytes, (int64_t)info.st_size);
    if (st == ST_OK)
        *out_fd = fd;
    else
        close(fd);
    return st;
}

/* Opens as file_open does and reads the bytes into the arena. */
static status read_opened(const char *full, int64_t offset, int64_t bytes, int64_t max_bytes,
                          arena *memory, span *out, int64_t *out_mtime_ns)
{
    int fd;
    int64_t count;
    uint8_t *data = NULL;
    status st;
    TRY(file_open(full, offset, bytes, max_bytes, &fd, &count, out_mtime_ns));
    TRY_OR(end, arena_alloc(memory, (size_t)count, (void **)&data));
    TRY_OR(end, read_exactly(fd, full, offset < 0 ? 0 : offset, data, (size_t)count));
    *out = span_of(data, (size_t)count);
end:
    close(fd);
    return st;
}

status file_read_piece(const char *full, int64_t offset, int64_t bytes, int64_t max_bytes,
                       arena *memory, span *out, int64_t *out_mtime_ns)
{
    return read_opened(full, offset < 0 ? INT64_MAX : offset, bytes, max_bytes, memory, out,
                       out_mtime_ns);
}

status file_read(const char *full, int64_t max_bytes, int64_t want_bytes, arena *memory, span *out)
{
    int64_t mtime_ns;
    return read_opened(full, -1, want_bytes, max_bytes, memory, out, &mtime_ns);
}

status file_start(const char *full, int64_t offset, int64_t bytes, int64_t max_bytes,
                  int64_t max_start, arena *memory, file_view *out)
{
    int fd;
    uint8_t *data;
    status st;
    *out = (file_view){0};
    TRY(file_open(full, offset, bytes, max_bytes, &fd, &out->file_bytes, &out->mtime_ns));
    const int64_t count = out->file_bytes < max_start ? out->file_bytes : max_start;
    TRY_OR(end, arena_alloc(memory, (size_t)count, (void **)&data));
    TRY_OR(end, read_exactly(fd, full, offset < 0 ? 0 : offset, data, (size_t)count));
    out->bytes = span_of(data, (size_t)count);
end:
    close(fd);
    return st;
}

status file_map(const char *full, int64_t max_bytes, file_view *out)
{
    int fd;
    struct stat info;
    *out = (file_view){0};
    TRY(open_file(full, &fd, &info));
    out->file_bytes = info.st_size;
    out->mtime_ns = mtime_of(&info);
    status st = check_size(full, info.st_size, max_bytes);
    if (st == ST_OK) {
        void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
            st = file_fail(errno, full, -1, "mapped");
        else
            out->bytes = span_of(map, (size_t)info.st_size);
    }
    close(fd);
    return st;
}

void file_unmap(file_view *view)
{
    if (view->bytes.data)
        munmap((void *)(uintptr_t)view->bytes.data, view->bytes.size);
    view->bytes = (span){0};
}
