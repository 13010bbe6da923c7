/* SPDX-License-Identifier: Apache-2.0 */
/* unpack.c: reads a file through one of the decoders of unpack.h.
 *
 * Unpacked bytes go into a ring of 32 MiB: byte o of the unpacked file lies at o % KEPT_BYTES. A
 * place that the ring still holds is copied from there. A place further on is reached by unpacking
 * on, or from a restart point between here and there. A place before the ring is reached from the
 * restart point before it. A file is "at rest" while it is closed and has no ring. */
#include "prepd/dataset/unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"
#include "prepd/dataset/tables.h"

enum {
    IN_BYTES = 256 * 1024,
    KEPT_BYTES = 32 * 1024 * 1024, /* the ring of what was unpacked last */
    /* Unpacked bytes between restart points: about what must be unpacked to enter a file. */
    POINT_EVERY = 8 * 1024 * 1024,
    STEP_BYTES = KEPT_BYTES / 4, /* the most that one step of the decoder may add */
};

struct unpack {
    char *path;
    int fd; /* -1 at rest */
    int64_t file_bytes, mtime_ns;
    const unpack_kind *kind; /* NULL: plain */
    unpack_restart *points;
    int64_t n_points, point_capacity;
    int64_t next_at; /* offset in the unpacked bytes of what unpack_next gives next */
    int64_t total;   /* unpacked bytes; -1 until the first reading has come to the end */
    /* These are there only while the file is not at rest. */
    unpack_decoder *decoder;
    uint8_t *in;
    size_t in_at, in_n;
    int64_t packed_at;   /* offset in the file of in[in_n], the next byte to be read */
    bool starved;        /* the last step did not fill its room, so it needs more input */
    uint8_t *kept;       /* [KEPT_BYTES] the ring */
    int64_t kept_from;   /* offset of the first unpacked byte that the ring still holds */
    int64_t unpacked_at; /* offset after the last one, where the decoder stands */
};

