/* SPDX-License-Identifier: Apache-2.0 */
/* ship.c: reads files of the data folder into the parts of a lease's message, and finds files that
 * lie outside the folder. */
#include "prepd/serve/shell.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PARTS_BEFORE = 2 }; /* parts of a lease's message before the files: header and JSON */

/* Reads `count` bytes at an offset. 0 or errno; EIO for a file that ends early. Without the waits
 * of file_read_at, since the dispatcher's loop runs here; a worker asks again after EIO. */
static int read_part(int fd, int64_t offset, size_t count, uint8_t *to)
{
    for (size_t done = 0; done < count;) {
        const ssize_t some = pread(fd, to + done, count - done, (off_t)(offset + (int64_t)done));
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

/* Adds [offset, offset + bytes) of an open file, or all of it (bytes -1), as a part of the message,
 * if it has at most `most` bytes and lies inside the file. Writes the file's size and time. */
static status add_part(int fd, const struct stat *info, int64_t offset, int64_t bytes, int64_t most,
                       wire_msg *parts, json_writer *writer)
{
    const int64_t count = bytes < 0 ? (int64_t)info->st_size : bytes;
    uint8_t *to;
    if (count > 0 && count <= most && offset <= (int64_t)info->st_size - count) {
        const size_t number = wire_msg_parts(parts);
        TRY(wire_msg_add_space(parts, (size_t)count, &to));
        const int failed = read_part(fd, offset, (size_t)count, to);
        if (failed) {
            json_put_key_int(writer, "errno", failed);
            return ST_OK;
        }
        json_put_key_int(writer, "part", (int64_t)number + PARTS_BEFORE);
    }
    json_put_key_int(writer, "size", (int64_t)info->st_size);
    json_put_key_int(writer, "mtime",
                     (int64_t)info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec);
    return ST_OK;
}

/* Writes the path of file `nth` of an image, relative to the data folder. `index` is as in
 * ship_file.
 */
static void name_file(const dataset *set, int64_t at, const image_place *place,
                      const int64_t *index, int64_t nth, char *out, size_t size)
{
    const char *name =
        place->n_frames ? set->adapter->frame(set, at, (int32_t)(index ? index[nth] : nth)) : "";
    snprintf(out, size, "%s%s%s", place->path, *name ? "/" : "", name);
}

static status ship_one(const dataset *set, int64_t index, const char *path,
                       const image_place *place, int64_t most, wire_msg *parts, json_writer *writer)
{
    struct stat info;
    status st = ST_OK;
    json_begin_object(writer);
    const int fd = dataset_image_open(set, index, path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, &info) != 0) {
        json_put_key_int(writer, "errno", errno);
    } else if (!S_ISREG(info.st_mode)) {
        json_put_key_bool(writer, "irregular", true);
    } else {
        st = add_part(fd, &info, place->offset, place->bytes, most, parts, writer);
    }
    if (fd >= 0)
        close(fd);
    json_end_object(writer);
    return st;
}

status ship_file(const dataset *data, int64_t image, const image_place *place, const int64_t *index,
                 int64_t count, const conf *limits, wire_msg *parts, json_writer *out)
{
    char path[2 * PLACE_PATH];
    const int64_t most = place->video ? limits->video_file_bytes : limits->image_file_bytes;
    status st = ST_OK;
    json_begin_key_array(out, "shipped");
    for (int64_t k = 0; st == ST_OK && k < (place->n_frames ? count : 1); k++) {
        name_file(data, image, place, index, k, path, sizeof path);
        st = ship_one(data, image, path, place, most, parts, out);
    }
    json_end_array(out);
    return st;
}

static bool lies_outside(const dataset *set, int64_t index, const char *path)
{
    const int fd = dataset_image_open(set, index, path, O_PATH);
    if (fd >= 0)
        close(fd);
    return fd < 0 && errno == EXDEV;
}

status ship_check(const dataset *data)
{
    char path[2 * PLACE_PATH], first[2 * PLACE_PATH] = "";
    const char *holder = "";
    int64_t count = 0;
    for (int64_t j = 0; j < data->adapter->images(data); j++) {
        image_place place;
        dataset_image_place(data, j, &place);
        for (int64_t k = 0; k < (place.n_frames ? place.n_frames : 1); k++) {
            name_file(data, j, &place, NULL, k, path, sizeof path);
            if (!lies_outside(data, j, path) || count++ > 0)
                continue;
            strcpy(first, path);
            holder = dataset_holder(data, j);
        }
    }
    if (count == 0)
        return ST_OK;
    return FAIL_IN(
        ST_CONFIG, first,
        "this and %lld other files lie outside %s, through a link or as the data set names "
        "them, and data.ship sends nothing from outside that folder: name the folder that "
        "holds the files (data.images), mount it here (mount --bind), or set data.ship false "
        "and give workers the files (--data-root)",
        (long long)count - 1, holder);
}
