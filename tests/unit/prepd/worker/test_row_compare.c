/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of row_compare.h: rows of others are the same whatever their compression; a change of one
 * bit of any tensor or pixel, a false digest, and what cannot be decoded make them differ. */
#include <stdio.h>
#include <string.h>

#include "prepd/worker/row_compare.h"
#include "tests/harness.h"
#include "tests/unit/proto/seeded_rows.h"

enum { LEASE_PARTS = 3 }; /* header, JSON and one file that was sent */

/* What a worker has made, and the lease that brought rows of others. */
typedef struct bench {
    arena memory;
    codec *coder;
    row made;
    wire_msg *encoded, *lease;
    compared_rows rows;
} bench;

/* As row_build leaves a row: with items that lie where they were cut. */
static void set_items(row *packed, arena *memory)
{
    uint8_t *is_video;
    item_pixels *items;
    const uint8_t *at[2] = {packed->pixels, packed->pixels_video};
    assert_ok(arena_calloc(memory, (size_t)packed->n_items + 1, 1, (void **)&is_video));
    assert_ok(arena_calloc(memory, (size_t)packed->n_items + 1, sizeof *items, (void **)&items));
    assert_ok(row_find_videos(packed, "test", is_video));
    for (int64_t i = 0; i < packed->n_items; i++) {
        const int32_t *grid = packed->grid_thw + 3 * i;
        items[i] = (item_pixels){at[is_video[i]], is_video[i]};
        at[is_video[i]] += (size_t)grid[0] * (size_t)grid[1] * (size_t)grid[2] *
                           (is_video[i] ? VIDEO_PATCH_BYTES : PATCH_BYTES);
    }
    packed->items = items;
}

static void make(uint64_t seed, bench *out)
{
    const row_recipe recipe = {
        .seed = seed, .n_docs = 3, .images = 2, .videos = 1, .weights = 1, .noise = 1};
    arena_init(&out->memory, 0);
    assert_ok(codec_new(&out->coder));
    assert_ok(wire_msg_new(&out->encoded));
    assert_ok(wire_msg_new(&out->lease));
    row_make(&recipe, &out->memory, &out->made);
    set_items(&out->made, &out->memory);
    assert_ok(
        codec_encode(out->coder, &out->made, 7, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE, out->encoded));
    for (int i = 0; i < LEASE_PARTS; i++)
        assert_ok(wire_msg_add(out->lease, "lease", 5));
}

static void done(bench *held)
{
    wire_msg_free(&held->encoded);
    wire_msg_free(&held->lease);
    codec_free(&held->coder);
    arena_done(&held->memory);
}

/* Adds a message to the lease as a row to be compared, and empties it. */
static void bring(bench *held, wire_msg *theirs)
{
    held->rows.first[held->rows.count] = wire_msg_parts(held->lease);
    held->rows.n_parts[held->rows.count++] = wire_msg_parts(theirs);
    assert_ok(wire_msg_move(held->lease, theirs));
}

static bool same(bench *held, int index)
{
    bool found = true;
    const arena_mark before = arena_save(&held->memory);
    assert_ok(row_compare(held->coder, &held->made, held->encoded, held->lease, &held->rows, index,
                          &held->memory, &found));
    const arena_mark after = arena_save(&held->memory);
    assert_int_equal(before.used_bytes, after.used_bytes);
    return found;
}

/* Whether a message, which is used up, holds the row that was made. */
static bool holds(bench *held, wire_msg *theirs)
{
    held->rows.count = 0;
    bring(held, theirs);
    return same(held, 0);
}

/* Whether this row is the one that was made, however it is sent. */
static bool row_is_same(bench *held, const row *other)
{
    int times = 0;
    wire_msg *theirs;
    assert_ok(wire_msg_new(&theirs));
    for (int filter = 0; filter <= IMAGE_FILTER_PLANE; filter++)
        for (int image = 0; image <= IMAGE_CODEC_ZSTD; image++) {
            assert_ok(codec_encode(held->coder, other, 99, (image_filter)filter, (image_codec)image,
                                   theirs));
            times += holds(held, theirs);
        }
    wire_msg_free(&theirs);
    assert_true(times == 0 || times == 4);
    return times > 0;
}

static void test_row_compare__other_compressions_are_the_same(void **state)
{
    (void)state;
    bench held = {0};
    for (uint64_t seed = 1; seed < 4; seed++) {
        make(seed, &held);
        assert_true(row_is_same(&held, &held.made));
        row other = held.made; /* the metadata is the dispatcher's business */
        other.cursor = "{\"row\":4}";
        assert_true(row_is_same(&held, &other));
        done(&held);
        held = (bench){0};
    }
}

