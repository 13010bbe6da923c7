/* image_load.h: the libraries of pictures (image.h through vips) and of videos (video.h through
 * FFmpeg) as two modules that are loaded when wanted.
 *
 * prepd itself links neither, so the dispatcher cannot run them and then fork, and a broken
 * library cannot keep the daemon from starting. Pictures are for every worker; FFmpeg and what it
 * brings along (10 MiB a worker) only for those whose data may hold videos. The modules are
 * lib/libprepd_image.so and lib/libprepd_video.so beside the program's bin folder, or
 * $TESSERA_IMAGE_MODULE and $TESSERA_VIDEO_MODULE. */
#ifndef TESSERA_PREPD_WORKER_IMAGE_LOAD_H
#define TESSERA_PREPD_WORKER_IMAGE_LOAD_H

#include "prepd/sample/image.h"
#include "prepd/sample/video.h"

enum { IMAGE_API_VERSION = 7, VIDEO_API_VERSION = 2 };

typedef struct image_api {
    int version;
    status (*init)(const char *program);
    void (*done)(void);
    status (*header)(span bytes, const char *file, const conf *limits, image_info *out);
    bool (*header_of_start)(span start, const conf *limits, image_info *out);
    status (*decode)(span bytes, const char *file, const conf *limits, const image_rows *rows,
                     arena *a, image *out); /* image_decode_rows */
    status (*fingerprint)(hash128 *out);
    status (*write_jpeg)(const image *im, int quality, uint8_t **out, size_t *out_size);
    status (*resize_vips)(const image *in, int32_t height, int32_t width, arena *a, image *out);
} image_api;

typedef struct video_api {
    int version;
    void (*init)(void);
    status (*header)(const video_bytes *bytes, const char *file, const conf *limits,
                     video_info *out);
    status (*decode)(const video_bytes *bytes, const char *file, const conf *limits,
                     const int64_t *index, int64_t n, arena *a, video_take take, void *user);
    status (*fingerprint)(hash128 *out);
} video_api;

/* The modules' one exported name each. */
#define IMAGE_API_SYMBOL "tessera_image_api"
#define VIDEO_API_SYMBOL "tessera_video_api"

/* Loads a module and calls its init. The table lives until the process ends (vips cannot be
 * unloaded safely). Missing module: ST_UNAVAILABLE with the path. */
WARN_UNUSED status image_load(const char *program, const image_api **out);
WARN_UNUSED status video_load(const video_api **out);

#endif
