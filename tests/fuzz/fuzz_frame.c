/* Any bytes as a message header: refused, or fields that, written out, read back as themselves. */
#include <stdlib.h>
#include <string.h>

#include "proto/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    frame f, again;
    uint8_t bytes[FRAME_BYTES];
    if (frame_decode(span_of(data, size), "fuzz", &f) != ST_OK)
        return 0;
    frame_encode(&f, bytes);
    if (frame_decode(span_of(bytes, sizeof bytes), "fuzz", &again) != ST_OK ||
        memcmp(bytes, data, FRAME_BYTES - 8) || again.row != f.row || again.kind != f.kind)
        abort();
    return 0;
}
