/* sniff.h: what a file is by its first bytes, never by its name. Pure; no image library. */
#ifndef TESSERA_PREPD_SAMPLE_SNIFF_H
#define TESSERA_PREPD_SAMPLE_SNIFF_H

#include "common/base/span.h"

typedef enum picture_format {
    PICTURE_JPEG,
    PICTURE_PNG,
    PICTURE_WEBP,
    PICTURE_OTHER, /* known or not, but not read here */
} picture_format;

/* out_name: "jpeg", "png", "webp"; for others a noun ("a GIF picture", "an HTML page") or NULL if
 * the bytes are of nothing known. Static text. */
picture_format sniff_format(span bytes, const char **out_name);

#endif
