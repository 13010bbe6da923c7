/* proto_seeds.c: writes the seeds of the targets frame, codec and record again, which is needed
 * after a change of their format:
 *
 *   build/tests/proto_seeds tests/fuzz/seeds */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/codec.h"
#include "proto/record.h"
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
};

static FILE *open_seed(const char *folder, const char *target, const char *name)
{
    char path[1000];
    snprintf(path, sizeof path, "%s/%s", folder, target);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s/%s", folder, target, name);
    FILE *f = fopen(path, "wb");
    if (!f)
        fail_msg("cannot write %s", path);
    return f;
}

static void put_part(FILE *f, span part)
{
    uint8_t size[4];
    store_u32(size, (uint32_t)part.size);
    fwrite(size, 1, sizeof size, f);
    fwrite(part.data, 1, part.size, f);
}

static void write_seeds(const char *folder, size_t i, codec *c, record_writer *w)
{
    arena a;
    row r;
    wire_msg *m = NULL;
    st_tensor tensors[ROW_TENSORS];
    st_meta meta[ROW_META];
    size_t n, size;
    uint8_t *block;
    char name[100];
    arena_init(&a, 0);
    row_make(&seeds[i].recipe, &a, &r);
    assert_ok(wire_msg_new(&m));
    assert_ok(codec_encode(c, &r, i, seeds[i].filter, seeds[i].codec, m));
    assert_ok(record_add(w, m));
    span head = wire_msg_part(m, 0);
    FILE *f = open_seed(folder, "frame", seeds[i].name);
    fwrite(head.data, 1, head.size, f);
    fclose(f);
    f = open_seed(folder, "codec", seeds[i].name);
    fputc(0, f);
    for (size_t k = 0; k < wire_msg_parts(m); k++)
        put_part(f, wire_msg_part(m, k));
    fclose(f);
    snprintf(name, sizeof name, "open_%s", seeds[i].name);
    f = open_seed(folder, "codec", name);
    fputc(1, f);
    row_tensors(&r, 0, tensors, &n);
    assert_ok(st_pack(tensors, n, meta, row_meta(&r, meta), &block, &size));
    put_part(f, span_of(block, size));
    for (size_t k = 2; k < wire_msg_parts(m); k++)
        put_part(f, wire_msg_part(m, k));
    fclose(f);
    free(block);
    wire_msg_free(&m);
    arena_done(&a);
}

int main(int argc, char **argv)
{
    char path[1000];
    codec *c = NULL;
    record_writer *w = NULL;
    if (argc != 2) {
        fprintf(stderr, "usage: proto_seeds FOLDER\n");
        return 64;
    }
    fclose(open_seed(argv[1], "record", "stream"));
    snprintf(path, sizeof path, "%s/record/stream", argv[1]);
    if (codec_new(&c) != ST_OK || record_create(path, "{\"version\":1}", &w) != ST_OK)
        return 1;
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++)
        write_seeds(argv[1], i, c, w);
    codec_free(&c);
    return record_finish(&w) == ST_OK ? 0 : 1;
}
