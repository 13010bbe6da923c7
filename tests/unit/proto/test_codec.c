/* Tests of codec.h: a row that is encoded and decoded is the same row, with every filter and codec,
 * and a message that was changed in any way is refused as the fault of its sender. */
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "proto/codec.h"
#include "proto/image_part.h"
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
    codec *c;
    arena made, decoded;
    wire_msg *m;
    row r;
} setting;

static void set_up(setting *s, const row_recipe *recipe, image_filter filter, image_codec image)
{
    memset(s, 0, sizeof *s);
    arena_init(&s->made, 0);
    arena_init(&s->decoded, (size_t)256 << 20);
    row_make(recipe, &s->made, &s->r);
    assert_ok(codec_new(&s->c));
    assert_ok(wire_msg_new(&s->m));
    assert_ok(codec_encode(s->c, &s->r, 42, filter, image, s->m));
}

static void tear_down(setting *s)
{
    wire_msg_free(&s->m);
    codec_free(&s->c);
    arena_done(&s->made);
    arena_done(&s->decoded);
}

static void test_codec__round_trips(void **state)
{
    (void)state;
    for (int i = 0; i < N_RECIPES * 4; i++) {
        setting s;
        row back;
        frame head;
        set_up(&s, &recipes[i / 4], (image_filter)(i & 1), (image_codec)(i >> 1 & 1));
        assert_int_equal(wire_msg_parts(s.m), 2 + s.r.n_items);
        assert_ok(codec_decode(s.c, s.m, "worker 1", &s.decoded, &back, &head));
        assert_int_equal(head.row, 42);
        assert_int_equal(head.kind, KIND_ROW);
        assert_int_equal(back.n_video_patches, s.r.n_video_patches);
        assert_true((back.pixels_video == NULL) == (back.n_video_patches == 0));
        rows_assert_equal(&s.r, &back);
        /* a second time from the same message */
        assert_ok(codec_decode(s.c, s.m, "worker 1", &s.decoded, &back, NULL));
        rows_assert_equal(&s.r, &back);
        tear_down(&s);
    }
}

static void test_codec__filtered_smooth_images_shrink(void **state)
{
    (void)state;
    setting s;
    set_up(&s, &(row_recipe){.seed = 3, .n_docs = 4, .images = 2}, IMAGE_FILTER_PLANE,
           IMAGE_CODEC_ZSTD);
    assert_true(wire_msg_bytes(s.m) * 4 < (size_t)s.r.n_patches * PATCH_BYTES);
    tear_down(&s);
}

static void assert_same_message(const wire_msg *a, const wire_msg *b)
{
    assert_int_equal(wire_msg_parts(a), wire_msg_parts(b));
    for (size_t i = 0; i < wire_msg_parts(a); i++) {
        const span x = wire_msg_part(a, i), y = wire_msg_part(b, i);
        assert_int_equal(x.size, y.size);
        assert_memory_equal(x.data, y.data, x.size);
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
        setting s;
        wire_msg *m = NULL, *made = NULL;
        const image_filter filter = (image_filter)(i & 1);
        const image_codec image = (image_codec)(i >> 1 & 1);
        set_up(&s, &recipes[i / 4], filter, image);
        assert_ok(wire_msg_new(&m));
        assert_ok(wire_msg_new(&made));
        assert_ok(row_find_videos(&s.r, "test", is_video));
        row apart = s.r;
        apart.pixels = apart.pixels_video = NULL;
        apart.items = items;
        const uint8_t *at[2] = {s.r.pixels, s.r.pixels_video};
        for (int64_t k = 0; k < s.r.n_items; k++) {
            const int32_t *g = s.r.grid_thw + 3 * k;
            const size_t bytes =
                (size_t)(g[0] * g[1] * g[2]) * (is_video[k] ? VIDEO_PATCH_BYTES : PATCH_BYTES);
            uint8_t *room;
            assert_ok(codec_item_room(made, bytes, &room));
            memcpy(room, at[is_video[k]], bytes);
            codec_item_done(made, (size_t)k, is_video[k]);
            items[k] = (item_pixels){at[is_video[k]], is_video[k] != 0};
            at[is_video[k]] += bytes;
        }
        assert_ok(codec_encode(s.c, &apart, 42, filter, image, m));
        assert_same_message(m, s.m);
        wire_msg_clear(m);
        if (filter == IMAGE_FILTER_NONE && image == IMAGE_CODEC_NONE) {
            assert_ok(codec_encode_made(s.c, &apart, 42, made, m));
            assert_same_message(m, s.m);
            assert_int_equal(wire_msg_parts(made), 0);
        } else {
            assert_ok(wire_msg_add(made, "", 0));
            assert_fails(ST_INTERNAL, codec_encode_made(s.c, &apart, 42, made, m), "parts for");
            assert_int_equal(wire_msg_parts(m), 0);
        }
        wire_msg_free(&made);
        wire_msg_free(&m);
        tear_down(&s);
    }
}

