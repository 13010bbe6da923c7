/* SPDX-License-Identifier: Apache-2.0 */
/* picture_format.c: a table of first bytes, and a look at text formats, which may begin with white
 * space. */
#include "prepd/sample/decode/picture_format.h"

#include <stdio.h>

/* The formats that are read, in the order of the enumeration. */
static const struct {
    const char *name, *title, *first_bytes; /* ? is any byte */
    size_t count;                           /* of first_bytes */
} formats[] = {
#define PICTURE_FORMAT(id, loader, operation, title, first_bytes, ...)                             \
    {#loader, title, first_bytes, sizeof(first_bytes) - 1},
#include "prepd/dataset/picture_formats.def"
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

typedef struct magic {
    uint8_t offset, count;
    const char *bytes;
    const char *name;
} magic;

/* What is not read. The first match wins. Names read on after "this is". */
static const magic others[] = {
    {0, 4, "GIF8", "a GIF picture"},
    {0, 4, "II*\0", "a TIFF picture"},
    {0, 4, "MM\0*", "a TIFF picture"},
    {0, 4, "II+\0", "a BigTIFF picture"},
    {0, 4, "MM\0+", "a BigTIFF picture"},
    {4, 8, "ftypavif", "an AVIF picture"},
    {4, 8, "ftypavis", "an AVIF picture"},
    {4, 7, "ftyphei", "a HEIF picture"}, /* heic, heix, heim, heis */
    {4, 8, "ftyphevc", "a HEIF picture"},
    {4, 8, "ftypmif1", "a HEIF picture"},
    {4, 8, "ftypmsf1", "a HEIF picture"},
    {4, 4, "ftyp", "a video (MP4 family)"},
    {0, 12, "\0\0\0\x0cJXL \r\n\x87\n", "a JPEG XL picture"},
    {0, 2, "\xff\x0a", "a JPEG XL picture"},
    {0, 8, "\0\0\0\x0cjP  ", "a JPEG 2000 picture"},
    {0, 4, "\xff\x4f\xff\x51", "a JPEG 2000 picture"},
    {0, 5, "%PDF-", "a PDF document"},
    {0, 4, "%!PS", "a PostScript document"},
    {0, 4, "8BPS", "a Photoshop document"},
    {0, 4, "\0\0\1\0", "an icon (ICO)"},
    {0, 4, "qoif", "a QOI picture"},
    {0, 4, "\x76\x2f\x31\x01", "an OpenEXR picture"},
    {0, 2, "#?", "a Radiance picture"},
    {0, 6, "SIMPLE", "a FITS picture"},
    {0, 4, "\x1a\x45\xdf\xa3", "a video (Matroska family)"},
    {8, 4, "AVI ", "a video (AVI)"},
    {0, 2, "\x1f\x8b", "gzip data"},
    {0, 4, "PK\3\4", "a zip archive"},
    {0, 2, "BM", "a BMP picture"},
};

static bool match_bytes(span bytes, size_t offset, const char *with, size_t length)
{
    return span_holds(bytes, offset, length) && memcmp(bytes.data + offset, with, length) == 0;
}

/* Recognises text formats, which may begin with a byte order mark and white space. */
static const char *sniff_text(span bytes)
{
    size_t at = match_bytes(bytes, 0, "\xef\xbb\xbf", 3) ? 3 : 0;
    while (at < bytes.size && strchr(" \t\r\n", bytes.data[at]) && bytes.data[at])
        at++;
    char head[256];
    size_t count = bytes.size - at < sizeof head - 1 ? bytes.size - at : sizeof head - 1;
    for (size_t i = 0; i < count; i++) {
        const uint8_t letter = bytes.data[at + i];
        head[i] = letter >= 'A' && letter <= 'Z' ? (char)(letter | 0x20)
                  : letter                       ? (char)letter
                                                 : ' ';
    }
    head[count] = 0;
    if (head[0] == '<' && strstr(head, "<svg"))
        return "an SVG picture";
    if (head[0] == '<' && (strstr(head, "<html") || strstr(head, "<!doctype html")))
        return "an HTML page";
    if (head[0] == '<' && strstr(head, "<?xml"))
        return "an XML document";
    if (match_bytes(bytes, 0, "version https://git-lfs", 23))
        return "a Git LFS pointer, not the picture";
    if (head[0] == 'p' && head[1] >= '1' && head[1] <= '7' && strchr(" \t\r\n", head[2]))
        return "a PNM picture";
    return NULL;
}

static bool begins_as(span bytes, int format)
{
    const size_t count = formats[format].count;
    for (size_t i = 0; i < count && i < bytes.size; i++)
        if (formats[format].first_bytes[i] != '?' &&
            (uint8_t)formats[format].first_bytes[i] != bytes.data[i])
            return false;
    return bytes.size >= count;
}

picture_format picture_format_of(span bytes, const char **out_name)
{
    for (int k = 0; k < N_FORMATS; k++)
        if (begins_as(bytes, k)) {
            *out_name = formats[k].name;
            return (picture_format)k;
        }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const magic *known = &others[i];
        if (match_bytes(bytes, known->offset, known->bytes, known->count)) {
            *out_name = known->name;
            return PICTURE_OTHER;
        }
    }
    *out_name = sniff_text(bytes);
    return PICTURE_OTHER;
}

void picture_formats_list(char out[PICTURE_FORMATS_TEXT])
{
    int used = 0;
    for (int k = 0; k < N_FORMATS && used < PICTURE_FORMATS_TEXT; k++)
        used += snprintf(out + used, (size_t)(PICTURE_FORMATS_TEXT - used), "%s%s",
                         k == 0               ? ""
                         : k == N_FORMATS - 1 ? " and "
                                              : ", ",
                         formats[k].title);
}
