#include "prepd/dataset/unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "prepd/dataset/tables.h"
#include "prepd/dataset/unpack_kind.h"

enum {
    IN_BYTES = 256 * 1024,
    KEPT_BYTES = 32 * 1024 * 1024, /* of what was unpacked last; a ring */
    POINT_EVERY = 8 * 1024 * 1024, /* unpacked bytes between restart points: 15 ms of inflate */
    STEP_BYTES = KEPT_BYTES / 4,   /* most that a step may add */
};

struct unpack {
    char *path;
    int fd; /* -1 at rest */
    int64_t file_bytes, mtime_ns;
    const unpack_kind *kind; /* NULL: plain */
    unpack_restart *points;
    int64_t n_points, point_capacity;
    int64_t next_at; /* in the unpacked bytes: what unpack_next hands out next */
    int64_t total;   /* unpacked bytes; -1 until the first reading came to the end */
    /* while awake */
    unpack_decoder *decoder;
    uint8_t *in;
    size_t in_at, in_n;
    int64_t packed_at; /* in the file, of in[in_n] */
    bool starved;      /* the last step left room: it wants input */
    uint8_t *kept;     /* ring of KEPT_BYTES; byte o of the unpacked file at o % KEPT_BYTES */
    int64_t kept_from, unpacked_at;
};

