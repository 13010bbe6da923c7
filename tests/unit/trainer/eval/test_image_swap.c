/* SPDX-License-Identifier: Apache-2.0 */
/* test_image_swap.c: pictures exchanged between documents (evaluation's image swap). A picture is
 * replaced by another one of the same grid, never by itself, and a document counts only if all its
 * pictures were replaced. */
#include "tests/unit/trainer/model/fixture.h"

#include <string.h>

#include "trainer/eval/image_swap.h"

enum { GRID = 16 * PATCH_BYTES }; /* bytes of a picture of 4 x 4 patches */

static void open_rows(fixture *setup)
{
    *setup = (fixture){0};
    assert_ok(dims_preset("debug", &setup->dims));
    arena_init(&setup->rows, 0);
}

static void test_image_swap__first_picture_of_a_grid_has_no_partner(void **state)
{
    (void)state;
    fixture setup;
    image_swap *swap;
    bool lent[2];
    open_rows(&setup);
    assert_ok(image_swap_new(&swap));
    row packed = fixture_row(&setup, (document[]){{"3 1x4x4 2", 1}, {"3 1x4x6 2", 2}}, 2, false);
    uint8_t before[GRID];
    memcpy(before, packed.pixels, GRID);
    assert_ok(image_swap_exchange(swap, &packed, lent));
    assert_false(lent[0] || lent[1]);
    assert_memory_equal(before, packed.pixels, GRID);
    image_swap_free(&swap);
    image_swap_free(&swap); /* accepts NULL */
    arena_done(&setup.rows);
}

static void test_image_swap__gives_the_last_other_picture(void **state)
{
    (void)state;
    fixture setup;
    image_swap *swap;
    bool lent[3];
    open_rows(&setup);
    assert_ok(image_swap_new(&swap));
    row one = fixture_row(&setup, (document[]){{"3 1x4x4 2", 1}}, 1, false);
    row other =
        fixture_row(&setup, (document[]){{"3 1x4x4 2", 2}, {"5", 3}, {"9 1x4x4 1", 2}}, 3, false);
    uint8_t first[GRID], second[GRID];
    memcpy(first, one.pixels, GRID);
    memcpy(second, other.pixels, GRID);
    assert_memory_equal(second, other.pixels + GRID,
                        GRID); /* two questions about the same picture */
    assert_ok(image_swap_exchange(swap, &one, lent));
    assert_ok(image_swap_exchange(swap, &other, lent));
    assert_true(lent[0] && !lent[1] && lent[2]); /* a document without pictures does not count */
    assert_memory_equal(first, other.pixels, GRID);
    assert_memory_equal(first, other.pixels + GRID, GRID);

    row packed = fixture_row(&setup, (document[]){{"3 1x4x4 2", 1}}, 1, false);
    assert_ok(image_swap_exchange(swap, &packed, lent));
    assert_true(lent[0]);
    assert_memory_equal(second, packed.pixels, GRID);
    image_swap_free(&swap);
    arena_done(&setup.rows);
}

static void test_image_swap__every_picture_of_a_document_counts(void **state)
{
    (void)state;
    fixture setup;
    image_swap *swap;
    bool lent[3];
    open_rows(&setup);
    assert_ok(image_swap_new(&swap));
    row first = fixture_row(&setup, (document[]){{"3 1x4x4 2", 1}}, 1, false);
    document two[3] = {{"3 1x4x4 1 1x4x6 2", 2}, {"3 1x4x4 2", 3}, {"3 1x6x4 1 1x4x4 2", 6}};
    row second = fixture_row(&setup, two, 3, false);
    assert_ok(image_swap_exchange(swap, &first, lent));
    assert_ok(image_swap_exchange(swap, &second, lent));
    assert_false(lent[0] || lent[2]); /* each has a picture that is the first of its grid */
    assert_true(lent[1]);

    /* Two documents share a picture (data.group shared_image), and both count. */
    row packed = fixture_row(&setup, (document[]){{"3 1x4x4 2", 4}, {"6", 5}}, 2, false);
    for (int64_t token = packed.cu_seqlens[1], merged = 0; merged < 4; token++, merged++)
        packed.visual_row[token + 1] = (int32_t)merged;
    assert_ok(image_swap_exchange(swap, &packed, lent));
    assert_true(lent[0] && lent[1]);
    image_swap_free(&swap);
    arena_done(&setup.rows);
}

/* A branch has no pictures of its own; those of its prefix are exchanged for all branches. */
static void test_image_swap__of_a_prefix_is_that_of_all_branches(void **state)
{
    (void)state;
    fixture setup;
    image_swap *swap;
    bool lent[4];
    open_rows(&setup);
    assert_ok(image_swap_new(&swap));
    row other = fixture_row(&setup, &(document){"3 1x4x4 2", 1}, 1, false);
    const document docs[] = {{"3 1x4x4 2", 2}, {"4", 3}, {"5", 4}, {"6", 5}};
    row packed = fixture_row(&setup, docs, 4, false);
    assert_ok(arena_calloc(&setup.rows, 4, sizeof(int32_t), (void **)&packed.doc_prefix));
    packed.doc_prefix[0] = packed.doc_part[0] = packed.doc_prefix[3] = -1;
    uint8_t before[GRID];
    memcpy(before, other.pixels, GRID);
    assert_ok(image_swap_exchange(swap, &other, lent));
    assert_false(lent[0]);
    assert_ok(image_swap_exchange(swap, &packed, lent));
    assert_memory_equal(packed.pixels, before, GRID);
    assert_true(lent[1] && lent[2] && !lent[3]);
    image_swap_free(&swap);
    arena_done(&setup.rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_image_swap__first_picture_of_a_grid_has_no_partner),
        cmocka_unit_test(test_image_swap__gives_the_last_other_picture),
        cmocka_unit_test(test_image_swap__every_picture_of_a_document_counts),
        cmocka_unit_test(test_image_swap__of_a_prefix_is_that_of_all_branches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
