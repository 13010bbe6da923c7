/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of units.c: long texts are split into parts, questions on one picture are kept together,
 * and pieces of a compressed file are read in order. */
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/prepd/conf_defaults.h"
#include "tests/unit/prepd/plan/fake_data.h"

static conf conf_of(int64_t tokens)
{
    conf options = conf_defaults();
    options.training_seq_len = tokens;
    options.training_seed = (int64_t)harness_seed();
    options.training_epochs = 2;
    options.data_window = 64;
    options.image_min_pixels = 1024;
    options.image_max_pixels = 16777216;
    return options;
}

static void test_split__every_token_is_in_one_part(void **state)
{
    (void)state;
    enum { SAMPLES = 200, ROW = 128 };
    fake_sample fake[SAMPLES] = {0};
    int64_t wanted = 0, got = 0;
    int seen[SAMPLES] = {0};
    for (int i = 0; i < SAMPLES; i++) {
        fake[i] = (fake_sample){.text_tokens = 1 + i * 7 % 300, .plain = true};
        wanted += fake[i].text_tokens;
    }
    fake_data data;
    plan *planned;
    arena memory;
    conf options = conf_of(ROW);
    fake_data_init(&data, fake, SAMPLES);
    assert_ok(plan_new(&options, &data.base, data.index, PLAN_PACKED, &planned));
    arena_init(&memory, 0);
    for (uint64_t k = 0; k < plan_epoch_rows(planned); k++) {
        planned_row placed;
        assert_ok(plan_row(planned, NULL, k, &memory, &placed));
        assert_in_range(placed.tokens, 1, ROW);
        for (int64_t place = 0; place < placed.n_docs; place++) {
            const planned_doc *doc = &placed.docs[place];
            assert_int_equal(doc->whole, fake[doc->sample].text_tokens);
            assert_int_equal(doc->from, doc->part * ROW);
            assert_int_equal(doc->tokens,
                             doc->whole - doc->from < ROW ? doc->whole - doc->from : ROW);
            seen[doc->sample] += 1 << (8 * doc->part); /* a byte for each of the parts 0, 1 and 2 */
            got += doc->tokens;
        }
    }
    assert_int_equal(got, wanted);
    for (int i = 0; i < SAMPLES; i++)
        assert_int_equal(seen[i], fake[i].text_tokens > 2 * ROW ? 0x10101
                                  : fake[i].text_tokens > ROW   ? 0x101
                                                                : 1);
    plan_free(&planned);
    for (int i = 0; i < SAMPLES; i++)
        fake[i].plain = false;
    assert_ok(plan_new(&options, &data.base, data.index, PLAN_PACKED, &planned));
    assert_true(plan_refused(planned) > 0);
    plan_free(&planned);
    arena_done(&memory);
    fake_data_done(&data);
}

/* Each picture has five questions, of which a row holds four. The patches of a picture count once
 * for all questions beside it. By the earlier rules four of the five share their picture. A unit of
 * four is more than half a row, so by the present rules it becomes two of two. */
static void check_shared_image(plan_kind kind, int64_t sharing)
{
    enum { SAMPLES = 300, EACH = 5 };
    fake_sample fake[SAMPLES] = {0};
    int seen[SAMPLES] = {0};
    for (int i = 0; i < SAMPLES; i++) /* questions on one picture are far apart in the file */
        fake[i] = (fake_sample){.text_tokens = 20 + i % 9,
                                .width = 320,
                                .height = 320,
                                .image_of = 1 + i % (SAMPLES / EACH)};
    fake_data data;
    plan *planned;
    arena memory;
    /* with 100 tokens for a picture, four questions fit and the fifth does not */
    conf options = conf_of(512);
    options.data_group = GROUP_SHARED_IMAGE;
    fake_data_init(&data, fake, SAMPLES);
    assert_ok(plan_new(&options, &data.base, data.index, kind, &planned));
    arena_init(&memory, 0);
    int64_t shared = 0;
    for (uint64_t k = 0; k < plan_epoch_rows(planned); k++) {
        planned_row placed;
        int64_t patches = 0;
        assert_ok(plan_row(planned, NULL, k, &memory, &placed));
        assert_in_range(placed.tokens, 1, 512);
        for (int64_t place = 0; place < placed.n_docs; place++) {
            const planned_doc *doc = &placed.docs[place];
            seen[doc->sample]++;
            if (doc->shared) {
                assert_true(place > 0);
                assert_int_equal(doc->images[0], placed.docs[place - 1].images[0]);
                shared++;
            } else {
                patches += doc->patches;
            }
        }
        assert_int_equal(patches, placed.patches);
    }
    for (int i = 0; i < SAMPLES; i++)
        assert_int_equal(seen[i], 1);
    assert_int_equal(shared, sharing * SAMPLES / EACH);
    plan_free(&planned);
    arena_done(&memory);
    fake_data_done(&data);
}

static void test_shared_image__questions_are_together_and_patches_count_once(void **state)
{
    (void)state;
    check_shared_image(PLAN_PACKED, 2);
}

/* Makes the index say that every sample agrees with the one before it in `agrees` tokens of text
 * and has its picture after `head` of them. */