static status open_again(unpack *u)
{
    struct stat info;
    if (u->fd >= 0)
        return ST_OK;
    u->fd = open(u->path, O_RDONLY | O_CLOEXEC);
    if (u->fd < 0)
        return FAIL_IN(errno == ENOENT ? ST_NO_INPUT : ST_IO, u->path, "cannot open: %s",
                       strerror(errno));
    if (fstat(u->fd, &info) != 0 || !S_ISREG(info.st_mode))
        return FAIL_IN(ST_BAD_INPUT, u->path, "is no regular file");
    int64_t mtime_ns = (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec;
    if (u->file_bytes >= 0 && (u->file_bytes != info.st_size || u->mtime_ns != mtime_ns))
        return FAIL_IN(ST_BAD_INPUT, u->path, "changed while it was in use: start again");
    u->file_bytes = info.st_size;
    u->mtime_ns = mtime_ns;
    return ST_OK;
}

static status read_at(unpack *u, int64_t offset, void *to, size_t size, size_t *out_n)
{
    ssize_t n;
    do
        n = pread(u->fd, to, size, offset);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return FAIL_AT(ST_IO, u->path, -1, offset, "read failed: %s", strerror(errno));
    *out_n = (size_t)n;
    return ST_OK;
}

static status add_point(unpack *u, unpack_restart at)
{
    void *window = NULL;
    TRY(array_room((void **)&u->points, u->n_points, &u->point_capacity, sizeof *u->points));
    if (!at.fresh) {
        window = malloc(UNPACK_WINDOW);
        if (!window)
            return FAIL(ST_NO_MEMORY, "no memory for a restart point");
        for (int64_t i = 0; i < UNPACK_WINDOW;) { /* of a ring: two pieces at most */
            size_t from = (size_t)((at.unpacked - UNPACK_WINDOW + i) % KEPT_BYTES);
            size_t n = KEPT_BYTES - from < (size_t)(UNPACK_WINDOW - i)
                           ? KEPT_BYTES - from
                           : (size_t)(UNPACK_WINDOW - i);
            memcpy((uint8_t *)window + i, u->kept + from, n);
            i += (int64_t)n;
        }
    }
    at.window = (uint8_t *)window;
    u->points[u->n_points++] = at;
    return ST_OK;
}

/* Begins at a restart point: nothing is kept, nothing read. */
static status restart(unpack *u, const unpack_restart *at)
{
    uint8_t before = 0;
    size_t n;
    if (at->bits) {
        TRY(read_at(u, at->packed - 1, &before, 1, &n));
        if (n != 1)
            return FAIL_IN(ST_BAD_INPUT, u->path, "became shorter");
    }
    u->in_at = u->in_n = 0;
    u->packed_at = at->packed;
    u->starved = true;
    u->kept_from = u->unpacked_at = at->unpacked;
    return u->kind->restart(u->decoder, at, before);
}

static status wake_stream(unpack *u)
{
    TRY(open_again(u));
    if (u->decoder)
        return ST_OK;
    u->in = (uint8_t *)malloc(IN_BYTES);
    u->kept = (uint8_t *)malloc(KEPT_BYTES);
    if (!u->in || !u->kept)
        return FAIL(ST_NO_MEMORY, "no memory to unpack %s", u->path);
    TRY(u->kind->begin(&u->decoder));
    return restart(u, &u->points[0]);
}

void unpack_rest(unpack *u)
{
    if (u->kind)
        u->kind->end(&u->decoder);
    free(u->in);
    free(u->kept);
    u->in = u->kept = NULL;
    if (u->fd >= 0)
        close(u->fd);
    u->fd = -1;
}

void unpack_close(unpack **u)
{
    if (!u || !*u)
        return;
    unpack_rest(*u);
    for (int64_t k = 0; k < (*u)->n_points; k++)
        free((*u)->points[k].window);
    free((*u)->points);
    free((*u)->path);
    free(*u);
    *u = NULL;
}

static status find_kind(unpack *u)
{
    uint8_t magic[4] = {0};
    size_t n;
    TRY(read_at(u, 0, magic, sizeof magic, &n));
    if (magic[0] == 0x1f && magic[1] == 0x8b)
        u->kind = &unpack_gzip;
    else if (magic[0] == 0x28 && magic[1] == 0xb5 && magic[2] == 0x2f && magic[3] == 0xfd)
        u->kind = &unpack_zstd;
    else if (magic[0] >> 4 == 5 && magic[1] == 0x2a && magic[2] == 0x4d && magic[3] == 0x18)
        u->kind = &unpack_zstd; /* a skippable frame, as parallel writers put first */
    return ST_OK;
}

status unpack_open(const char *path, unpack **out)
{
    status st;
    unpack *u = (unpack *)calloc(1, sizeof *u);
    if (!u)
        return FAIL(ST_NO_MEMORY, "no memory for a file");
    u->fd = -1;
    u->file_bytes = -1;
    u->total = -1;
    u->path = strdup(path);
    if (!u->path) {
        st = FAIL(ST_NO_MEMORY, "no memory for a path");
        goto failed;
    }
    TRY_OR(failed, open_again(u));
    TRY_OR(failed, find_kind(u));
    TRY_OR(failed, add_point(u, (unpack_restart){.fresh = true}));
    if (!u->kind)
        u->total = u->file_bytes;
    *out = u;
    return ST_OK;
failed:
    unpack_close(&u);
    return st;
}

/* Unpacks some more into the ring; *out_end where the file ends well. */
static status advance(unpack *u, bool *out_end)
{
    *out_end = false;
    if (u->in_at == u->in_n && u->starved) {
        TRY(read_at(u, u->packed_at, u->in, IN_BYTES, &u->in_n));
        u->in_at = 0;
        u->packed_at += (int64_t)u->in_n;
        if (u->in_n == 0) {
            *out_end = true;
            if (u->kind->may_end(u->decoder))
                return ST_OK;
            return FAIL_AT(ST_BAD_INPUT, u->path, -1, u->packed_at,
                           "the compressed file stops early");
        }
    }
    size_t at = (size_t)(u->unpacked_at % KEPT_BYTES);
    size_t room = KEPT_BYTES - at < STEP_BYTES ? KEPT_BYTES - at : STEP_BYTES;
    size_t taken = u->in_n - u->in_at, given = room;
    bool border;
    unpack_restart point;
    if (u->kind->step(u->decoder, u->in + u->in_at, &taken, u->kept + at, &given, &border,
                      &point) != ST_OK) {
        char what[STATUS_MESSAGE_MAX];
        status code = status_last()->code;
        strcpy(what, status_last()->message);
        return FAIL_AT(code, u->path, -1, u->packed_at - (int64_t)(u->in_n - u->in_at), "%s", what);
    }
    u->in_at += taken;
    u->starved = given < room;
    u->unpacked_at += (int64_t)given;
    if (u->unpacked_at - u->kept_from > KEPT_BYTES)
        u->kept_from = u->unpacked_at - KEPT_BYTES;
    if (border && u->total < 0 &&
        u->unpacked_at >= u->points[u->n_points - 1].unpacked + POINT_EVERY) {
        point.unpacked = u->unpacked_at;
        point.packed = u->packed_at - (int64_t)(u->in_n - u->in_at);
        TRY(add_point(u, point));
    }
    return ST_OK;
}

static void copy_kept(const unpack *u, int64_t offset, uint8_t *to, size_t n)
{
    while (n) {
        size_t from = (size_t)(offset % KEPT_BYTES);
        size_t some = KEPT_BYTES - from < n ? KEPT_BYTES - from : n;
        memcpy(to, u->kept + from, some);
        to += some;
        offset += (int64_t)some;
        n -= some;
    }
}

status unpack_next(unpack *u, void *to, size_t size, size_t *out_n)
{
    if (!u->kind) {
        TRY(open_again(u));
        TRY(read_at(u, u->next_at, to, size, out_n));
        u->next_at += (int64_t)*out_n;
        return ST_OK;
    }
    TRY(wake_stream(u));
    int64_t from = u->next_at;
    bool end = false;
    while (u->unpacked_at == from && !end)
        TRY(advance(u, &end));
    if (end)
        u->total = u->unpacked_at;
    size_t n = (size_t)(u->unpacked_at - from) < size ? (size_t)(u->unpacked_at - from) : size;
    copy_kept(u, from, (uint8_t *)to, n);
    u->next_at += (int64_t)n;
    *out_n = n;
    return ST_OK;
}

status unpack_peek(unpack *u, void *to, size_t size, size_t *out_n)
{
    bool end = false;
    if (!u->kind) {
        TRY(open_again(u));
        return read_at(u, 0, to, size, out_n);
    }
    TRY(wake_stream(u));
    while (u->unpacked_at < (int64_t)size && !end)
        TRY(advance(u, &end));
    *out_n = u->unpacked_at < (int64_t)size ? (size_t)u->unpacked_at : size;
    copy_kept(u, 0, (uint8_t *)to, *out_n);
    return ST_OK;
}

static status plain_at(unpack *u, int64_t offset, uint8_t *to, size_t n)
{
    TRY(open_again(u));
    while (n) {
        size_t some;
        TRY(read_at(u, offset, to, n, &some));
        if (some == 0)
            return FAIL_AT(ST_BAD_INPUT, u->path, -1, offset, "became shorter while it was in use");
        to += some;
        offset += (int64_t)some;
        n -= some;
    }
    return ST_OK;
}

/* The last restart point at or before the offset. */
static const unpack_restart *point_before(const unpack *u, int64_t offset)
{
    int64_t low = 0, high = u->n_points;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (u->points[middle].unpacked <= offset)
            low = middle;
        else
            high = middle;
    }
    return &u->points[low];
}

