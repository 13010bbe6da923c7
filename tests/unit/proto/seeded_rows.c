/* seeded_rows.c: makes packed rows from a seed: documents of random length with the pictures and
 * videos that a recipe asks for. */
#include "tests/unit/proto/seeded_rows.h"

#include <string.h>

#include "common/base/rng.h"
#include "tests/harness.h"

enum { MAX_ITEMS = 512 };

typedef struct builder {
    const row_recipe *recipe;
    rng_key key;
    uint64_t counter;
    row *r;
    int64_t token, merged; /* how many are written so far */
    int kind[MAX_ITEMS];   /* 1: a video, 0: a picture */
} builder;

static int64_t draw_in_range(builder *b, int64_t from, int64_t to)
{
    return from + (int64_t)rng_below(b->key, b->counter++, (uint64_t)(to - from + 1));
}

static int64_t merged_rows(const row *r, int64_t item)
{
    const int32_t *g = r->grid_thw + 3 * item;
    return (int64_t)g[0] * g[1] * g[2] / 4;
}

static void append_token(builder *b, int32_t id, int32_t visual)
{
    row *r = b->r;
    int64_t t = b->token++;
    r->input_ids[t] = id;
    r->visual_row[t] = visual;
    r->labels[t] = visual < 0 && draw_in_range(b, 0, 1) ? id : NO_LABEL;
    for (int s = 0; s < 3; s++)
        r->position_ids[s * r->n_tokens + t] = (int32_t)(t + s);
    if (r->loss_weight)
        r->loss_weight[t] = (float)draw_in_range(b, 0, 8) / 8;
}

static void put_text(builder *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        append_token(b, (int32_t)draw_in_range(b, 0, TEXT_ID_MAX), -1);
}

static void fill_pixels(builder *b, uint8_t *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = b->recipe->noise ? (uint8_t)draw_in_range(b, 0, 255)
                                : (uint8_t)(i % 16 * 3 + i / 16 % 16 * 2 + i / 700);
}

/* Writes the n items of one document, from item `first` on, each followed by some text. */
static void put_items(builder *b, int64_t first, int n, int64_t merged)
{
    for (int i = 0; i < n; i++) {
        int64_t rows = merged_rows(b->r, first + i);
        for (int64_t m = 0; m < rows; m++)
            append_token(b, b->kind[first + i] ? VIDEO_ID : IMAGE_ID, (int32_t)(merged + m));
        put_text(b, 3);
        merged += rows;
    }
}

void row_make_prefix(row *r, arena *a)
{
    assert_ok(arena_calloc(a, (size_t)r->n_docs, sizeof(int32_t), (void **)&r->doc_prefix));
    r->doc_prefix[0] = r->doc_part[0] = -1;
    r->doc_sample_id[0] = r->doc_sample_id[1];
    for (int64_t t = 0; t < r->cu_seqlens[1]; t++) {
        r->labels[t] = NO_LABEL;
        if (r->loss_weight)
            r->loss_weight[t] = 1;
    }
}

void row_make(const row_recipe *recipe, arena *a, row *out)
{
    enum { TEXT_BEFORE = 4, TEXT_AFTER = 3 };
    row r = {0};
    builder b = {.recipe = recipe, .key = rng_key_make(recipe->seed, "test rows"), .r = &r};
    int per_doc = recipe->images + recipe->videos;
    int32_t grids[MAX_ITEMS][3];
    int64_t visual = 0, patches[2] = {0, 0};

    r.n_docs = recipe->n_docs;
    const int once = recipe->shared || recipe->prefix;       /* every item is listed once */
    const int showing = recipe->prefix ? 1 : recipe->n_docs; /* documents that show items */
    r.n_items = recipe->n_docs == 0 ? 0 : per_doc * (once ? 1 : recipe->n_docs);
    assert_true(r.n_items <= MAX_ITEMS);
    for (int64_t i = 0; i < r.n_items; i++) {
        b.kind[i] = i % per_doc >= recipe->images;
        grids[i][0] = b.kind[i] && !recipe->one_frame_videos ? (int32_t)draw_in_range(&b, 2, 3) : 1;
        grids[i][1] = 2 * (int32_t)draw_in_range(&b, 1, 4);
        grids[i][2] = 2 * (int32_t)draw_in_range(&b, 1, 4);
        int64_t n = (int64_t)grids[i][0] * grids[i][1] * grids[i][2];
        patches[b.kind[i]] += n;
        visual += n / 4;
    }
    r.n_patches = patches[0];
    r.n_video_patches = patches[1];
    r.n_tokens = r.n_docs * TEXT_BEFORE + showing * TEXT_AFTER * per_doc +
                 visual * (recipe->shared ? r.n_docs : 1);
    assert_ok(row_alloc(&r, a, recipe->weights ? ROW_WEIGHTS : 0));
    memcpy(r.grid_thw, grids, (size_t)r.n_items * sizeof grids[0]);
    for (int64_t d = 0; d < r.n_docs; d++) {
        r.cu_seqlens[d] = (int32_t)b.token;
        r.doc_sample_id[d] = (uint64_t)draw_in_range(&b, 0, 1000000);
        put_text(&b, TEXT_BEFORE);
        if (d < showing)
            put_items(&b, recipe->shared ? 0 : d * per_doc, per_doc, b.merged);
        if (!once)
            for (int i = 0; i < per_doc; i++)
                b.merged += merged_rows(&r, d * per_doc + i);
        r.labels[r.cu_seqlens[d]] = NO_LABEL;
    }
    r.cu_seqlens[r.n_docs] = (int32_t)b.token;
    assert_int_equal(b.token, r.n_tokens);
    if (recipe->prefix)
        row_make_prefix(&r, a);
    fill_pixels(&b, r.pixels, r.n_patches * PATCH_BYTES);
    fill_pixels(&b, r.pixels_video, r.n_video_patches * VIDEO_PATCH_BYTES);
    r.cursor = "{\"stream\":\"train\",\"row\":8}";
    r.quarantine = recipe->n_docs ? "[{\"id\":3,\"cause\":\"truncated\"}]" : "";
    *out = r;
}

void rows_assert_equal(const row *a, const row *b)
{
    st_tensor left[ROW_TENSORS], right[ROW_TENSORS];
    size_t n_left, n_right;
    row_tensors(a, 1, left, &n_left);
    row_tensors(b, 1, right, &n_right);
    assert_int_equal(n_left, n_right);
    for (size_t i = 0; i < n_left; i++) {
        assert_string_equal(left[i].name, right[i].name);
        assert_int_equal(left[i].data.size, right[i].data.size);
        if (left[i].data.size)
            assert_memory_equal(left[i].data.data, right[i].data.data, left[i].data.size);
    }
    assert_string_equal(a->cursor, b->cursor);
    assert_string_equal(a->quarantine, b->quarantine);
}
