/* SPDX-License-Identifier: Apache-2.0 */
/* seeded_rows.c: makes packed rows from a seed: documents of random length with the pictures and
 * videos that a recipe asks for. */
#include "tests/unit/proto/seeded_rows.h"

#include <stdio.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/harness.h"

enum { MAX_ITEMS = 512 };

typedef struct builder {
    const row_recipe *recipe;
    rng_key key;
    uint64_t counter;
    row *packed;
    int64_t token, merged; /* how many are written so far */
    int kind[MAX_ITEMS];   /* 1: a video, 0: a picture */
} builder;

static int64_t draw_in_range(builder *state, int64_t from, int64_t to)
{
    return from + (int64_t)rng_below(state->key, state->counter++, (uint64_t)(to - from + 1));
}

static int64_t merged_rows(const row *packed, int64_t item)
{
    const int32_t *grid = packed->grid_thw + 3 * item;
    return (int64_t)grid[0] * grid[1] * grid[2] / 4;
}

static void append_token(builder *state, int32_t id, int32_t visual)
{
    row *packed = state->packed;
    int64_t token = state->token++;
    packed->input_ids[token] = id;
    packed->visual_row[token] = visual;
    packed->labels[token] = visual < 0 && draw_in_range(state, 0, 1) ? id : NO_LABEL;
    for (int section = 0; section < 3; section++)
        packed->position_ids[section * packed->n_tokens + token] = (int32_t)(token + section);
    if (packed->loss_weight)
        packed->loss_weight[token] = (float)draw_in_range(state, 0, 8) / 8;
}

static void put_text(builder *state, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        append_token(state, (int32_t)draw_in_range(state, 0, TEXT_ID_MAX), -1);
}

static void fill_pixels(builder *state, uint8_t *bytes, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        bytes[i] = state->recipe->noise ? (uint8_t)draw_in_range(state, 0, 255)
                                        : (uint8_t)(i % 16 * 3 + i / 16 % 16 * 2 + i / 700);
}

/* Writes the count items of one document, from item `first` on, each followed by some text. */
static void put_items(builder *state, int64_t first, int count, int64_t merged)
{
    for (int i = 0; i < count; i++) {
        int64_t rows = merged_rows(state->packed, first + i);
        for (int64_t place = 0; place < rows; place++)
            append_token(state, state->kind[first + i] ? VIDEO_ID : IMAGE_ID,
                         (int32_t)(merged + place));
        put_text(state, 3);
        merged += rows;
    }
}

void row_make_prefix(row *packed, arena *memory)
{
    assert_ok(arena_calloc(memory, (size_t)packed->n_docs, sizeof(int32_t),
                           (void **)&packed->doc_prefix));
    packed->doc_prefix[0] = packed->doc_part[0] = -1;
    packed->doc_sample_id[0] = packed->doc_sample_id[1];
    for (int64_t token = 0; token < packed->cu_seqlens[1]; token++) {
        packed->labels[token] = NO_LABEL;
        if (packed->loss_weight)
            packed->loss_weight[token] = 1;
    }
}

