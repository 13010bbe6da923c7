/* jpeg.h: writes pixels as a JPEG file. This is synth's own writer and the only door to TurboJPEG.
 * It does not use libvips, because synth runs in prepd itself, which must not load the image
 * libraries of the workers. */
#ifndef TESSERA_PREPD_SYNTH_JPEG_H
#define TESSERA_PREPD_SYNTH_JPEG_H

#include <stdint.h>

#include "common/base/status.h"

typedef struct jpeg_writer jpeg_writer; /* a compressor and its buffer, for one thread */

WARN_UNUSED status jpeg_writer_new(jpeg_writer **out);
void jpeg_writer_free(jpeg_writer **writer);

/* Writes rgb [height, width, 3] as a baseline JPEG with 4:2:0 subsampling, as cameras do. The same
 * pixels give the same bytes. */
WARN_UNUSED status jpeg_write(jpeg_writer *writer, const uint8_t *rgb, int width, int height,
                              int quality, const char *path);

#endif
