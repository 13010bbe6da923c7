/* SPDX-License-Identifier: Apache-2.0 */
/* image_module.c: the table of functions that libprepd_image.so exports (image_load.h). The module
 * uses `common` from the program that loads it, so that failures are noted in one place. */
#include "prepd/worker/media/image_load.h"

extern const image_api tessera_image_api;

__attribute__((visibility("default"))) const image_api tessera_image_api = {
    .version = IMAGE_API_VERSION,
    .init = image_library_init,
    .done = image_library_done,
    .header = image_header,
    .header_of_start = image_header_of_start,
    .decode = image_decode_rows,
    .fingerprint = image_fingerprint,
    .write_png = image_write_png,
    .resize_vips = image_resize_vips,
};
