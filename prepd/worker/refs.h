/* refs.h: a FILE of a lease (prepd/serve/payload.c) and its bytes, found under a data root. */
#ifndef TESSERA_PREPD_WORKER_REFS_H
#define TESSERA_PREPD_WORKER_REFS_H

#include "common/json/json.h"
#include "prepd/sample/video.h"
#include "prepd/worker/image_files.h"
#include "proto/wire.h"

typedef struct file_ref {
    const char *name;      /* for messages */
    const char *in;        /* the file under the root: name, or what it is a piece of */
    int64_t at;            /* -1: a file of its own */
    int64_t bytes;         /* -1: not known */
    int64_t height, width; /* of a picture, as indexed; -1: not known */
    bool video;
    const json_value *frames;  /* a folder of frames: their names; NULL: a file */
    double fps;                /* of such frames */
    const json_value *shipped; /* what came with the lease, one per file; NULL: read it here */
    int64_t nth;               /* which of shipped */
    const wire_msg *parts;     /* of the lease */
} file_ref;

/* Borrows the lease and the message it came in. */
WARN_UNUSED status ref_read(const json_value *v, const wire_msg *parts, file_ref *out);

/* Frame k of a folder as a file of its own; its path is put into the buffer. */
WARN_UNUSED status ref_frame(const file_ref *folder, int64_t k, char *path, size_t size,
                             file_ref *out);

/* Its first bytes for its header, up to max_start; of a shipped file all. */
WARN_UNUSED status ref_start(const file_ref *f, const char *root, int64_t max_bytes,
                             int64_t max_start, arena *a, file_view *out);

/* All of it for its header: mapped, or read into the arena if it is a piece of another. Size and
 * time are given even if that fails. */
WARN_UNUSED status ref_view(const file_ref *f, const char *root, int64_t max_bytes, arena *a,
                            file_view *out);
void ref_unview(const file_ref *f, file_view *v);

/* All of it in the arena. */
WARN_UNUSED status ref_load(const file_ref *f, const char *root, int64_t max_bytes, arena *a,
                            span *out);

/* A video, which is read as it is decoded; to be closed. Its size and time are given even if that
 * fails, where it is there. */
WARN_UNUSED status ref_open(const file_ref *f, const char *root, int64_t max_bytes,
                            video_bytes *out, int64_t *out_mtime_ns);
void ref_close(video_bytes *v);

#endif
