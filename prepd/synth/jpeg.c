/* jpeg.c: TurboJPEG with one buffer that is used again for each picture. */
#include "prepd/synth/jpeg.h"

#include <stdlib.h>
#include <turbojpeg.h>

#include "prepd/synth/synth_files.h"

struct jpeg_writer {
    tjhandle turbo;
    unsigned char *bytes; /* allocated and enlarged by TurboJPEG */
    unsigned long capacity;
};

status jpeg_writer_new(jpeg_writer **out)
{
    jpeg_writer *writer = (jpeg_writer *)calloc(1, sizeof *writer);
    if (!writer)
        return FAIL(ST_NO_MEMORY, "no memory for a JPEG writer");
    writer->turbo = tjInitCompress();
    if (!writer->turbo) {
        free(writer);
        return FAIL(ST_NO_MEMORY, "TurboJPEG cannot be initialised: %s", tjGetErrorStr2(NULL));
    }
    *out = writer;
    return ST_OK;
}

void jpeg_writer_free(jpeg_writer **writer)
{
    if (!writer || !*writer)
        return;
    tjFree((*writer)->bytes);
    tjDestroy((*writer)->turbo);
    free(*writer);
    *writer = NULL;
}

status jpeg_write(jpeg_writer *writer, const uint8_t *rgb, int width, int height, int quality,
                  const char *path)
{
    unsigned long size = writer->capacity;
    if (tjCompress2(writer->turbo, rgb, width, 3 * width, height, TJPF_RGB, &writer->bytes, &size,
                    TJSAMP_420, quality, TJFLAG_ACCURATEDCT))
        return FAIL_IN(ST_INTERNAL, path, "TurboJPEG cannot write %d x %d pixels: %s", width,
                       height, tjGetErrorStr2(writer->turbo));
    if (size > writer->capacity)
        writer->capacity = size;
    return files_write(path, writer->bytes, size);
}
