/* SPDX-License-Identifier: Apache-2.0 */
/* proto_seeds.c: writes the seeds of the targets frame, codec and record again, which is needed
 * after a change of their format:
 *
 *   build/tests/proto_seeds tests/fuzz/seeds */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/message/codec.h"
#include "proto/message/record.h"
#include "tests/harness.h"
#include "tests/unit/proto/seeded_rows.h"

static const struct {
    const char *name;
    row_recipe recipe;
    image_filter filter;
    image_codec codec;
} seeds[] = {
    {"empty", {.seed = 1}, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE},
    {"text", {.seed = 2, .n_docs = 2, .weights = 1}, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE},
    {"image", {.seed = 41, .n_docs = 1, .images = 1}, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE},
    {"shared",
     {.seed = 4, .n_docs = 2, .images = 1, .shared = 1},
     IMAGE_FILTER_PLANE,
     IMAGE_CODEC_ZSTD},
    {"video",
     {.seed = 5, .n_docs = 1, .images = 1, .videos = 1},
     IMAGE_FILTER_PLANE,
     IMAGE_CODEC_ZSTD},
    {"frame",
     {.seed = 6, .n_docs = 1, .videos = 1, .one_frame_videos = 1},
     IMAGE_FILTER_NONE,
     IMAGE_CODEC_ZSTD},
    {"prefix",
     {.seed = 7, .n_docs = 4, .images = 1, .prefix = 1},
     IMAGE_FILTER_PLANE,
     IMAGE_CODEC_ZSTD},
};

static FILE *open_seed(const char *folder, const char *target, const char *name)
{
    char path[1000];
    snprintf(path, sizeof path, "%s/%s", folder, target);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s/%s", folder, target, name);
    FILE *file = fopen(path, "wb");
    if (!file)
        fail_msg("cannot write %s", path);
    return file;
}

static void put_part(FILE *file, span part)
{
    uint8_t size[4];
    store_u32(size, (uint32_t)part.size);
    fwrite(size, 1, sizeof size, file);
    fwrite(part.data, 1, part.size, file);
}

static void write_seeds(const char *folder, size_t number, codec *coder, record_writer *recording)
{
    arena memory;
    row packed;
    wire_msg *message = NULL;
    st_tensor tensors[ROW_TENSORS];
    st_meta meta[ROW_META];
    size_t parts, size;
    uint8_t *block;
    char name[100];
    arena_init(&memory, 0);
    row_make(&seeds[number].recipe, &memory, &packed);
    assert_ok(wire_msg_new(&message));
    assert_ok(
        codec_encode(coder, &packed, number, seeds[number].filter, seeds[number].codec, message));
    assert_ok(record_add(recording, message));
    span head = wire_msg_part(message, 0);
    FILE *file = open_seed(folder, "frame", seeds[number].name);
    fwrite(head.data, 1, head.size, file);
    fclose(file);
    file = open_seed(folder, "codec", seeds[number].name);
    fputc(0, file);
    for (size_t k = 0; k < wire_msg_parts(message); k++)
        put_part(file, wire_msg_part(message, k));
    fclose(file);
    snprintf(name, sizeof name, "open_%s", seeds[number].name);
    file = open_seed(folder, "codec", name);
    fputc(1, file);
    row_tensors(&packed, 0, tensors, &parts);
    assert_ok(st_pack(tensors, parts, meta, row_meta(&packed, meta), &block, &size));
    put_part(file, span_of(block, size));
    for (size_t k = 2; k < wire_msg_parts(message); k++)
        put_part(file, wire_msg_part(message, k));
    fclose(file);
    free(block);
    wire_msg_free(&message);
    arena_done(&memory);
}

int main(int argc, char **argv)
{
    char path[1000];
    codec *coder = NULL;
    record_writer *recording = NULL;
    if (argc != 2) {
        fprintf(stderr, "usage: proto_seeds FOLDER\n");
        return 64;
    }
    fclose(open_seed(argv[1], "record", "stream"));
    snprintf(path, sizeof path, "%s/record/stream", argv[1]);
    if (codec_new(&coder) != ST_OK || record_create(path, "{\"version\":1}", &recording) != ST_OK)
        return 1;
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++)
        write_seeds(argv[1], i, coder, recording);
    codec_free(&coder);
    return record_finish(&recording) == ST_OK ? 0 : 1;
}