static status open_again(unpack *file)
{
    struct stat info;
    if (file->fd >= 0)
        return ST_OK;
    file->fd = open(file->path, O_RDONLY | O_CLOEXEC);
    if (file->fd < 0)
        return FAIL_IN(errno == ENOENT ? ST_NO_INPUT : ST_IO, file->path, "cannot open: %s",
                       strerror(errno));
    if (fstat(file->fd, &info) != 0 || !S_ISREG(info.st_mode))
        return FAIL_IN(ST_BAD_INPUT, file->path, "it is not a regular file");
    int64_t mtime_ns = (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec;
    if (file->file_bytes >= 0 && (file->file_bytes != info.st_size || file->mtime_ns != mtime_ns))
        return FAIL_IN(ST_BAD_INPUT, file->path,
                       "the file changed while it was in use: start again");
    file->file_bytes = info.st_size;
    file->mtime_ns = mtime_ns;
    return ST_OK;
}

static status read_at(unpack *file, int64_t offset, void *to, size_t size, size_t *out_n)
{
    const ssize_t got = file_read_at(file->fd, to, size, offset);
    if (got < 0)
        return FAIL_AT(ST_IO, file->path, -1, offset, "it cannot be read: %s", strerror(errno));
    *out_n = (size_t)got;
    return ST_OK;
}

static status add_point(unpack *file, unpack_restart at)
{
    void *window = NULL;
    TRY(array_room((void **)&file->points, file->n_points, &file->point_capacity,
                   sizeof *file->points));
    if (!at.fresh) {
        window = malloc(UNPACK_WINDOW);
        if (!window)
            return FAIL(ST_NO_MEMORY, "no memory for a restart point");
        for (int64_t i = 0; i < UNPACK_WINDOW;) { /* the ring holds it in at most two pieces */
            size_t from = (size_t)((at.unpacked - UNPACK_WINDOW + i) % KEPT_BYTES);
            size_t count = KEPT_BYTES - from < (size_t)(UNPACK_WINDOW - i)
                               ? KEPT_BYTES - from
                               : (size_t)(UNPACK_WINDOW - i);
            memcpy((uint8_t *)window + i, file->kept + from, count);
            i += (int64_t)count;
        }
    }
    at.window = (uint8_t *)window;
    file->points[file->n_points++] = at;
    return ST_OK;
}

/* Lets the decoder begin at a restart point, with an empty ring and no input. */
static status restart(unpack *file, const unpack_restart *at)
{
    uint8_t before = 0;
    size_t count;
    if (at->bits) {
        TRY(read_at(file, at->packed - 1, &before, 1, &count));
        if (count != 1)
            return FAIL_IN(ST_BAD_INPUT, file->path, "the file became shorter while it was in use");
    }
    file->in_at = file->in_n = 0;
    file->packed_at = at->packed;
    file->starved = true;
    file->kept_from = file->unpacked_at = at->unpacked;
    return file->kind->restart(file->decoder, at, before);
}

static status wake_stream(unpack *file)
{
    TRY(open_again(file));
    if (file->decoder)
        return ST_OK;
    file->in = (uint8_t *)malloc(IN_BYTES);
    file->kept = (uint8_t *)malloc(KEPT_BYTES);
    if (!file->in || !file->kept)
        return FAIL(ST_NO_MEMORY, "no memory to unpack %s", file->path);
    TRY(file->kind->begin(&file->decoder));
    return restart(file, &file->points[0]);
}

void unpack_rest(unpack *file)
{
    if (file->kind)
        file->kind->end(&file->decoder);
    free(file->in);
    free(file->kept);
    file->in = file->kept = NULL;
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
}

void unpack_close(unpack **file)
{
    if (!file || !*file)
        return;
    unpack_rest(*file);
    for (int64_t k = 0; k < (*file)->n_points; k++)
        free((*file)->points[k].window);
    free((*file)->points);
    free((*file)->path);
    free(*file);
    *file = NULL;
}

static status find_kind(unpack *file)
{
    uint8_t magic[4] = {0};
    size_t count;
    TRY(read_at(file, 0, magic, sizeof magic, &count));
    if (magic[0] == 0x1f && magic[1] == 0x8b)
        file->kind = &unpack_gzip;
    else if (magic[0] == 0x28 && magic[1] == 0xb5 && magic[2] == 0x2f && magic[3] == 0xfd)
        file->kind = &unpack_zstd;
    else if (magic[0] >> 4 == 5 && magic[1] == 0x2a && magic[2] == 0x4d && magic[3] == 0x18)
        file->kind = &unpack_zstd; /* a skippable frame, with which parallel writers begin */
    return ST_OK;
}

status unpack_open(const char *path, unpack **out)
{
    status st;
    unpack *file = (unpack *)calloc(1, sizeof *file);
    if (!file)
        return FAIL(ST_NO_MEMORY, "no memory for a file");
    file->fd = -1;
    file->file_bytes = -1;
    file->total = -1;
    file->path = strdup(path);
    if (!file->path) {
        st = FAIL(ST_NO_MEMORY, "no memory for a path");
        goto failed;
    }
    TRY_OR(failed, open_again(file));
    TRY_OR(failed, find_kind(file));
    file->points = (unpack_restart *)calloc(1, sizeof *file->points);
    if (!file->points) {
        st = FAIL(ST_NO_MEMORY, "no memory for a restart point");
        goto failed;
    }
    file->points[0].fresh = true;
    file->n_points = file->point_capacity = 1; /* most files need no more */
    if (!file->kind)
        file->total = file->file_bytes;
    *out = file;
    return ST_OK;
failed:
    unpack_close(&file);
    return st;
}

/* Unpacks some more into the ring, and notes a restart point if one is due during the first
 * reading. *out_end says whether the file has come to its end. */
static status advance(unpack *file, bool *out_end)
{
    *out_end = false;
    if (file->in_at == file->in_n && file->starved) {
        TRY(read_at(file, file->packed_at, file->in, IN_BYTES, &file->in_n));
        file->in_at = 0;
        file->packed_at += (int64_t)file->in_n;
        if (file->in_n == 0) {
            *out_end = true;
            if (file->kind->may_end(file->decoder))
                return ST_OK;
            return FAIL_AT(ST_BAD_INPUT, file->path, -1, file->packed_at,
                           "the compressed file stops early");
        }
    }
    size_t at = (size_t)(file->unpacked_at % KEPT_BYTES);
    size_t room = KEPT_BYTES - at < STEP_BYTES ? KEPT_BYTES - at : STEP_BYTES;
    size_t taken = file->in_n - file->in_at, given = room;
    bool border;
    unpack_restart point;
    if (file->kind->step(file->decoder, file->in + file->in_at, &taken, file->kept + at, &given,
                         &border, &point) != ST_OK) {
        char what[STATUS_MESSAGE_MAX];
        status code = status_last()->code;
        strcpy(what, status_last()->message);
        return FAIL_AT(code, file->path, -1, file->packed_at - (int64_t)(file->in_n - file->in_at),
                       "%s", what);
    }
    file->in_at += taken;
    file->starved = given < room;
    file->unpacked_at += (int64_t)given;
    if (file->unpacked_at - file->kept_from > KEPT_BYTES)
        file->kept_from = file->unpacked_at - KEPT_BYTES;
    if (border && file->total < 0 &&
        file->unpacked_at >= file->points[file->n_points - 1].unpacked + POINT_EVERY) {
        point.unpacked = file->unpacked_at;
        point.packed = file->packed_at - (int64_t)(file->in_n - file->in_at);
        TRY(add_point(file, point));
    }
    return ST_OK;
}

static void copy_kept(const unpack *file, int64_t offset, uint8_t *to, size_t bytes)
{
    while (bytes) {
        size_t from = (size_t)(offset % KEPT_BYTES);
        size_t some = KEPT_BYTES - from < bytes ? KEPT_BYTES - from : bytes;
        memcpy(to, file->kept + from, some);
        to += some;
        offset += (int64_t)some;
        bytes -= some;
    }
}

status unpack_next(unpack *file, void *to, size_t size, size_t *out_n)
{
    if (!file->kind) {
        TRY(open_again(file));
        TRY(read_at(file, file->next_at, to, size, out_n));
        file->next_at += (int64_t)*out_n;
        return ST_OK;
    }
    TRY(wake_stream(file));
    int64_t from = file->next_at;
    bool end = false;
    while (file->unpacked_at == from && !end)
        TRY(advance(file, &end));
    if (end)
        file->total = file->unpacked_at;
    size_t count =
        (size_t)(file->unpacked_at - from) < size ? (size_t)(file->unpacked_at - from) : size;
    copy_kept(file, from, (uint8_t *)to, count);
    file->next_at += (int64_t)count;
    *out_n = count;
    return ST_OK;
}

status unpack_peek(unpack *file, void *to, size_t size, size_t *out_n)
{
    bool end = false;
    if (!file->kind) {
        TRY(open_again(file));
        return read_at(file, 0, to, size, out_n);
    }
    TRY(wake_stream(file));
    while (file->unpacked_at < (int64_t)size && !end)
        TRY(advance(file, &end));
    *out_n = file->unpacked_at < (int64_t)size ? (size_t)file->unpacked_at : size;
    copy_kept(file, 0, (uint8_t *)to, *out_n);
    return ST_OK;
}

static status plain_at(unpack *file, int64_t offset, uint8_t *to, size_t bytes)
{
    TRY(open_again(file));
    while (bytes) {
        size_t some;
        TRY(read_at(file, offset, to, bytes, &some));
        if (some == 0)
            return FAIL_AT(ST_BAD_INPUT, file->path, -1, offset,
                           "the file became shorter while it was in use");
        to += some;
        offset += (int64_t)some;
        bytes -= some;
    }
    return ST_OK;
}

/* The last restart point at or before the offset. */
static const unpack_restart *point_before(const unpack *file, int64_t offset)
{
    int64_t low = 0, high = file->n_points;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (file->points[middle].unpacked <= offset)
            low = middle;
        else
            high = middle;
    }
    return &file->points[low];
}

