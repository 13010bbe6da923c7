#include "prepd/synth/jpeg.h"

#include <stdlib.h>
#include <turbojpeg.h>

#include "prepd/synth/synth_files.h"

struct jpeg_writer {
    tjhandle turbo;
    unsigned char *bytes; /* TurboJPEG's, grown by it */
    unsigned long capacity;
};

status jpeg_writer_new(jpeg_writer **out)
{
    jpeg_writer *w = (jpeg_writer *)calloc(1, sizeof *w);
    if (!w)
        return FAIL(ST_NO_MEMORY, "no memory for a JPEG writer");
    w->turbo = tjInitCompress();
    if (!w->turbo) {
        free(w);
        return FAIL(ST_NO_MEMORY, "TurboJPEG did not start: %s", tjGetErrorStr2(NULL));
    }
    *out = w;
    return ST_OK;
}

void jpeg_writer_free(jpeg_writer **w)
{
    if (!w || !*w)
        return;
    tjFree((*w)->bytes);
    tjDestroy((*w)->turbo);
    free(*w);
    *w = NULL;
}

status jpeg_write(jpeg_writer *w, const uint8_t *rgb, int width, int height, int quality,
                  const char *path)
{
    unsigned long size = w->capacity;
    if (tjCompress2(w->turbo, rgb, width, 3 * width, height, TJPF_RGB, &w->bytes, &size, TJSAMP_420,
                    quality, TJFLAG_ACCURATEDCT))
        return FAIL_IN(ST_INTERNAL, path, "TurboJPEG refused %d x %d pixels: %s", width, height,
                       tjGetErrorStr2(w->turbo));
    if (size > w->capacity)
        w->capacity = size;
    return files_write(path, w->bytes, size);
}
