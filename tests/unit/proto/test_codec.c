/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of codec.h: a row that is encoded and decoded is the same row, with every filter and codec,
 * and a message that was changed in any way is refused as the fault of its sender. */
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "proto/message/codec.h"
#include "tests/harness.h"
#include "tests/unit/proto/seeded_rows.h"

static const row_recipe recipes[] = {
    {.seed = 1},
    {.seed = 2, .n_docs = 1},
    {.seed = 3, .n_docs = 3, .images = 2},
    {.seed = 4, .n_docs = 2, .images = 1, .videos = 1, .weights = 1, .noise = 1},
    {.seed = 5, .n_docs = 2, .videos = 2},
    {.seed = 6, .n_docs = 2, .images = 1, .videos = 2, .one_frame_videos = 1},
    {.seed = 7, .n_docs = 3, .images = 2, .shared = 1},
};
enum { N_RECIPES = sizeof recipes / sizeof recipes[0] };

typedef struct setting {
    codec *coder;
    arena made, decoded;
    wire_msg *message;
    row packed;
} setting;

static void set_up(setting *setup, const row_recipe *recipe, image_filter filter, image_codec image)
{
    memset(setup, 0, sizeof *setup);
    arena_init(&setup->made, 0);
    arena_init(&setup->decoded, (size_t)256 << 20);
    row_make(recipe, &setup->made, &setup->packed);
    assert_ok(codec_new(&setup->coder));
    assert_ok(wire_msg_new(&setup->message));
    assert_ok(codec_encode(setup->coder, &setup->packed, 42, filter, image, setup->message));
}

static void tear_down(setting *setup)
{
    wire_msg_free(&setup->message);
    codec_free(&setup->coder);
    arena_done(&setup->made);
    arena_done(&setup->decoded);
}

static void test_codec__round_trips(void **state)
{
    (void)state;
    for (int i = 0; i < N_RECIPES * 4; i++) {
        setting setup;
        row back;
        frame head;
        set_up(&setup, &recipes[i / 4], (image_filter)(i & 1), (image_codec)(i >> 1 & 1));
        assert_int_equal(wire_msg_parts(setup.message), 2 + setup.packed.n_items);
        assert_ok(
            codec_decode(setup.coder, setup.message, "worker 1", &setup.decoded, &back, &head));
        assert_int_equal(head.row, 42);
        assert_int_equal(head.kind, KIND_ROW);
        assert_int_equal(back.n_video_patches, setup.packed.n_video_patches);
        assert_true((back.pixels_video == NULL) == (back.n_video_patches == 0));
        rows_assert_equal(&setup.packed, &back);
        /* a second time from the same message */
        assert_ok(
            codec_decode(setup.coder, setup.message, "worker 1", &setup.decoded, &back, NULL));
        rows_assert_equal(&setup.packed, &back);
        tear_down(&setup);
    }
}

static void test_codec__filtered_smooth_images_shrink(void **state)
{
    (void)state;
    setting setup;
    set_up(&setup, &(row_recipe){.seed = 3, .n_docs = 4, .images = 2}, IMAGE_FILTER_PLANE,
           IMAGE_CODEC_ZSTD);
    assert_true(wire_msg_bytes(setup.message) * 4 < (size_t)setup.packed.n_patches * PATCH_BYTES);
    tear_down(&setup);
}

static void assert_same_message(const wire_msg *first, const wire_msg *second)
{
    assert_int_equal(wire_msg_parts(first), wire_msg_parts(second));
    for (size_t i = 0; i < wire_msg_parts(first); i++) {
        const span one = wire_msg_part(first, i), other = wire_msg_part(second, i);
        assert_int_equal(one.size, other.size);
        assert_memory_equal(one.data, other.data, one.size);
    }
}

/* Whether an item's pixels lie with the others, anywhere else, or already in their message part,
 * the message is the same, byte for byte. */
