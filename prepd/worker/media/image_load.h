/* SPDX-License-Identifier: Apache-2.0 */
/* image_load.h: loads the picture decoder (sample/image.h, libvips) and the video decoder
 * (sample/video.h, FFmpeg) as modules, when they are wanted.
 *
 * prepd itself links neither library. So the dispatcher cannot run them, their threads cannot get
 * in the way of starting processes, and a broken library cannot keep the daemon from starting.
 * Every worker loads the picture module; the video module, which costs about 10 MiB a worker, is
 * loaded only if the data may hold videos. The modules are libprepd_image.so and libprepd_video.so,
 * found as common/program/module.h says, or $TESSERA_IMAGE_MODULE and $TESSERA_VIDEO_MODULE. */
#ifndef TESSERA_PREPD_WORKER_MEDIA_IMAGE_LOAD_H
#define TESSERA_PREPD_WORKER_MEDIA_IMAGE_LOAD_H

#include "prepd/sample/decode/image.h"
#include "prepd/sample/decode/video.h"

enum { IMAGE_API_VERSION = 8, VIDEO_API_VERSION = 2 };

/* The functions of image.h, as the module exports them. */
typedef struct image_api {
    int version;
    status (*init)(const char *program);
    void (*done)(void);
    status (*header)(span bytes, const char *file, const conf *limits, image_info *out);
    bool (*header_of_start)(span start, const conf *limits, image_info *out);
    status (*decode)(span bytes, const char *file, const conf *limits, const image_rows *rows,
                     arena *memory, image *out); /* image_decode_rows */
    status (*fingerprint)(hash128 *out);
    status (*write_png)(const image *im, uint8_t **out, size_t *out_size);
    status (*resize_vips)(const image *in, int32_t height, int32_t width, arena *memory,
                          image *out);
} image_api;

/* The functions of video.h. */
typedef struct video_api {
    int version;
    void (*init)(void);
    status (*header)(const video_bytes *bytes, const char *file, const conf *limits,
                     video_info *out);
    status (*decode)(const video_bytes *bytes, const char *file, const conf *limits,
                     const int64_t *index, int64_t count, arena *memory, video_take take,
                     void *user);
    status (*fingerprint)(hash128 *out);
} video_api;

/* The one name that each module exports. */
#define IMAGE_API_SYMBOL "tessera_image_api"
#define VIDEO_API_SYMBOL "tessera_video_api"

/* Load a module and call its init. program is argv[0], which libvips wants. The table lives until
 * the process ends, since libvips cannot be unloaded safely. ST_UNAVAILABLE names a module that is
 * missing or of another version. */
WARN_UNUSED status image_load(const char *program, const image_api **out);
WARN_UNUSED status video_load(const video_api **out);

#endif
