/* SPDX-License-Identifier: Apache-2.0 */
/* picture_format.h: tells what a file is from its first bytes, never from its name. No image
 * library is needed. */
#ifndef TESSERA_PREPD_SAMPLE_DECODE_PICTURE_FORMAT_H
#define TESSERA_PREPD_SAMPLE_DECODE_PICTURE_FORMAT_H

#include "common/base/span.h"

typedef enum picture_format {
#define PICTURE_FORMAT(id, ...) PICTURE_##id,
#include "prepd/dataset/picture_formats.def"
    PICTURE_OTHER, /* a format that is not read here, or an unknown one */
} picture_format;

/* *out_name is "jpeg", "png" ...; for PICTURE_OTHER a noun with its article ("a GIF picture", "an
 * HTML page"), or NULL if nothing known begins like this. The text is static. */
picture_format picture_format_of(span bytes, const char **out_name);

/* "JPEG, PNG and WebP": the formats that are read. */
enum { PICTURE_FORMATS_TEXT = 256 };
void picture_formats_list(char out[PICTURE_FORMATS_TEXT]);

#endif
