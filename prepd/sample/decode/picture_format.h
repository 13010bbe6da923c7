/* picture_format.h: tells what a file is from its first bytes, never from its name. No image
 * library is needed. */
#ifndef TESSERA_PREPD_SAMPLE_DECODE_PICTURE_FORMAT_H
#define TESSERA_PREPD_SAMPLE_DECODE_PICTURE_FORMAT_H

#include "common/base/span.h"

typedef enum picture_format {
    PICTURE_JPEG,
    PICTURE_PNG,
    PICTURE_WEBP,
    PICTURE_OTHER, /* a format that is not read here, or an unknown one */
} picture_format;

/* *out_name is "jpeg", "png" or "webp"; for others a noun with its article ("a GIF picture", "an
 * HTML page"), or NULL if nothing known begins like this. The text is static. */
picture_format sniff_format(span bytes, const char **out_name);

#endif