static void begin_alike(fake_data *data, int32_t agrees, int32_t head)
{
    index_free(&data->index);
    assert_ok(index_new(data->count, data->count, &data->index));
    assert_ok(index_take_beginnings(data->index));
    for (int64_t i = 0; i < data->count; i++) {
        const fake_sample *one = &data->samples[i];
        const index_sample record = {one->text_tokens, 1, NULL};
        const index_beginning begins = {i > 0, i > 0 ? agrees : 0, head, one->text_tokens - 2};
        const index_image image = {1000, 1, 320, 320, NULL};
        assert_ok(index_put_image(data->index, i, &image));
        assert_ok(index_put_sample(data->index, i, &record));
        assert_ok(index_put_beginning(data->index, i, &begins));
    }
    assert_ok(index_seal(data->index));
}

/* 274 questions on one picture are six units of half a row, each with the prefix, since all of them
 * together would leave nothing to even rows out with. */
static void test_shared_prefix__a_large_unit_becomes_even_ones(void **state)
{
    (void)state;
    enum { SAMPLES = 274, ROW = 1024, PICTURE = 100, AGREES = 12, TEXT = 20, UNITS = 6 };
    static fake_sample fake[SAMPLES];
    int seen[SAMPLES] = {0}, prefixes = 0;
    for (int i = 0; i < SAMPLES; i++)
        fake[i] = (fake_sample){.text_tokens = TEXT, .width = 320, .height = 320, .image_of = 1};
    fake_data data;
    plan *planned;
    arena memory;
    conf options = conf_of(ROW);
    options.data_group = GROUP_SHARED_PREFIX;
    fake_data_init(&data, fake, SAMPLES);
    begin_alike(&data, AGREES, 5);
    assert_ok(plan_new(&options, &data.base, data.index, PLAN_PACKED, &planned));
    arena_init(&memory, 0);
    for (uint64_t k = 0; k < plan_epoch_rows(planned); k++) {
        planned_row placed;
        assert_ok(plan_row(planned, NULL, k, &memory, &placed));
        assert_in_range(placed.tokens, 1, ROW);
        for (int64_t place = 0; place < placed.n_docs; place++) {
            const planned_doc *doc = &placed.docs[place];
            if (doc->part < 0) {
                prefixes++;
                assert_int_equal(doc->tokens, PICTURE + AGREES);
                assert_in_range(doc->prefix, SAMPLES / UNITS - 1, SAMPLES / UNITS + 1);
                continue;
            }
            seen[doc->sample]++;
            assert_int_equal(doc->before, PICTURE + AGREES);
            assert_int_equal(doc->tokens, TEXT - AGREES);
        }
    }
    assert_int_equal(prefixes, UNITS);
    for (int i = 0; i < SAMPLES; i++)
        assert_int_equal(seen[i], 1);
    plan_free(&planned);
    /* A prefix that takes most of a row is repeated as rarely as rows allow. */
    options.training_seq_len = 150;
    assert_ok(plan_new(&options, &data.base, data.index, PLAN_PACKED, &planned));
    assert_int_equal(plan_epoch_rows(planned), (SAMPLES + 3) / 4);
    plan_free(&planned);
    /* Without beginnings in the index there is nothing to go by. */
    fake_data_done(&data);
    fake_data_init(&data, fake, SAMPLES);
    assert_fails(ST_BAD_INPUT, plan_new(&options, &data.base, data.index, PLAN_PACKED, &planned),
                 "how samples begin");
    arena_done(&memory);
    fake_data_done(&data);
}

/* A window reads one or two neighbouring pieces. An epoch still has every sample once, in mixed
 * order. */
static void test_chunks__pieces_follow_each_other(void **state)
{
    (void)state;
    enum { SAMPLES = 1000, PIECE = 100 };
    static fake_sample fake[SAMPLES];
    for (int i = 0; i < SAMPLES; i++)
        fake[i] = (fake_sample){.text_tokens = 50, .plain = true};
    fake_data data;
    plan *planned;
    arena memory;
    conf options = conf_of(500);
    fake_data_init(&data, fake, SAMPLES);
    data.per_chunk = PIECE;
    assert_ok(plan_new(&options, &data.base, data.index, PLAN_PACKED, &planned));
    arena_init(&memory, 0);
    for (int epoch = 0; epoch < 2; epoch++) {
        int seen[SAMPLES] = {0}, ascending = 0;
        int64_t last = -1;
        const uint64_t rows = plan_epoch_rows(planned);
        for (uint64_t k = epoch * rows; k < (epoch + 1) * rows; k++) {
            planned_row placed;
            arena_reset(&memory);
            assert_ok(plan_row(planned, NULL, k, &memory, &placed));
            int in_row[SAMPLES / PIECE] = {0};
            for (int64_t doc = 0; doc < placed.n_docs; doc++) {
                const int64_t i = placed.docs[doc].sample;
                seen[i]++;
                ascending += i == last + 1;
                last = i;
                in_row[i / PIECE]++;
            }
            int parts = 0;
            for (int value = 0; value < SAMPLES / PIECE; value++)
                parts += in_row[value] > 0;
            assert_in_range(parts, 1, 2); /* a window of 63 samples lies in one piece or in two */
        }
        for (int i = 0; i < SAMPLES; i++)
            assert_int_equal(seen[i], 1);
        assert_true(ascending < SAMPLES / 4); /* inside a window the order is mixed */
    }
    plan_free(&planned);
    arena_done(&memory);
    fake_data_done(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split__every_token_is_in_one_part),
        cmocka_unit_test(test_shared_image__questions_are_together_and_patches_count_once),
        cmocka_unit_test(test_shared_prefix__a_large_unit_becomes_even_ones),
        cmocka_unit_test(test_chunks__pieces_follow_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