static void test_codec_encode__pixels_may_lie_anywhere(void **state)
{
    (void)state;
    for (int i = 0; i < N_RECIPES * 4; i++) {
        item_pixels items[64];
        uint8_t is_video[64];
        setting setup;
        wire_msg *message = NULL, *made = NULL;
        const image_filter filter = (image_filter)(i & 1);
        const image_codec image = (image_codec)(i >> 1 & 1);
        set_up(&setup, &recipes[i / 4], filter, image);
        assert_ok(wire_msg_new(&message));
        assert_ok(wire_msg_new(&made));
        assert_ok(row_find_videos(&setup.packed, "test", is_video));
        row apart = setup.packed;
        apart.pixels = apart.pixels_video = NULL;
        apart.items = items;
        const uint8_t *at[2] = {setup.packed.pixels, setup.packed.pixels_video};
        for (int64_t k = 0; k < setup.packed.n_items; k++) {
            const int32_t *grid = setup.packed.grid_thw + 3 * k;
            const size_t bytes = (size_t)(grid[0] * grid[1] * grid[2]) *
                                 (is_video[k] ? VIDEO_PATCH_BYTES : PATCH_BYTES);
            uint8_t *room;
            assert_ok(codec_item_room(made, bytes, &room));
            memcpy(room, at[is_video[k]], bytes);
            codec_item_done(made, (size_t)k, is_video[k]);
            items[k] = (item_pixels){at[is_video[k]], is_video[k] != 0};
            at[is_video[k]] += bytes;
        }
        assert_ok(codec_encode(setup.coder, &apart, 42, filter, image, message));
        assert_same_message(message, setup.message);
        wire_msg_clear(message);
        if (filter == IMAGE_FILTER_NONE && image == IMAGE_CODEC_NONE) {
            assert_ok(codec_encode_made(setup.coder, &apart, 42, made, message));
            assert_same_message(message, setup.message);
            assert_int_equal(wire_msg_parts(made), 0);
        } else {
            assert_ok(wire_msg_add(made, "", 0));
            assert_fails(ST_INTERNAL, codec_encode_made(setup.coder, &apart, 42, made, message),
                         "parts for");
            assert_int_equal(wire_msg_parts(message), 0);
        }
        wire_msg_free(&made);
        wire_msg_free(&message);
        tear_down(&setup);
    }
}

static void test_codec_encode__refuses_an_invalid_row(void **state)
{
    (void)state;
    setting setup;
    set_up(&setup, &recipes[2], IMAGE_FILTER_NONE, IMAGE_CODEC_NONE);
    wire_msg_clear(setup.message);
    setup.packed.labels[0] = 3;
    assert_fails(ST_BAD_INPUT,
                 codec_encode(setup.coder, &setup.packed, 1, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE,
                              setup.message),
                 "first token");
    assert_int_equal(wire_msg_parts(setup.message), 0);
    tear_down(&setup);
}

/* Changes the bytes of a part and returns the new size, which may be one byte more. */
typedef size_t (*edit)(uint8_t *bytes, size_t size, uint64_t how);

static size_t flip(uint8_t *bytes, size_t size, uint64_t how)
{
    if (size > 0)
        bytes[how / 8 % size] ^= (uint8_t)(1 << how % 8);
    return size;
}

static size_t truncate_bytes(uint8_t *bytes, size_t size, uint64_t how)
{
    (void)bytes;
    return size ? how % size : 0;
}

static size_t lengthen(uint8_t *bytes, size_t size, uint64_t how)
{
    bytes[size] = (uint8_t)how;
    return size + 1;
}

/* A copy of the message with one part edited. */
static wire_msg *edited(const wire_msg *message, size_t part, edit how, uint64_t with)
{
    wire_msg *copy = NULL;
    span data = wire_msg_part(message, part);
    uint8_t *bytes = malloc(data.size + 1);
    assert_non_null(bytes);
    memcpy(bytes, data.data, data.size);
    size_t size = how(bytes, data.size, with);
    assert_ok(wire_msg_new(&copy));
    assert_ok(wire_msg_share(copy, message));
    assert_ok(wire_msg_set(copy, part, bytes, size));
    free(bytes);
    return copy;
}

/* After a random edit of any part, the message is refused as the peer's fault or still decodes to
 * the same row. */
static void test_codec_decode__hostile_edits(void **state)
{
    (void)state;
    const edit edits[] = {flip, flip, flip, truncate_bytes, lengthen};
    enum { EDITS = sizeof edits / sizeof edits[0], ROUNDS = 60 };
    rng_key key = rng_key_make(harness_seed(), "hostile");
    uint64_t counter = 0;
    int refused = 0, tried = 0;
    for (int i = 0; i < N_RECIPES * 2; i++) {
        setting setup;
        int mode = i & 1;
        set_up(&setup, &recipes[i / 2], (image_filter)mode, (image_codec)mode);
        size_t parts = wire_msg_parts(setup.message);
        for (size_t k = 0; k < EDITS * ROUNDS; k++) {
            row back;
            wire_msg *message =
                edited(setup.message, k % parts, edits[k % EDITS], rng_u64(key, counter++));
            arena_reset(&setup.decoded);
            status st = codec_decode(setup.coder, message, "worker 1", &setup.decoded, &back, NULL);
            if (st == ST_OK)
                rows_assert_equal(&setup.packed, &back);
            else
                assert_int_equal(st, ST_PROTOCOL);
            refused += st != ST_OK;
            tried++;
            wire_msg_free(&message);
        }
        tear_down(&setup);
    }
    print_message("%d of %d edits refused\n", refused, tried);
    assert_true(refused > tried * 9 / 10);
}