/* A text token that has a label and is not the first of its document. */
static int64_t labelled(const row *packed)
{
    int64_t at = packed->cu_seqlens[1] + 1;
    while (packed->labels[at] == NO_LABEL || packed->visual_row[at] >= 0)
        at++;
    return at;
}

typedef void (*change)(row *packed);

static void change_id(row *packed)
{
    packed->input_ids[1] ^= 1;
}
static void change_label(row *packed)
{
    packed->labels[labelled(packed)] ^= 1;
}
static void drop_label(row *packed)
{
    packed->labels[labelled(packed)] = NO_LABEL;
}
static void change_weight(row *packed)
{
    uint32_t bits;
    memcpy(&bits, &packed->loss_weight[labelled(packed)], sizeof bits);
    bits ^= 1;
    memcpy(&packed->loss_weight[labelled(packed)], &bits, sizeof bits);
}
static void drop_weights(row *packed)
{
    packed->loss_weight = NULL;
}
static void change_position(row *packed)
{
    packed->position_ids[3 * packed->n_tokens - 1] ^= 1;
}
/* Another grid of as many patches. */
static void change_grid(row *packed)
{
    for (int64_t i = 0; i < packed->n_items; i++) {
        int32_t *grid = packed->grid_thw + 3 * i;
        const int32_t height = grid[1];
        grid[1] = grid[2];
        grid[2] = height;
    }
}
static void change_sample(row *packed)
{
    packed->doc_sample_id[2] ^= 1;
}
static void change_part(row *packed)
{
    packed->doc_part[0] ^= 1;
}
static void move_border(row *packed)
{
    const int32_t at = --packed->cu_seqlens[2];
    packed->labels[at] = NO_LABEL;
}
static void change_first_pixel(row *packed)
{
    packed->pixels[0] ^= 1;
}
static void change_last_pixel(row *packed)
{
    packed->pixels[packed->n_patches * PATCH_BYTES - 1] ^= 0x80;
}
static void change_video(row *packed)
{
    packed->pixels_video[packed->n_video_patches * VIDEO_PATCH_BYTES - 1] ^= 1;
}

/* A row of the same recipe, changed; its arrays are its own. */
static void make_other(uint64_t seed, change apply, bench *into, row *out)
{
    make(seed, into);
    *out = into->made;
    out->items = NULL;
    apply(out);
}

static void test_row_compare__one_bit_makes_it_differ(void **state)
{
    (void)state;
    static const change changes[] = {
        change_id,          change_label,      drop_label,    change_weight, drop_weights,
        change_position,    change_grid,       change_sample, change_part,   move_border,
        change_first_pixel, change_last_pixel, change_video};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        bench held = {0}, other = {0};
        row changed;
        make(5, &held);
        make_other(5, changes[i], &other, &changed);
        if (row_is_same(&held, &changed))
            fail_msg("change %zu makes no difference", i);
        done(&other);
        done(&held);
    }
}

/* A header that declares the digest of the true row over other content, or a false one over the
 * true content. */
static void test_row_compare__the_digest_of_a_header_proves_nothing(void **state)
{
    (void)state;
    bench held = {0}, other = {0};
    row changed;
    wire_msg *theirs;
    frame head, true_head;
    uint8_t bytes[FRAME_BYTES];
    assert_ok(wire_msg_new(&theirs));
    make(5, &held);
    make_other(5, change_last_pixel, &other, &changed);
    assert_ok(codec_encode(held.coder, &changed, 7, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE, theirs));
    assert_ok(frame_decode(wire_msg_part(held.encoded, 0), "test", &true_head));
    assert_ok(frame_decode(wire_msg_part(theirs, 0), "test", &head));
    head.digest = true_head.digest;
    frame_encode(&head, bytes);
    assert_ok(wire_msg_set(theirs, 0, bytes, sizeof bytes));
    assert_false(holds(&held, theirs));
    assert_ok(wire_msg_share(theirs, held.encoded));
    true_head.digest.bytes[0] ^= 1; /* a consumer would refuse it */
    frame_encode(&true_head, bytes);
    assert_ok(wire_msg_set(theirs, 0, bytes, sizeof bytes));
    assert_false(holds(&held, theirs));
    wire_msg_free(&theirs);
    done(&other);
    done(&held);
}

