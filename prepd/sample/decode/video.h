/* SPDX-License-Identifier: Apache-2.0 */
/* video.h: decodes chosen frames of a video file to RGB. This is the only door to FFmpeg, and only
 * workers load it.
 *
 * Reads MP4 (MOV), Matroska (WebM), AVI and MPEG-TS, with H.264, HEVC, AV1, VP8, VP9, MPEG-4,
 * MPEG-2, MPEG-1 or Motion JPEG in the first stream of pictures. Anything else is refused by name.
 * FFmpeg runs in one thread and opens no file but the given one. Frames are numbered from 0 in the
 * order in which they are shown. They are not turned by a rotation that the file may ask for,
 * because transformers' readers do not turn them either. Colours follow the matrix that the file
 * names (BT.601 if it names none), with arithmetic that gives the same on every x86 processor.
 *
 * A failure is ST_BAD_INPUT with the name of the file and costs that file alone. ST_NO_MEMORY comes
 * from the library or the arena; ST_IO, with the path on disk, means that the file cannot be read
 * on this machine. Not thread-safe. */
#ifndef TESSERA_PREPD_SAMPLE_DECODE_VIDEO_H
#define TESSERA_PREPD_SAMPLE_DECODE_VIDEO_H

#include "prepd/sample/decode/image.h"

/* Where the bytes of a video are: in memory, or [at, at + size) of an open file if memory.data is
 * NULL. */
typedef struct video_bytes {
    span memory;
    int fd;
    int64_t at, size;         /* the size is also that of the bytes in memory */
    const char *path;         /* of the open file, which may be a larger one that holds the video */
    bool (*again)(int error); /* asked after a failed read whether to try again; NULL: never */
} video_bytes;

typedef struct video_info {
    int32_t width, height;
    int64_t frames; /* how many are shown */
    double fps;     /* frames a second on average; 0 if the file does not say */
    const char *format;
} video_info;

void video_library_init(void); /* call this once per process */

/* Reads size, rate and number of frames, from the container's tables or, if it has none, by walking
 * over its packets. ST_BAD_INPUT also for a file that ends early, that has more frames than
 * video.input_frames, or whose frames have more pixels than image.input_pixels. */
WARN_UNUSED status video_header(const video_bytes *bytes, const char *file, const conf *limits,
                                video_info *out);

/* Takes the nth of the chosen frames; `frame` is borrowed during the call. */
typedef status (*video_take)(void *user, int64_t nth, const image *frame);

/* Decodes from the beginning up to the last frame of index [count], which is ascending, and calls
 * `take` for each frame of it. All frames have the same size. What was taken from `memory` is
 * released. */
WARN_UNUSED status video_decode(const video_bytes *bytes, const char *file, const conf *limits,
                                const int64_t *index, int64_t count, arena *memory, video_take take,
                                void *user);

/* A hash of the frames of a built-in video. Two workers with the same fingerprint give the same
 * frames. */
WARN_UNUSED status video_fingerprint(hash128 *out);

#endif