static void test_codec_decode__parts_missing_or_extra(void **state)
{
    (void)state;
    setting setup;
    row back;
    set_up(&setup, &recipes[2], IMAGE_FILTER_NONE, IMAGE_CODEC_NONE);
    for (size_t missing = 0; missing < wire_msg_parts(setup.message); missing++) {
        wire_msg *message = NULL;
        assert_ok(wire_msg_new(&message));
        for (size_t i = 0; i < missing; i++)
            assert_ok(wire_msg_add(message, wire_msg_part(setup.message, i).data,
                                   wire_msg_part(setup.message, i).size));
        assert_int_equal(
            codec_decode(setup.coder, message, "worker 1", &setup.decoded, &back, NULL),
            ST_PROTOCOL);
        wire_msg_free(&message);
    }
    assert_ok(wire_msg_add(setup.message, "more", 4));
    assert_fails(ST_PROTOCOL,
                 codec_decode(setup.coder, setup.message, "worker 1", &setup.decoded, &back, NULL),
                 "not JSON"); /* the part after the images is the tag */
    assert_ok(wire_msg_add(setup.message, "more", 4));
    assert_fails(ST_PROTOCOL,
                 codec_decode(setup.coder, setup.message, "worker 1", &setup.decoded, &back, NULL),
                 "10 parts");
    tear_down(&setup);
}

static size_t claim_patches(uint8_t *bytes, size_t size, uint64_t how)
{
    store_u32(bytes + 4, (uint32_t)how);
    store_u64(bytes + 8, how * PATCH_BYTES);
    return size;
}

static size_t claim_decoded(uint8_t *bytes, size_t size, uint64_t how)
{
    store_u64(bytes + 8, how);
    return size;
}

static size_t claim_block(uint8_t *bytes, size_t size, uint64_t how)
{
    frame head;
    assert_ok(frame_decode(span_of(bytes, size), "test", &head));
    head.block_bytes = how;
    frame_encode(&head, bytes);
    return size;
}

static size_t claim_images(uint8_t *bytes, size_t size, uint64_t how)
{
    frame head;
    assert_ok(frame_decode(span_of(bytes, size), "test", &head));
    head.image_bytes = how;
    frame_encode(&head, bytes);
    return size;
}

static size_t other_digest(uint8_t *bytes, size_t size, uint64_t how)
{
    frame head;
    assert_ok(frame_decode(span_of(bytes, size), "test", &head));
    head.digest.bytes[how] ^= 1;
    frame_encode(&head, bytes);
    return size;
}

/* A wrong size is refused by name before memory is taken for it. */
static void test_codec_decode__wrong_sizes(void **state)
{
    (void)state;
    const struct {
        size_t part;
        edit how;
        uint64_t with;
        const char *words;
    } cases[] = {
        {2, claim_patches, 1 << 20, "image part 0"},
        {2, claim_patches, 0xffffffff, "image part 0"},
        {2, claim_decoded, 1, "image part 0"},
        {2, claim_decoded, UINT64_MAX, "image part 0"},
        {0, claim_block, 1 << 29, "the header 536870912"},
        {0, claim_block, 3, "the header 3"},
        {0, claim_block, UINT64_MAX, "at most"},
        {0, claim_images, 1 << 29, "the header says 536870912"},
        {0, claim_images, UINT64_MAX, "at most"},
        {0, other_digest, 5, "digest"},
    };
    for (int mode = 0; mode < 2; mode++) {
        setting setup;
        row back;
        set_up(&setup, &recipes[2], (image_filter)mode, (image_codec)mode);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            wire_msg *message = edited(setup.message, cases[i].part, cases[i].how, cases[i].with);
            arena_done(&setup.decoded);
            arena_init(&setup.decoded, (size_t)64 << 20);
            assert_fails(
                ST_PROTOCOL,
                codec_decode(setup.coder, message, "worker 1", &setup.decoded, &back, NULL),
                cases[i].words);
            assert_non_null(strstr(status_text(), "worker 1"));
            assert_true(setup.decoded.used_bytes < 1 << 20);
            wire_msg_free(&message);
        }
        tear_down(&setup);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codec__round_trips),
        cmocka_unit_test(test_codec__filtered_smooth_images_shrink),
        cmocka_unit_test(test_codec_encode__pixels_may_lie_anywhere),
        cmocka_unit_test(test_codec_encode__refuses_an_invalid_row),
        cmocka_unit_test(test_codec_decode__hostile_edits),
        cmocka_unit_test(test_codec_decode__parts_missing_or_extra),
        cmocka_unit_test(test_codec_decode__wrong_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
