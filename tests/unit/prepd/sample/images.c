/* SPDX-License-Identifier: Apache-2.0 */
/* images.c: a tool that decodes the files named on its command line and prints a line of JSON for
 * each, which tests/golden/images.json and check_images.py use: {"file": ..., "width": W, "height":
 * H, "rgb": XXH3-128} or {"file": ..., "error": ...}. With --dump FILE it writes the RGB bytes of
 * the last picture to FILE. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/sample/decode/image.h"

static status read_file(const char *path, span *out)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return FAIL_IN(ST_NO_INPUT, path, "cannot be opened");
    fseek(file, 0, SEEK_END);
    const long size = ftell(file);
    rewind(file);
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    const bool ok = data && size >= 0 && fread(data, 1, (size_t)size, file) == (size_t)size;
    fclose(file);
    if (!ok) {
        free(data);
        return FAIL_IN(ST_IO, path, "cannot be read");
    }
    *out = span_of(data, (size_t)size);
    return ST_OK;
}

static status show(const char *path, const conf *limits, arena *memory, const char *dump)
{
    span bytes;
    image im;
    image_info info;
    TRY(read_file(path, &bytes));
    status st = image_decode(bytes, path, limits, memory, &im);
    if (st == ST_OK)
        st = image_header(bytes, path, limits, &info);
    free((void *)(uintptr_t)bytes.data);
    TRY(st);
    char text[HASH_TEXT];
    const size_t size = (size_t)im.width * (size_t)im.height * 3;
    hash_print(hash_bytes(im.rgb, size), text);
    if (info.width != im.width || info.height != im.height)
        return FAIL_IN(ST_INTERNAL, path, "header and picture disagree");
    printf("{\"file\": \"%s\", \"width\": %d, \"height\": %d, \"rgb\": \"%s\"}\n", path, im.width,
           im.height, text);
    FILE *file = dump ? fopen(dump, "wb") : NULL;
    if (file && (fwrite(im.rgb, 1, size, file) != size || fclose(file)))
        return FAIL_IN(ST_IO, dump, "cannot be written");
    return ST_OK;
}

int main(int argc, char **argv)
{
    const conf limits = {.image_file_bytes = 268435456, .image_input_pixels = 178956970};
    const char *dump = NULL;
    arena memory;
    arena_init(&memory, 0);
    if (image_library_init(argv[0]) != ST_OK) {
        fprintf(stderr, "%s\n", status_text());
        return 1;
    }
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--dump") == 0 && i + 1 < argc) {
            dump = argv[++i];
            continue;
        }
        if (show(argv[i], &limits, &memory, dump) != ST_OK)
            printf("{\"file\": \"%s\", \"error\": \"%s\"}\n", argv[i], status_last()->message);
        arena_reset(&memory);
    }
    arena_done(&memory);
    image_library_done();
    return 0;
}
