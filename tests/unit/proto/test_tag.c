/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of tag.h: a row that is what its tag says gets the tag's texts, and one that differs in any
 * number is refused with the name of its worker. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "proto/message/codec.h"
#include "proto/row/tag.h"
#include "tests/harness.h"
#include "tests/unit/proto/seeded_rows.h"

enum { ROW = 42, TAG_BYTES = ROW_TAG_BYTES };

typedef struct scene {
    arena memory;
    row packed;
    frame head;
} scene;

static void set_up(scene *all)
{
    *all = (scene){.head = {.kind = KIND_ROW, .row = ROW}};
    arena_init(&all->memory, 0);
    row_make(&(row_recipe){.seed = 4, .n_docs = 3, .images = 2, .videos = 1, .noise = 1},
             &all->memory, &all->packed);
}

static void test_tag__gives_its_texts_to_a_row_that_agrees(void **state)
{
    (void)state;
    static char text[TAG_BYTES];
    for (int no_targets = 0; no_targets < 2; no_targets++) {
        scene all;
        set_up(&all);
        row_write_tag(&all.packed, ROW, -1, no_targets, text);
        assert_ok(
            tag_apply(span_of(text, strlen(text)), &all.head, "daemon", &all.memory, &all.packed));
        assert_string_equal(all.packed.cursor, "{\"row\":43}");
        assert_string_equal(all.packed.quarantine, "[]");
        assert_string_equal(all.packed.references, "");
        assert_string_equal(all.packed.worker, "7 on there");
        arena_done(&all.memory);
    }
}

static void test_tag__refuses_every_other_number(void **state)
{
    (void)state;
    static char text[TAG_BYTES];
    scene all;
    set_up(&all);
    const char *was = all.packed.cursor;
    const int64_t count = row_write_tag(&all.packed, ROW, -1, false, text);
    assert_true(count > 20);
    for (int64_t wrong = 0; wrong < count; wrong++) {
        row_write_tag(&all.packed, ROW, wrong, false, text);
        assert_fails(
            ST_PROTOCOL,
            tag_apply(span_of(text, strlen(text)), &all.head, "daemon", &all.memory, &all.packed),
            "worker 7 on there");
        assert_string_equal(all.packed.cursor, was);
    }
    row_write_tag(&all.packed, ROW, -1, false, text);
    all.head.row++;
    assert_fails(
        ST_PROTOCOL,
        tag_apply(span_of(text, strlen(text)), &all.head, "daemon", &all.memory, &all.packed),
        "it has the number 43");
    arena_done(&all.memory);
}

static void test_tag__refuses_a_list_of_another_length(void **state)
{
    (void)state;
    static const char *const tags[] = {
        "{\"row\":42,\"worker\":\"7 on there\"}", "{}", "[]", "x", "{\"row\":42,\"ids\":[1,2]}",
        "{\"row\":42,\"ids\":{\"a\":1}}"};
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        scene all;
        set_up(&all);
        const status st = tag_apply(span_of(tags[i], strlen(tags[i])), &all.head, "daemon",
                                    &all.memory, &all.packed);
        assert_true(st == ST_PROTOCOL || st == ST_BAD_INPUT);
        arena_done(&all.memory);
    }
}

/* Reads the tag with the fast reader. The texts live in the scene's memory. */
static bool scan(scene *all, const char *text, tag_texts *out)
{
    const span tag = span_of(text, strlen(text));
    char *to;
    assert_ok(arena_alloc(&all->memory, tag_texts_bytes(tag), (void **)&to));
    return tag_scan(tag, ROW, &all->packed, to, out);
}

static void test_tag_scan__is_enough_for_what_dispatchers_write(void **state)
{
    (void)state;
    static char text[TAG_BYTES];
    scene all;
    tag_texts texts;
    set_up(&all);
    row_write_tag(&all.packed, ROW, -1, false, text);
    assert_true(scan(&all, text, &texts));
    assert_string_equal(texts.cursor, "{\"row\":43}");
    row_write_tag(&all.packed, ROW, -1, true, text);
    strcpy(text + strlen(text) - 1, ",\"references\":\"a \\\\ b\"}");
    assert_true(scan(&all, text, &texts));
    assert_string_equal(texts.references, "a \\ b");
    assert_string_equal(texts.worker, "7 on there");
    arena_done(&all.memory);
}

/* Replaces the first of these words. */
static void put_instead(char *text, const char *words, const char *other)
{
    static char rest[TAG_BYTES];
    char *at = strstr(text, words);
    assert_non_null(at);
    strcpy(rest, at + strlen(words));
    sprintf(at, "%s%s", other, rest);
}

static void test_tag_scan__leaves_what_is_written_otherwise(void **state)
{
    (void)state;
    static const char *const other[][2] = {{"{", " {"},
                                           {",\"ids\"", ", \"ids\""},
                                           {"\"worker\"", "\"also\":[1,{}],\"worker\""},
                                           {"on there", "o\\u006e there"},
                                           {"on there", "on the\\/re"},
                                           {"on there", "on th\xc3\xa9re"}};
    static char text[TAG_BYTES];
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        scene all;
        tag_texts texts;
        set_up(&all);
        row_write_tag(&all.packed, ROW, -1, false, text);
        put_instead(text, other[i][0], other[i][1]);
        assert_false(scan(&all, text, &texts));
        assert_ok(
            tag_apply(span_of(text, strlen(text)), &all.head, "daemon", &all.memory, &all.packed));
        assert_string_equal(all.packed.cursor, "{\"row\":43}");
        arena_done(&all.memory);
    }
}