static void test_codec_encode__refuses_an_invalid_row(void **state)
{
    (void)state;
    setting s;
    set_up(&s, &recipes[2], IMAGE_FILTER_NONE, IMAGE_CODEC_NONE);
    wire_msg_clear(s.m);
    s.r.labels[0] = 3;
    assert_fails(ST_BAD_INPUT, codec_encode(s.c, &s.r, 1, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE, s.m),
                 "first token");
    assert_int_equal(wire_msg_parts(s.m), 0);
    tear_down(&s);
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
static wire_msg *edited(const wire_msg *m, size_t part, edit how, uint64_t with)
{
    wire_msg *copy = NULL;
    span s = wire_msg_part(m, part);
    uint8_t *bytes = malloc(s.size + 1);
    assert_non_null(bytes);
    memcpy(bytes, s.data, s.size);
    size_t size = how(bytes, s.size, with);
    assert_ok(wire_msg_new(&copy));
    assert_ok(wire_msg_share(copy, m));
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
        setting s;
        int mode = i & 1;
        set_up(&s, &recipes[i / 2], (image_filter)mode, (image_codec)mode);
        size_t parts = wire_msg_parts(s.m);
        for (size_t k = 0; k < EDITS * ROUNDS; k++) {
            row back;
            wire_msg *m = edited(s.m, k % parts, edits[k % EDITS], rng_u64(key, counter++));
            arena_reset(&s.decoded);
            status st = codec_decode(s.c, m, "worker 1", &s.decoded, &back, NULL);
            if (st == ST_OK)
                rows_assert_equal(&s.r, &back);
            else
                assert_int_equal(st, ST_PROTOCOL);
            refused += st != ST_OK;
            tried++;
            wire_msg_free(&m);
        }
        tear_down(&s);
    }
    print_message("%d of %d edits refused\n", refused, tried);
    assert_true(refused > tried * 9 / 10);
}

static void test_codec_decode__parts_missing_or_extra(void **state)
{
    (void)state;
    setting s;
    row back;
    set_up(&s, &recipes[2], IMAGE_FILTER_NONE, IMAGE_CODEC_NONE);
    for (size_t n = 0; n < wire_msg_parts(s.m); n++) {
        wire_msg *m = NULL;
        assert_ok(wire_msg_new(&m));
        for (size_t i = 0; i < n; i++)
            assert_ok(wire_msg_add(m, wire_msg_part(s.m, i).data, wire_msg_part(s.m, i).size));
        assert_int_equal(codec_decode(s.c, m, "worker 1", &s.decoded, &back, NULL), ST_PROTOCOL);
        wire_msg_free(&m);
    }
    assert_ok(wire_msg_add(s.m, "more", 4));
    assert_fails(ST_PROTOCOL, codec_decode(s.c, s.m, "worker 1", &s.decoded, &back, NULL),
                 "9 parts");
    tear_down(&s);
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
    frame f;
    assert_ok(frame_decode(span_of(bytes, size), "test", &f));
    f.block_bytes = how;
    frame_encode(&f, bytes);
    return size;
}

static size_t claim_images(uint8_t *bytes, size_t size, uint64_t how)
{
    frame f;
    assert_ok(frame_decode(span_of(bytes, size), "test", &f));
    f.image_bytes = how;
    frame_encode(&f, bytes);
    return size;
}

static size_t other_digest(uint8_t *bytes, size_t size, uint64_t how)
{
    frame f;
    assert_ok(frame_decode(span_of(bytes, size), "test", &f));
    f.digest.bytes[how] ^= 1;
    frame_encode(&f, bytes);
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
        setting s;
        row back;
        set_up(&s, &recipes[2], (image_filter)mode, (image_codec)mode);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            wire_msg *m = edited(s.m, cases[i].part, cases[i].how, cases[i].with);
            arena_done(&s.decoded);
            arena_init(&s.decoded, (size_t)64 << 20);
            assert_fails(ST_PROTOCOL, codec_decode(s.c, m, "worker 1", &s.decoded, &back, NULL),
                         cases[i].words);
            assert_non_null(strstr(status_text(), "worker 1"));
            assert_true(s.decoded.used_bytes < 1 << 20);
            wire_msg_free(&m);
        }
        tear_down(&s);
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
