/* SPDX-License-Identifier: Apache-2.0 */
/* video_module.c: the table of functions that libprepd_video.so exports (image_load.h). */
#include "prepd/worker/media/image_load.h"

extern const video_api tessera_video_api;

__attribute__((visibility("default"))) const video_api tessera_video_api = {
    .version = VIDEO_API_VERSION,
    .init = video_library_init,
    .header = video_header,
    .decode = video_decode,
    .fingerprint = video_fingerprint,
};