status unpack_at(unpack *file, int64_t offset, void *to, size_t bytes)
{
    uint8_t *at = (uint8_t *)to;
    if (!file->kind)
        return plain_at(file, offset, at, bytes);
    TRY(wake_stream(file));
    const unpack_restart *point = point_before(file, offset);
    if (offset < file->kept_from || point->unpacked > file->unpacked_at)
        TRY(restart(file, point));
    while (bytes) {
        bool end = false;
        while (file->unpacked_at <= offset && !end)
            TRY(advance(file, &end));
        if (end)
            return FAIL_IN(ST_BAD_INPUT, file->path, "the file became shorter while it was in use");
        size_t there = (size_t)(file->unpacked_at - offset);
        size_t some = there < bytes ? there : bytes;
        copy_kept(file, offset, at, some);
        at += some;
        offset += (int64_t)some;
        bytes -= some;
    }
    return ST_OK;
}

bool unpack_random(const unpack *file)
{
    return !file->kind;
}

int64_t unpack_points(const unpack *file)
{
    return file->n_points;
}

int64_t unpack_point(const unpack *file, int64_t index)
{
    return file->points[index].unpacked;
}

int64_t unpack_longest(const unpack *file)
{
    int64_t longest = 0;
    for (int64_t k = 0; file->kind && k < file->n_points; k++) {
        const int64_t end = k + 1 < file->n_points ? file->points[k + 1].unpacked : file->total;
        if (end - file->points[k].unpacked > longest)
            longest = end - file->points[k].unpacked;
    }
    return longest;
}

