/* refs.c: finds the bytes of a file of a lease: on this machine, or among the parts of the message.
 */
#include "prepd/worker/refs.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char SOURCE[] = "lease";

status ref_read(const json_value *v, const wire_msg *parts, file_ref *out)
{
    file_ref f = {.parts = parts, .shipped = json_find(v, "shipped")};
    TRY(json_want_text(v, "path", SOURCE, &f.name));
    f.in = json_text(json_find(v, "in"), f.name);
    f.at = json_int(json_find(v, "at"), -1);
    f.bytes = json_int(json_find(v, "bytes"), -1);
    f.height = json_int(json_find(v, "height"), -1);
    f.width = json_int(json_find(v, "width"), -1);
    f.video = json_bool(json_find(v, "video"), false);
    f.frames = json_find(v, "frames");
    f.fps = json_real(json_find(v, "fps"), 0);
    if (f.in != f.name && (f.at < 0 || f.bytes < 0))
        return FAIL_IN(ST_PROTOCOL, SOURCE,
                       "a piece has %lld bytes at offset %lld, which is impossible",
                       (long long)f.bytes, (long long)f.at);
    if (f.frames && (json_count(f.frames) == 0 || f.in != f.name || !(f.fps > 0)))
        return FAIL_IN(ST_PROTOCOL, SOURCE,
                       "a folder has %zu frames at %g per second, which is impossible",
                       json_count(f.frames), f.fps);
    *out = f;
    return ST_OK;
}

status ref_frame(const file_ref *folder, int64_t k, char *path, size_t size, file_ref *out)
{
    const char *name = k < 0 ? NULL : json_text(json_item(folder->frames, (size_t)k), NULL);
    if (!name || strchr(name, '/'))
        return FAIL_IN(ST_PROTOCOL, SOURCE, "frame %lld of %zu has no name", (long long)k,
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
                      .nth = k,
                      .parts = folder->parts};
    return ST_OK;
}

/* Finds the bytes that came with the lease. If the daemon could not read the file, this fails as a
 * worker that tried would have failed. */
static status take_shipped(const file_ref *f, const char *full, int64_t max_bytes, file_view *out)
{
    const json_value *v = json_item(f->shipped, (size_t)f->nth);
    const int64_t failed = json_int(json_find(v, "errno"), 0);
    const int64_t part = json_int(json_find(v, "part"), -1);
    if (failed == EXDEV)
        return FAIL_IN(
            ST_NO_INPUT, full,
            "a link now leads outside the data folder: data.ship does not send the file");
    if (failed)
        return file_fail((int)failed, full, -1, "opened");
    if (json_bool(json_find(v, "irregular"), false))
        return FAIL_IN(ST_BAD_INPUT, full, "is not a regular file");
    out->file_bytes = json_int(json_find(v, "size"), -1);
    out->mtime_ns = json_int(json_find(v, "mtime"), 0);
    TRY(file_check(full, f->at, f->bytes, max_bytes, out->file_bytes));
    const int64_t wanted = f->at < 0 ? out->file_bytes : f->bytes;
    const span bytes = part >= 2 && f->parts ? wire_msg_part(f->parts, (size_t)part) : (span){0};
    if ((int64_t)bytes.size != wanted)
        return FAIL_IN(ST_PROTOCOL, SOURCE, "%s came with %zu of its %lld bytes", f->name,
                       bytes.size, (long long)wanted);
    out->bytes = bytes;
    return ST_OK;
}

status ref_start(const file_ref *f, const char *root, int64_t max_bytes, int64_t max_start,
                 arena *a, file_view *out)
{
    char full[PATH_MAX];
    if (f->shipped)
        return ref_view(f, root, max_bytes, a, out);
    TRY(file_resolve(root, f->in, full, sizeof(full)));
    return file_start(full, f->at, f->bytes, max_bytes, max_start, a, out);
}

status ref_view(const file_ref *f, const char *root, int64_t max_bytes, arena *a, file_view *out)
{
    char full[PATH_MAX];
    TRY(file_resolve(root, f->in, full, sizeof(full)));
    if (f->shipped) {
        const status st = take_shipped(f, full, max_bytes, out);
        out->file_bytes = f->at < 0 ? out->file_bytes : f->bytes;
        return st;
    }
    if (f->at < 0)
        return file_map(full, max_bytes, out);
    span piece;
    out->file_bytes = f->bytes;
    status st = file_read_piece(full, f->at, f->bytes, max_bytes, a, &piece, &out->mtime_ns);
    if (st == ST_OK)
        out->bytes = piece;
    return st;
}

void ref_unview(const file_ref *f, file_view *v)
{
    if (f->at < 0 && !f->shipped)
        file_unmap(v);
}

status ref_load(const file_ref *f, const char *root, int64_t max_bytes, arena *a, span *out)
{
    char full[PATH_MAX];
    int64_t mtime_ns;
    file_view view;
    TRY(file_resolve(root, f->in, full, sizeof(full)));
    if (f->shipped) {
        TRY(take_shipped(f, full, max_bytes, &view));
        *out = view.bytes;
        return ST_OK;
    }
    return f->at < 0 ? file_read(full, max_bytes, f->bytes, a, out)
                     : file_read_piece(full, f->at, f->bytes, max_bytes, a, out, &mtime_ns);
}

status ref_open(const file_ref *f, const char *root, int64_t max_bytes, video_bytes *out,
                int64_t *out_mtime_ns)
{
    char full[PATH_MAX];
    video_bytes v = {.at = f->at < 0 ? 0 : f->at, .fd = -1, .path = f->in, .again = file_again};
    status st;
    *out = (video_bytes){.fd = -1};
    TRY(file_resolve(root, f->in, full, sizeof(full)));
    if (f->shipped) {
        file_view view = {0};
        st = take_shipped(f, full, max_bytes, &view);
        *out_mtime_ns = view.mtime_ns;
        *out = (video_bytes){
            .memory = view.bytes, .fd = -1, .size = f->at < 0 ? view.file_bytes : f->bytes};
        return st;
    }
    st = file_open(full, f->at, f->bytes, max_bytes, &v.fd, &v.size, out_mtime_ns);
    *out = v;
    return st;
}

void ref_close(video_bytes *v)
{
    if (v->fd >= 0)
        close(v->fd);
}
