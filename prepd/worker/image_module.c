/* image_module.c: the table that image_load.h finds in the module. The module takes common from
 * the program that loads it, so that failures are noted in one place. */
#include "prepd/worker/image_load.h"

extern const image_api tessera_image_api;

static status init(const char *program)
{
    video_library_init();
    return image_library_init(program);
}

static status fingerprint(hash128 *out)
{
    hash128 both[2];
    TRY(image_fingerprint(&both[0]));
    TRY(video_fingerprint(&both[1]));
    *out = hash_bytes(both, sizeof both);
    return ST_OK;
}

__attribute__((visibility("default"))) const image_api tessera_image_api = {
    .version = IMAGE_API_VERSION,
    .init = init,
    .done = image_library_done,
    .header = image_header,
    .decode = image_decode,
    .fingerprint = fingerprint,
    .write_jpeg = image_write_jpeg,
    .resize_vips = image_resize_vips,
    .video_header = video_header,
    .video_decode = video_decode,
};
