/* SPDX-License-Identifier: Apache-2.0 */
/* serve_data.c: a data set of two kinds, and the index of each. */
#include "tests/fuzz/serve_data.h"

#include <string.h>

#include "tests/fuzz/fuzz.h"

#define MUST(call) FUZZ_HOLDS((call) == ST_OK)

/* serve_seeds writes cursors with these. */
static const char SERVE_INDEX[] = "fef314d8f0ad0269a90921c955003302";
static const char SERVE_SHARED_INDEX[] = "13a9c4abb298a7b50eb824cf931ea233";

static bool is_shared;

void serve_data_choose(bool shared)
{
    is_shared = shared;
}

static int64_t count_samples(const dataset *set)
{
    (void)set;
    return SERVE_SAMPLES;
}

static int64_t count_images(const dataset *set)
{
    (void)set;
    return is_shared ? SERVE_SAMPLES / SERVE_QUESTIONS : SERVE_SAMPLES;
}

static status make_sample(const dataset *set, int64_t index, arena *memory, sample *out)
{
    void *turns, *parts, *images;
    (void)set;
    TRY(arena_calloc(memory, 2, sizeof(turn), &turns));
    TRY(arena_calloc(memory, 2, sizeof(part), &parts));
    TRY(arena_calloc(memory, 1, sizeof(int32_t), &images));
    part *piece = (part *)parts;
    turn *said = (turn *)turns;
    piece[0] = (part){.image = 0};
    piece[1] = (part){"a text", 6, -1};
    said[0] = (turn){.role = ROLE_USER, .parts = piece, .n_parts = 1};
    said[1] = (turn){.role = ROLE_ASSISTANT, .trained = true, .parts = piece + 1, .n_parts = 1};
    *(int32_t *)images = (int32_t)(is_shared ? index / SERVE_QUESTIONS : index);
    *out = (sample){.id = (uint64_t)index,
                    .name = "a sample",
                    .turns = said,
                    .n_turns = 2,
                    .images = (int32_t *)images,
                    .n_images = 1};
    return ST_OK;
}

static const char *path(const dataset *set, int64_t number)
{
    (void)set, (void)number;
    return "nowhere/picture.jpg";
}

static const char *root(const dataset *set)
{
    (void)set;
    return "/"; /* a peer must not learn what is there */
}

static hash128 identity(const dataset *set)
{
    (void)set;
    return hash_bytes("fuzz", 4);
}

static const dataset_vtable vtable = {.name = "fuzz",
                                      .samples = count_samples,
                                      .sample = make_sample,
                                      .outline = make_sample,
                                      .images = count_images,
                                      .image_path = path,
                                      .root = root,
                                      .identity = identity};

dataset *serve_data(void)
{
    static dataset data = {&vtable};
    return &data;
}

/* A question agrees with the one before it on its picture as far as the picture and a little text;
 * every seventh picture's questions part too early to have a prefix. */
static void put_beginning(data_index *index, int64_t number)
{
    enum { HEAD = 4, AGREES = 11, LABEL = 14, PICTURE = 7 };
    const bool follows = number % SERVE_QUESTIONS != 0;
    const int32_t agrees = number / SERVE_QUESTIONS % PICTURE ? AGREES : HEAD - 1;
    const index_beginning begins = {follows, follows ? agrees : 0, HEAD, LABEL};
    MUST(index_put_beginning(index, number, &begins));
}

data_index *serve_index(void)
{
    char print[HASH_TEXT];
    data_index *index = NULL;
    MUST(index_new(SERVE_SAMPLES, count_images(NULL), &index));
    if (is_shared)
        MUST(index_take_beginnings(index));
    for (int64_t i = 0; i < count_images(NULL); i++) {
        const index_image im = {1000, 1, 320, 240 + (int32_t)i % 5 * 32, NULL};
        MUST(index_put_image(index, i, &im));
    }
    for (int64_t i = 0; i < SERVE_SAMPLES; i++) {
        const index_sample record = {20 + (int32_t)i % 7, 5, NULL};
        MUST(index_put_sample(index, i, &record));
        if (is_shared)
            put_beginning(index, i);
    }
    MUST(index_seal(index));
    hash_print(index_digest(index), print);
    FUZZ_HOLDS(strcmp(print, is_shared ? SERVE_SHARED_INDEX : SERVE_INDEX) == 0);
    return index;
}
