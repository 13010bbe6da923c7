/* refs.c: finds the bytes of a file of a lease: on this machine,
 * or among the parts of the message. */
#include "prepd/worker/refs.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
    const int64_t part = json_int(json_find(value, "part"), -1);
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
        part >= 2 && file->parts ? wire_msg_part(file->parts, (size_t)part) : (span){0};
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