/* What is not a tag of the row for who parses it is none for the fast reader, whichever byte is
 * another or missing. */
static void test_tag_scan__takes_nothing_that_a_parser_would_not(void **state)
{
    (void)state;
    static const char instead[] = "0 1,9\"\\-n[]{}\n\x7f\xc3";
    static char was[TAG_BYTES], text[TAG_BYTES + 1];
    int taken = 0;
    scene all;
    set_up(&all);
    row_write_tag(&all.packed, ROW, -1, false, was);
    const size_t size = strlen(was);
    for (size_t at = 0; at < size; at++)
        for (size_t k = 0; k < sizeof instead; k++) { /* the last one ends the text there */
            const arena_mark before = arena_save(&all.memory);
            row parsed = all.packed;
            tag_texts texts;
            sprintf(text, " %s", was); /* which the fast reader does not take */
            text[1 + at] = instead[k];
            if (scan(&all, text + 1, &texts)) {
                taken++;
                assert_ok(tag_apply(span_of(text, strlen(text)), &all.head, "daemon", &all.memory,
                                    &parsed));
                assert_string_equal(texts.cursor, parsed.cursor);
                assert_string_equal(texts.quarantine, parsed.quarantine);
                assert_string_equal(texts.worker, parsed.worker);
            }
            arena_release(&all.memory, before);
        }
    assert_true(taken > 20); /* other bytes in the texts, and those that were there */
    arena_done(&all.memory);
}

/* Whether the fast reader takes a tag of this row, and none in which number `at` is another. */
static void scan_number(scene *all, int64_t at)
{
    static char text[TAG_BYTES];
    tag_texts texts;
    row_write_tag(&all->packed, ROW, -1, false, text);
    assert_true(scan(all, text, &texts));
    row_write_tag(&all->packed, ROW, at, false, text);
    assert_false(scan(all, text, &texts));
}

static void test_tag_scan__knows_numbers_of_every_length(void **state)
{
    (void)state;
    int32_t none[] = {-1, -1, -1};
    scene all;
    set_up(&all);
    all.packed.doc_prefix = none;
    for (int64_t power = 1; power <= INT64_MAX / 10; power *= 10)
        for (int64_t from = -1; from <= 1; from++) {
            all.packed.doc_sample_id[1] = (uint64_t)(power + from);
            scan_number(&all, 1);
            all.packed.doc_sample_id[1] = (uint64_t)(INT64_MAX - power);
            scan_number(&all, 1);
            all.packed.doc_part[2] = -(int32_t)(power % INT32_MAX);
            scan_number(&all, 5);
        }
    arena_done(&all.memory);
}

/* Makes all tokens targets but the first of each document. */
static void make_texts(row *packed)
{
    for (int64_t doc = 0; doc < packed->n_docs; doc++)
        for (int32_t i = packed->cu_seqlens[doc] + 1; i < packed->cu_seqlens[doc + 1]; i++)
            packed->labels[i] = packed->input_ids[i];
}

static void test_tag_scan__misses_no_target_of_a_text(void **state)
{
    (void)state;
    enum { DOCS = 150 };
    static char text[TAG_BYTES];
    tag_texts texts;
    scene all = {.head = {.kind = KIND_ROW, .row = ROW}};
    arena_init(&all.memory, 0);
    row_make(&(row_recipe){.seed = 5, .n_docs = DOCS}, &all.memory, &all.packed);
    make_texts(&all.packed);
    row_write_tag(&all.packed, ROW, -1, false, text);
    assert_true(scan(&all, text, &texts));
    for (int64_t doc = 0; doc < DOCS; doc++) {
        int32_t *label = &all.packed.labels[all.packed.cu_seqlens[doc + 1] - 1], was = *label;
        scan_number(&all, doc);            /* its id */
        scan_number(&all, 3 * DOCS + doc); /* its length */
        row_write_tag(&all.packed, ROW, -1, false, text);
        *label = NO_LABEL;
        assert_false(scan(&all, text, &texts));
        assert_fails(
            ST_PROTOCOL,
            tag_apply(span_of(text, strlen(text)), &all.head, "daemon", &all.memory, &all.packed),
            "targets [");
        row_write_tag(&all.packed, ROW, -1, false, text); /* as if it were known to be bad */
        assert_true(scan(&all, text, &texts));
        *label = was;
    }
    arena_done(&all.memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tag__gives_its_texts_to_a_row_that_agrees),
        cmocka_unit_test(test_tag__refuses_every_other_number),
        cmocka_unit_test(test_tag__refuses_a_list_of_another_length),
        cmocka_unit_test(test_tag_scan__is_enough_for_what_dispatchers_write),
        cmocka_unit_test(test_tag_scan__leaves_what_is_written_otherwise),
        cmocka_unit_test(test_tag_scan__takes_nothing_that_a_parser_would_not),
        cmocka_unit_test(test_tag_scan__knows_numbers_of_every_length),
        cmocka_unit_test(test_tag_scan__misses_no_target_of_a_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