void row_make(const row_recipe *recipe, arena *memory, row *out)
{
    enum { TEXT_BEFORE = 4, TEXT_AFTER = 3 };
    row packed = {0};
    builder state = {
        .recipe = recipe, .key = rng_key_make(recipe->seed, "test rows"), .packed = &packed};
    int per_doc = recipe->images + recipe->videos;
    int32_t grids[MAX_ITEMS][3];
    int64_t visual = 0, patches[2] = {0, 0};

    packed.n_docs = recipe->n_docs;
    const int once = recipe->shared || recipe->prefix;       /* every item is listed once */
    const int showing = recipe->prefix ? 1 : recipe->n_docs; /* documents that show items */
    packed.n_items = recipe->n_docs == 0 ? 0 : per_doc * (once ? 1 : recipe->n_docs);
    assert_true(packed.n_items <= MAX_ITEMS);
    for (int64_t i = 0; i < packed.n_items; i++) {
        state.kind[i] = i % per_doc >= recipe->images;
        grids[i][0] =
            state.kind[i] && !recipe->one_frame_videos ? (int32_t)draw_in_range(&state, 2, 3) : 1;
        grids[i][1] = 2 * (int32_t)draw_in_range(&state, 1, 4);
        grids[i][2] = 2 * (int32_t)draw_in_range(&state, 1, 4);
        int64_t count = (int64_t)grids[i][0] * grids[i][1] * grids[i][2];
        patches[state.kind[i]] += count;
        visual += count / 4;
    }
    packed.n_patches = patches[0];
    packed.n_video_patches = patches[1];
    packed.n_tokens = packed.n_docs * TEXT_BEFORE + showing * TEXT_AFTER * per_doc +
                      visual * (recipe->shared ? packed.n_docs : 1);
    assert_ok(row_alloc(&packed, memory, recipe->weights ? ROW_WEIGHTS : 0));
    memcpy(packed.grid_thw, grids, (size_t)packed.n_items * sizeof grids[0]);
    for (int64_t doc = 0; doc < packed.n_docs; doc++) {
        packed.cu_seqlens[doc] = (int32_t)state.token;
        packed.doc_sample_id[doc] = (uint64_t)draw_in_range(&state, 0, 1000000);
        put_text(&state, TEXT_BEFORE);
        if (doc < showing)
            put_items(&state, recipe->shared ? 0 : doc * per_doc, per_doc, state.merged);
        if (!once)
            for (int i = 0; i < per_doc; i++)
                state.merged += merged_rows(&packed, doc * per_doc + i);
        packed.labels[packed.cu_seqlens[doc]] = NO_LABEL;
    }
    packed.cu_seqlens[packed.n_docs] = (int32_t)state.token;
    assert_int_equal(state.token, packed.n_tokens);
    if (recipe->prefix)
        row_make_prefix(&packed, memory);
    fill_pixels(&state, packed.pixels, packed.n_patches * PATCH_BYTES);
    fill_pixels(&state, packed.pixels_video, packed.n_video_patches * VIDEO_PATCH_BYTES);
    packed.cursor = "{\"stream\":\"train\",\"row\":8}";
    packed.quarantine = recipe->n_docs ? "[{\"id\":3,\"cause\":\"truncated\"}]" : "";
    *out = packed;
}

void rows_assert_equal(const row *first, const row *second)
{
    st_tensor left[ROW_TENSORS], right[ROW_TENSORS];
    size_t n_left, n_right;
    row_tensors(first, 1, left, &n_left);
    row_tensors(second, 1, right, &n_right);
    assert_int_equal(n_left, n_right);
    for (size_t i = 0; i < n_left; i++) {
        assert_string_equal(left[i].name, right[i].name);
        assert_int_equal(left[i].data.size, right[i].data.size);
        if (left[i].data.size)
            assert_memory_equal(left[i].data.data, right[i].data.data, left[i].data.size);
    }
    assert_string_equal(first->cursor, second->cursor);
    assert_string_equal(first->quarantine, second->quarantine);
}

static int64_t targets_of(const row *packed, int64_t doc)
{
    int64_t count = 0;
    for (int32_t i = packed->cu_seqlens[doc]; i < packed->cu_seqlens[doc + 1]; i++)
        count += packed->labels[i] >= 0;
    return count;
}

int64_t row_write_tag(const row *packed, uint64_t number, int64_t wrong, bool no_targets, char *out)
{
    static const char *const member[] = {"ids", "parts", "prefixes", "lengths", "targets"};
    int64_t at = 0;
    char *to =
        out + sprintf(out, "{\"row\":%llu,\"worker\":\"7 on there\"", (unsigned long long)number);
    for (int list = 0; list < 5; list++) {
        to += sprintf(to, ",\"%s\":[", member[list]);
        for (int64_t doc = 0; doc < packed->n_docs; doc++, at++) {
            const int64_t is[] = {(int64_t)packed->doc_sample_id[doc], packed->doc_part[doc], -1,
                                  packed->cu_seqlens[doc + 1] - packed->cu_seqlens[doc],
                                  targets_of(packed, doc)};
            to += sprintf(to, "%s", doc ? "," : "");
            to += list == 4 && no_targets
                      ? sprintf(to, "null")
                      : sprintf(to, "%lld", (long long)(is[list] + (at == wrong)));
        }
        to += sprintf(to, "]");
    }
    to += sprintf(to, ",\"grids\":[");
    for (int64_t i = 0; i < 3 * packed->n_items; i++, at++)
        to += sprintf(to, "%s%d", i ? "," : "", packed->grid_thw[i] + (at == wrong));
    sprintf(to, "],\"cursor\":\"{\\\"row\\\":%llu}\",\"quarantine\":\"[]\"}",
            (unsigned long long)number + 1);
    return at;
}