static void test_row_compare__what_cannot_be_decoded_differs(void **state)
{
    (void)state;
    bench held = {0};
    wire_msg *theirs;
    make(6, &held);
    assert_ok(wire_msg_new(&theirs));
    const size_t count = wire_msg_parts(held.encoded);
    assert_false(holds(&held, theirs)); /* no part at all */
    for (size_t part = 0; part < count; part++) {
        assert_ok(wire_msg_share(theirs, held.encoded));
        assert_ok(wire_msg_set(theirs, part, "garbage", 7));
        assert_false(holds(&held, theirs));
        assert_ok(wire_msg_share_some(theirs, held.encoded, 0, part)); /* the rest is missing */
        assert_false(holds(&held, theirs));
    }
    assert_ok(wire_msg_share(theirs, held.encoded)); /* a part too many, as a tag is */
    assert_ok(wire_msg_add(theirs, "{}", 2));
    assert_false(holds(&held, theirs));
    assert_ok(wire_msg_share(theirs, held.encoded));
    assert_true(holds(&held, theirs));
    wire_msg_free(&theirs);
    done(&held);
}

/* A header may not make the worker take more memory than its own row has. */
static void test_row_compare__memory_is_bounded(void **state)
{
    (void)state;
    bench held = {0};
    wire_msg *theirs;
    frame head;
    uint8_t bytes[FRAME_BYTES];
    make(6, &held);
    assert_ok(wire_msg_new(&theirs));
    for (int k = 0; k < 2; k++) {
        bool found = true;
        arena none;
        arena_init(&none, 64); /* a decoder would ask it for more, and fail */
        assert_ok(frame_decode(wire_msg_part(held.encoded, 0), "test", &head));
        *(k ? &head.block_bytes : &head.image_bytes) = 1 << 30;
        frame_encode(&head, bytes);
        assert_ok(wire_msg_share(theirs, held.encoded));
        assert_ok(wire_msg_set(theirs, 0, bytes, sizeof bytes));
        held.rows.count = 0;
        bring(&held, theirs);
        assert_ok(row_compare(held.coder, &held.made, held.encoded, held.lease, &held.rows, 0,
                              &none, &found));
        assert_false(found);
        assert_ok(wire_msg_share(theirs, held.encoded)); /* want of memory is no difference */
        held.rows.count = 0;
        bring(&held, theirs);
        assert_fails(ST_NO_MEMORY,
                     row_compare(held.coder, &held.made, held.encoded, held.lease, &held.rows, 0,
                                 &none, &found),
                     "");
        arena_done(&none);
    }
    wire_msg_free(&theirs);
    done(&held);
}

static compared_rows rows_of(const wire_msg *message, const char *text, status want)
{
    json_value *lease;
    compared_rows rows = {.count = -1};
    assert_ok(json_parse(text, strlen(text), "test", &lease));
    const status st = row_compare_read(lease, message, &rows);
    assert_int_equal(st, want);
    json_free(&lease);
    return rows;
}

static void test_row_compare_read__the_last_parts_are_rows(void **state)
{
    (void)state;
    bench held = {0};
    wire_msg *theirs;
    make(6, &held);
    assert_ok(wire_msg_new(&theirs));
    const int count = (int)wire_msg_parts(held.encoded);
    char text[64];
    assert_int_equal(rows_of(held.lease, "{}", ST_OK).count, 0);
    assert_int_equal(rows_of(held.lease, "{\"compare\":[]}", ST_OK).count, 0);
    rows_of(held.lease, "{\"compare\":[2]}", ST_PROTOCOL);
    rows_of(held.lease, "{\"compare\":[-1]}", ST_PROTOCOL);
    rows_of(held.lease, "{\"compare\":[\"x\"]}", ST_PROTOCOL);
    rows_of(held.lease, "{\"compare\":[0,0,0]}", ST_PROTOCOL);
    assert_ok(wire_msg_share(theirs, held.encoded));
    assert_ok(
        wire_msg_add(theirs, "garbage", 7)); /* of a second row, which comes after the first */
    assert_ok(wire_msg_move(held.lease, theirs));
    snprintf(text, sizeof text, "{\"compare\":[%d,1]}", count);
    held.rows = rows_of(held.lease, text, ST_OK);
    assert_int_equal(held.rows.count, 2);
    assert_int_equal(held.rows.first[0], LEASE_PARTS);
    assert_int_equal(held.rows.first[1], LEASE_PARTS + count);
    assert_true(same(&held, 0));
    assert_false(same(&held, 1));
    wire_msg_free(&theirs);
    done(&held);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_compare__other_compressions_are_the_same),
        cmocka_unit_test(test_row_compare__one_bit_makes_it_differ),
        cmocka_unit_test(test_row_compare__the_digest_of_a_header_proves_nothing),
        cmocka_unit_test(test_row_compare__what_cannot_be_decoded_differs),
        cmocka_unit_test(test_row_compare__memory_is_bounded),
        cmocka_unit_test(test_row_compare_read__the_last_parts_are_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
