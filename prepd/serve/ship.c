#include "prepd/serve/ship.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PARTS_BEFORE = 2 }; /* of a lease's message: header and JSON */

/* 0, or errno; a file that became shorter meanwhile keeps what it had. */
static int read_part(int fd, int64_t offset, size_t n, uint8_t *to)
{
    for (size_t done = 0; done < n;) {
        const ssize_t some = pread(fd, to + done, n - done, (off_t)(offset + (int64_t)done));
        if (some < 0 && errno == EINTR)
            continue;
        if (some < 0)
            return errno;
        if (some == 0)
            return EIO;
        done += (size_t)some;
    }
    return 0;
}

/* [offset, offset + bytes) of an open file, or all of it (bytes -1), as a part, if it may be. */
static status add_part(int fd, const struct stat *info, int64_t offset, int64_t bytes, int64_t most,
                       wire_msg *parts, json_writer *w)
{
    const int64_t n = bytes < 0 ? (int64_t)info->st_size : bytes;
    uint8_t *to;
    if (n > 0 && n <= most && offset <= (int64_t)info->st_size - n) {
        const size_t number = wire_msg_parts(parts);
        TRY(wire_msg_add_space(parts, (size_t)n, &to));
        const int failed = read_part(fd, offset, (size_t)n, to);
        if (failed) {
            json_put_key_int(w, "errno", failed);
            return ST_OK;
        }
        json_put_key_int(w, "part", (int64_t)number + PARTS_BEFORE);
    }
    json_put_key_int(w, "size", (int64_t)info->st_size);
    json_put_key_int(w, "mtime",
                     (int64_t)info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec);
    return ST_OK;
}

static status ship_one(const char *path, int64_t offset, int64_t bytes, int64_t most,
                       wire_msg *parts, json_writer *w)
{
    struct stat info;
    status st = ST_OK;
    json_begin_object(w);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, &info) != 0) {
        json_put_key_int(w, "errno", errno);
    } else if (!S_ISREG(info.st_mode)) {
        json_put_key(w, "irregular");
        json_put_bool(w, true);
    } else {
        st = add_part(fd, &info, offset, bytes, most, parts, w);
    }
    if (fd >= 0)
        close(fd);
    json_end_object(w);
    return st;
}

status ship_file(const dataset *d, int64_t j, const image_place *place, const int64_t *index,
                 int64_t n, const conf *limits, wire_msg *parts, json_writer *w)
{
    char path[PATH_MAX + PLACE_PATH];
    const int64_t most = place->video ? limits->video_file_bytes : limits->image_file_bytes;
    status st = ST_OK;
    json_put_key(w, "shipped");
    json_begin_array(w);
    for (int64_t k = 0; st == ST_OK && k < (place->n_frames ? n : 1); k++) {
        const char *name =
            place->n_frames ? d->v->frame(d, j, (int32_t)(index ? index[k] : k)) : "";
        snprintf(path, sizeof path, "%s/%s%s%s", d->v->root(d), place->path, *name ? "/" : "",
                 name);
        st = ship_one(path, place->offset, place->bytes, most, parts, w);
    }
    json_end_array(w);
    return st;
}
