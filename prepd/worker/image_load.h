/* image_load.h: the libraries of pictures and videos (image.h through vips, video.h through FFmpeg)
 * as a module that is loaded when wanted.
 *
 * prepd itself does not link vips, so the dispatcher can not run it and then fork, and a broken
 * image library can not keep the daemon from starting. The module is lib/libprepd_image.so beside
 * the program's bin folder, or $TESSERA_IMAGE_MODULE. */
#ifndef TESSERA_PREPD_IMAGE_LOAD_H
#define TESSERA_PREPD_IMAGE_LOAD_H

#include "prepd/sample/image.h"
#include "prepd/sample/video.h"

enum { IMAGE_API_VERSION = 2 };

typedef struct image_api {
    int version;
    status (*init)(const char *program);
    void (*done)(void);
    status (*header)(span bytes, const char *file, const conf *limits, image_info *out);
    status (*decode)(span bytes, const char *file, const conf *limits, arena *a, image *out);
    status (*fingerprint)(hash128 *out); /* of pictures and videos */
    status (*write_jpeg)(const image *im, int quality, uint8_t **out, size_t *out_size);
    status (*resize_vips)(const image *in, int32_t height, int32_t width, arena *a, image *out);
    status (*video_header)(const video_bytes *bytes, const char *file, const conf *limits,
                           video_info *out);
    status (*video_decode)(const video_bytes *bytes, const char *file, const conf *limits,
                           const int64_t *index, int64_t n, arena *a, video_take take, void *user);
} image_api;

/* The module's one exported name. */
#define IMAGE_API_SYMBOL "tessera_image_api"

/* Loads the module and calls its init. The table lives until the process ends (vips can not be
 * unloaded safely). Missing module: ST_UNAVAILABLE with the path. */
WARN_UNUSED status image_load(const char *program, const image_api **out);

#endif
