/* SPDX-License-Identifier: Apache-2.0 */
/* image_files.c: opens, checks and reads image files. A read that fails for want of a resource is
 * tried again (file_again). */
#include "prepd/worker/media/image_files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "common/base/file.h"
#include "prepd/dataset/dataset.h"

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

/* After a failed open or read with this errno: true if it is to be tried again, after waiting if
 * that may help. */
static bool file_again(int error)
{
    return error == EINTR || (!file_error_is_its_own(error) && time_limit_wait());
}

/* The failure that an errno stands for. what is "opened" or "read"; offset is the byte, or -1. */
static status file_fail(int error, const char *full, int64_t offset, const char *what)
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

/* Makes the refusals by size of file_open for a file that has file_bytes bytes. */
static status file_check(const char *full, int64_t offset, int64_t bytes, int64_t max_bytes,
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

/* Opens a file for reading a piece of `bytes` bytes at `offset`; or, with offset -1, the whole
 * file, which must have `bytes` bytes unless that is -1. Refuses what file_read and file_read_piece
 * refuse. *out_bytes is the size of the piece or file. */
static status file_open(const char *full, int64_t offset, int64_t bytes, int64_t max_bytes,
                        int *out_fd, int64_t *out_bytes, int64_t *out_mtime_ns)
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

/* Finds the bytes of a file of a lease: on this machine, or among the parts of the message.
 */

static const char SOURCE[] = "lease";

status ref_read(const json_value *value, const wire_msg *parts, file_ref *out)
{
    file_ref file = {.parts = parts, .shipped = json_find(value, "shipped")};
    TRY(json_want_text(value, "path", SOURCE, &file.name));
    file.in = json_text(json_find(value, "in"), file.name);
    file.at = json_int(json_find(value, "at"), -1);
    file.bytes = json_int(json_find(value, "bytes"), -1);
    file.height = json_int(json_find(value, "height"), -1);
    file.width = json_int(json_find(value, "width"), -1);
    file.video = json_bool(json_find(value, "video"), false);
    file.frames = json_find(value, "frames");
    file.fps = json_real(json_find(value, "fps"), 0);
    if (file.in != file.name && (file.at < 0 || file.bytes < 0))
        return FAIL_IN(ST_PROTOCOL, SOURCE,
                       "a piece has %lld bytes at offset %lld, which is impossible",
                       (long long)file.bytes, (long long)file.at);
    if (file.frames && (json_count(file.frames) == 0 || file.in != file.name || !(file.fps > 0)))
        return FAIL_IN(ST_PROTOCOL, SOURCE,
                       "a folder has %zu frames at %g per second, which is impossible",
                       json_count(file.frames), file.fps);
    *out = file;
    return ST_OK;
}

status ref_frame(const file_ref *folder, int64_t index, char *path, size_t size, file_ref *out)
{
    const char *name = index < 0 ? NULL : json_text(json_item(folder->frames, (size_t)index), NULL);
    if (!name || strchr(name, '/'))
        return FAIL_IN(ST_PROTOCOL, SOURCE, "frame %lld of %zu has no name", (long long)index,
                       json_count(folder->frames));
    if (snprintf(path, size, "%s/%s", folder->in, name) >= (int)size)
        return FAIL_IN(ST_BAD_INPUT, folder->name, "the path is longer than %zu bytes", size);
    *out = (file_ref){.name = path,
                      .in = path,
                      .at = -1,
                      .bytes = -1,
                      .height = -1,
                      .width = -1,
                      .shipped = folder->shipped,
                      .nth = index,
                      .parts = folder->parts};
    return ST_OK;
}

/* Finds the bytes that came with the lease. If the daemon could not read the file, this fails as a
 * worker that tried would have failed. */
static status take_shipped(const file_ref *file, const char *full, int64_t max_bytes,
                           file_view *out)
{
    const json_value *value = json_item(file->shipped, (size_t)file->nth);
    const int64_t failed = json_int(json_find(value, "errno"), 0);
    const int64_t number = json_int(json_find(value, "part"), -1);
    if (failed == EXDEV)
        return FAIL_IN(
            ST_NO_INPUT, full,
            "a link now leads outside the data folder: data.ship does not send the file");
    if (failed)
        return file_fail((int)failed, full, -1, "opened");
    if (json_bool(json_find(value, "irregular"), false))
        return FAIL_IN(ST_BAD_INPUT, full, "is not a regular file");
    out->file_bytes = json_int(json_find(value, "size"), -1);
    out->mtime_ns = json_int(json_find(value, "mtime"), 0);
    TRY(file_check(full, file->at, file->bytes, max_bytes, out->file_bytes));
    const int64_t wanted = file->at < 0 ? out->file_bytes : file->bytes;
    const span bytes =
        number >= 2 && file->parts ? wire_msg_part(file->parts, (size_t)number) : (span){0};
    if ((int64_t)bytes.size != wanted)
        return FAIL_IN(ST_PROTOCOL, SOURCE, "%s came with %zu of its %lld bytes", file->name,
                       bytes.size, (long long)wanted);
    out->bytes = bytes;
    return ST_OK;
}

status ref_start(const file_ref *file, const char *root, int64_t max_bytes, int64_t max_start,
                 arena *memory, file_view *out)
{
    char full[PATH_MAX];
    if (file->shipped)
        return ref_view(file, root, max_bytes, memory, out);
    TRY(file_resolve(root, file->in, full, sizeof(full)));
    return file_start(full, file->at, file->bytes, max_bytes, max_start, memory, out);
}

status ref_view(const file_ref *file, const char *root, int64_t max_bytes, arena *memory,
                file_view *out)
{
    char full[PATH_MAX];
    TRY(file_resolve(root, file->in, full, sizeof(full)));
    if (file->shipped) {
        const status st = take_shipped(file, full, max_bytes, out);
        out->file_bytes = file->at < 0 ? out->file_bytes : file->bytes;
        return st;
    }
    if (file->at < 0)
        return file_map(full, max_bytes, out);
    span piece;
    out->file_bytes = file->bytes;
    status st =
        file_read_piece(full, file->at, file->bytes, max_bytes, memory, &piece, &out->mtime_ns);
    if (st == ST_OK)
        out->bytes = piece;
    return st;
}

void ref_unview(const file_ref *file, file_view *view)
{
    if (file->at < 0 && !file->shipped)
        file_unmap(view);
}

status ref_load(const file_ref *file, const char *root, int64_t max_bytes, arena *memory, span *out)
{
    char full[PATH_MAX];
    int64_t mtime_ns;
    file_view view;
    TRY(file_resolve(root, file->in, full, sizeof(full)));
    if (file->shipped) {
        TRY(take_shipped(file, full, max_bytes, &view));
        *out = view.bytes;
        return ST_OK;
    }
    return file->at < 0
               ? file_read(full, max_bytes, file->bytes, memory, out)
               : file_read_piece(full, file->at, file->bytes, max_bytes, memory, out, &mtime_ns);
}

status ref_open(const file_ref *file, const char *root, int64_t max_bytes, video_bytes *out,
                int64_t *out_mtime_ns)
{
    char full[PATH_MAX];
    video_bytes video = {
        .at = file->at < 0 ? 0 : file->at, .fd = -1, .path = file->in, .again = file_again};
    status st;
    *out = (video_bytes){.fd = -1};
    TRY(file_resolve(root, file->in, full, sizeof(full)));
    if (file->shipped) {
        file_view view = {0};
        st = take_shipped(file, full, max_bytes, &view);
        *out_mtime_ns = view.mtime_ns;
        *out = (video_bytes){
            .memory = view.bytes, .fd = -1, .size = file->at < 0 ? view.file_bytes : file->bytes};
        return st;
    }
    st = file_open(full, file->at, file->bytes, max_bytes, &video.fd, &video.size, out_mtime_ns);
    *out = video;
    return st;
}

void ref_close(video_bytes *video)
{
    if (video->fd >= 0)
        close(video->fd);
}

/* The limit on one item as ticks of an interval timer, and the pauses before retries.
 */

enum {
    TICKS = 8,        /* ticks in a limit; time spent stopped counts as one at most */
    WAITS = 4,        /* pauses in an item, each twice as long as the one before */
    WAIT_PARTS = 128, /* the first pause is 1 / 128 of the limit; all four are 15 / 128 */
};
static const double LONGEST_WAIT_S = 1.0;

/* A signal handler can only reach what is static. */
static volatile sig_atomic_t ticks_left;
static struct itimerval timer;
static double limit_s; /* 0 for none */
static int waits;      /* pauses in the item in work so far */

static void on_tick(int sig)
{
    if (--ticks_left > 0)
        return;
    signal(sig, SIG_DFL);
    raise(sig); /* delivered when this handler returns */
}

status time_limit_install(double seconds)
{
    limit_s = seconds;
    const struct sigaction tick = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    const double each = seconds / TICKS;
    const time_t whole = (time_t)each;
    timer.it_value = (struct timeval){whole, (suseconds_t)((each - (double)whole) * 1e6)};
    if (timer.it_value.tv_sec == 0 && timer.it_value.tv_usec == 0)
        timer.it_value.tv_usec = 1;
    timer.it_interval = timer.it_value;
    if (sigaction(SIGALRM, &tick, NULL) != 0)
        return FAIL(ST_OS, "cannot set a signal handler: %s", strerror(errno));
    return ST_OK;
}

void time_limit_start(void)
{
    ticks_left = TICKS;
    waits = 0;
    (void)setitimer(ITIMER_REAL, &timer, NULL); /* fails only for times out of range */
}

void time_limit_stop(void)
{
    const struct itimerval none = {0};
    (void)setitimer(ITIMER_REAL, &none, NULL);
}

bool time_limit_wait(void)
{
    if (limit_s <= 0 || waits == WAITS)
        return false;
    const double wanted = limit_s / WAIT_PARTS * (1 << waits++);
    const double seconds = wanted < LONGEST_WAIT_S ? wanted : LONGEST_WAIT_S;
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ; /* a tick interrupted it */
    return true;
}