status unpack_at(unpack *u, int64_t offset, void *to, size_t n)
{
    uint8_t *at = (uint8_t *)to;
    if (!u->kind)
        return plain_at(u, offset, at, n);
    TRY(wake_stream(u));
    const unpack_restart *point = point_before(u, offset);
    if (offset < u->kept_from || point->unpacked > u->unpacked_at)
        TRY(restart(u, point));
    while (n) {
        bool end = false;
        while (u->unpacked_at <= offset && !end)
            TRY(advance(u, &end));
        if (end)
            return FAIL_IN(ST_BAD_INPUT, u->path, "became shorter while it was in use");
        size_t there = (size_t)(u->unpacked_at - offset);
        size_t some = there < n ? there : n;
        copy_kept(u, offset, at, some);
        at += some;
        offset += (int64_t)some;
        n -= some;
    }
    return ST_OK;
}

bool unpack_random(const unpack *u)
{
    return !u->kind;
}

int64_t unpack_points(const unpack *u)
{
    return u->n_points;
}

int64_t unpack_point(const unpack *u, int64_t k)
{
    return u->points[k].unpacked;
}

int64_t unpack_longest(const unpack *u)
{
    int64_t longest = 0;
    for (int64_t k = 0; u->kind && k < u->n_points; k++) {
        const int64_t end = k + 1 < u->n_points ? u->points[k + 1].unpacked : u->total;
        if (end - u->points[k].unpacked > longest)
            longest = end - u->points[k].unpacked;
    }
    return longest;
}

void unpack_stamp(const unpack *u, int64_t *out_bytes, int64_t *out_mtime_ns)
{
    *out_bytes = u->file_bytes;
    *out_mtime_ns = u->mtime_ns;
}

int64_t unpack_total(const unpack *u)
{
    return u->total;
}

const unpack_restart *unpack_restarts(const unpack *u)
{
    return u->points;
}

static bool can_be_of(const unpack *u, const unpack_restart *p, int64_t n, int64_t total)
{
    bool ok = n > 0 && total >= 0 && p[0].fresh && p[0].unpacked == 0 && p[0].packed == 0 &&
              (u->kind || (n == 1 && total == u->file_bytes));
    for (int64_t k = 0; ok && k < n; k++)
        ok = p[k].bits >= 0 && p[k].bits < 8 && p[k].packed >= (p[k].bits > 0) &&
             p[k].packed <= u->file_bytes && p[k].unpacked <= total &&
             (k == 0 || p[k].unpacked > p[k - 1].unpacked) && p[k].fresh == !p[k].window;
    return ok;
}

status unpack_adopt(unpack *u, const unpack_restart *points, int64_t n, int64_t total)
{
    if (!can_be_of(u, points, n, total))
        return FAIL_IN(ST_BAD_INPUT, u->path, "restart points that cannot be of this file");
    for (int64_t k = 1; k < n; k++) { /* the first, at 0, is there */
        unpack_restart p = points[k];
        TRY(array_room((void **)&u->points, u->n_points, &u->point_capacity, sizeof *u->points));
        if (p.window) {
            p.window = (uint8_t *)malloc(UNPACK_WINDOW);
            if (!p.window)
                return FAIL(ST_NO_MEMORY, "no memory for a restart point");
            memcpy(p.window, points[k].window, UNPACK_WINDOW);
        }
        u->points[u->n_points++] = p;
    }
    u->total = total;
    return ST_OK;
}

void unpack_forget(unpack *u)
{
    for (; u->n_points > 1; u->n_points--)
        free(u->points[u->n_points - 1].window);
    u->total = u->kind ? -1 : u->file_bytes;
}
