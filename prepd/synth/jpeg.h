/* jpeg.h: pixels -> a JPEG file; synth's own writer and the only door to TurboJPEG. It is not
 * libvips: synth runs in prepd itself, where no image library of the workers may be loaded. */
#ifndef TESSERA_PREPD_SYNTH_JPEG_H
#define TESSERA_PREPD_SYNTH_JPEG_H

#include <stdint.h>

#include "common/base/status.h"

typedef struct jpeg_writer jpeg_writer; /* compressor and its buffer; one thread */

WARN_UNUSED status jpeg_writer_new(jpeg_writer **out);
void jpeg_writer_free(jpeg_writer **w);

/* rgb [height, width, 3] u8. Baseline, 4:2:0 as cameras write it; same pixels, same bytes. */
WARN_UNUSED status jpeg_write(jpeg_writer *w, const uint8_t *rgb, int width, int height,
                              int quality, const char *path);

#endif