void unpack_stamp(const unpack *file, int64_t *out_bytes, int64_t *out_mtime_ns)
{
    *out_bytes = file->file_bytes;
    *out_mtime_ns = file->mtime_ns;
}

int64_t unpack_total(const unpack *file)
{
    return file->total;
}

const unpack_restart *unpack_restarts(const unpack *file)
{
    return file->points;
}

/* Whether these can be the restart points of this file, as far as that can be told without
 * unpacking. */
static bool can_be_of(const unpack *file, const unpack_restart *restart, int64_t count,
                      int64_t total)
{
    bool ok = count > 0 && total >= 0 && restart[0].fresh && restart[0].unpacked == 0 &&
              restart[0].packed == 0 && (file->kind || (count == 1 && total == file->file_bytes));
    for (int64_t k = 0; ok && k < count; k++)
        ok = restart[k].bits >= 0 && restart[k].bits < 8 &&
             restart[k].packed >= (restart[k].bits > 0) && restart[k].packed <= file->file_bytes &&
             restart[k].unpacked <= total &&
             (k == 0 || restart[k].unpacked > restart[k - 1].unpacked) &&
             restart[k].fresh == !restart[k].window;
    return ok;
}

status unpack_adopt(unpack *file, const unpack_restart *points, int64_t count, int64_t total)
{
    if (!can_be_of(file, points, count, total))
        return FAIL_IN(ST_BAD_INPUT, file->path, "the restart points cannot be those of this file");
    for (int64_t k = 1; k < count; k++) { /* the first, at 0, is there already */
        unpack_restart restart = points[k];
        TRY(array_room((void **)&file->points, file->n_points, &file->point_capacity,
                       sizeof *file->points));
        if (restart.window) {
            restart.window = (uint8_t *)malloc(UNPACK_WINDOW);
            if (!restart.window)
                return FAIL(ST_NO_MEMORY, "no memory for a restart point");
            memcpy(restart.window, points[k].window, UNPACK_WINDOW);
        }
        file->points[file->n_points++] = restart;
    }
    file->total = total;
    return ST_OK;
}

void unpack_forget(unpack *file)
{
    for (; file->n_points > 1; file->n_points--)
        free(file->points[file->n_points - 1].window);
    file->total = file->kind ? -1 : file->file_bytes;
}
