/* video.h: a video file -> chosen frames as RGB, through FFmpeg; the only door to it. Loaded by
 * workers only.
 *
 * MP4 (MOV), Matroska (WebM), AVI and MPEG-TS with H.264, HEVC, AV1, VP8, VP9, MPEG-4, MPEG-2,
 * MPEG-1 or Motion JPEG in their first stream of pictures; anything else is refused by name. One
 * thread, no file but the one given. Frames are numbered in the order they are shown, from 0; they
 * are not turned by a rotation the file may ask for, as in the reference. Colours by the file's own
 * matrix (BT.601 where it names none), arithmetic that is the same on every CPU.
 *
 * Failures are ST_BAD_INPUT with the file's name, and cost that file alone; ST_NO_MEMORY from the
 * library or the arena, ST_IO where the file cannot be read here, with the one on disk. Not
 * thread-safe. */
#ifndef TESSERA_PREPD_SAMPLE_VIDEO_H
#define TESSERA_PREPD_SAMPLE_VIDEO_H

#include "prepd/sample/image.h"

/* Where a video's bytes are: in memory, or (memory.data NULL) [at, at + size) of an open file. */
typedef struct video_bytes {
    span memory;
    int fd;
    int64_t at, size;         /* size: in memory too */
    const char *path;         /* of the open file, which may be one that holds the video */
    bool (*again)(int error); /* after a failed read: whether to try it again; NULL: never */
} video_bytes;

typedef struct video_info {
    int32_t width, height;
    int64_t frames; /* that are shown */
    double fps;     /* on average; 0: the file does not say */
    const char *format;
} video_info;

void video_library_init(void);

/* From the container's tables, or, where it has none, from a walk over its packets; nothing is
 * kept of a file that ends early, has more than video.input_frames or frames of more than
 * image.input_pixels. */
WARN_UNUSED status video_header(const video_bytes *bytes, const char *file, const conf *limits,
                                video_info *out);

/* Takes chosen frame number nth of [0, n); `frame` is lent until the call returns. */
typedef status (*video_take)(void *user, int64_t nth, const image *frame);

/* Decodes from the beginning to the last of index [n], ascending. Every frame is as large as the
 * first. What the arena was used for is given back. */
WARN_UNUSED status video_decode(const video_bytes *bytes, const char *file, const conf *limits,
                                const int64_t *index, int64_t n, arena *a, video_take take,
                                void *user);

/* Hash of the frames of a built-in video: two workers with the same one give the same frames. */
WARN_UNUSED status video_fingerprint(hash128 *out);

#endif
