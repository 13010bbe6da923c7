/* Tests of tag.h: a row that is what its tag says gets the tag's texts, and one that differs in any
 * number is refused with the name of its worker. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "proto/codec.h"
#include "proto/tag.h"
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tag__gives_its_texts_to_a_row_that_agrees),
        cmocka_unit_test(test_tag__refuses_every_other_number),
        cmocka_unit_test(test_tag__refuses_a_list_of_another_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
