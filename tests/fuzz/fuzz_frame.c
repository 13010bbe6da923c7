/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_frame.c: any bytes as the header of a message. It must be refused, or give fields that are
 * the same when they are written and read again. */
#include <stdlib.h>
#include <string.h>

#include "proto/row/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    frame head, again;
    uint8_t bytes[FRAME_BYTES];
    if (frame_decode(span_of(data, size), "fuzz", &head) != ST_OK)
        return 0;
    frame_encode(&head, bytes);
    if (frame_decode(span_of(bytes, sizeof bytes), "fuzz", &again) != ST_OK ||
        memcmp(bytes, data, FRAME_BYTES - 8) || again.row != head.row || again.kind != head.kind)
        abort();
    return 0;
}
