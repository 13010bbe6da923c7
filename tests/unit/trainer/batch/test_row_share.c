/* SPDX-License-Identifier: Apache-2.0 */
/* test_row_share.c: how the ranks that share rows divide their tokens and pictures. Everything has
 * exactly one place, each rank's part is in the order of the rows, and the parts are even in
 * work. */
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/harness.h"
#include "trainer/batch/row_share.h"

/* Checks that every token has exactly one place, that each rank's tokens ascend, that *out_uneven
 * is the largest rank's work over the mean, and that it is at most `most`. */
static void check_order(const int32_t *cu, const int32_t *prefix, int64_t docs, int64_t ranks,
                        int64_t each, double most)
{
    int64_t tokens = cu[docs], doc = 0;
    int32_t *order = malloc((size_t)(ranks * each + 1) * sizeof *order);
    int32_t *owner = malloc((size_t)(tokens + 1) * sizeof *owner);
    int64_t *sees = malloc((size_t)(tokens + 1) * sizeof *sees);
    char *seen = calloc((size_t)tokens + 1, 1);
    double uneven, sum = 0, largest = 0;
    for (int64_t place = 0; place < tokens; place++) {
        while (place >= cu[doc + 1])
            doc++;
        sees[place] = place - cu[doc] + 1;
        if (prefix && prefix[doc] >= 0)
            sees[place] += cu[prefix[doc] + 1] - cu[prefix[doc]];
    }
    assert_ok(row_share_order(cu, prefix, docs, ranks, each, order, owner, &uneven));
    for (int64_t rank = 0; rank < ranks; rank++) {
        double work = 0;
        for (int64_t i = 0; i < each; i++) {
            int32_t place = order[rank * each + i];
            if (place < 0) {
                assert_true(i + 1 == each || order[rank * each + i + 1] < 0);
                continue;
            }
            assert_true(place < tokens && !seen[place]++);
            assert_true(i == 0 || place > order[rank * each + i - 1]);
            work += (double)sees[place];
        }
        sum += work;
        largest = work > largest ? work : largest;
    }
    for (int64_t place = 0; place < tokens; place++)
        assert_true(seen[place]);
    double want = sum > 0 ? largest * (double)ranks / sum : 1;
    assert_true(uneven > want - 1e-9 && uneven < want + 1e-9);
    if (uneven > most)
        fail_msg("%lld documents over %lld ranks: the most work is %.3f of the mean",
                 (long long)docs, (long long)ranks, uneven);
    free(order);
    free(owner);
    free(sees);
    free(seen);
}

static void test_row_share__tokens_are_divided_evenly(void **state)
{
    (void)state;
    const int32_t none[] = {0}, one[] = {0, 4096}, odd[] = {0, 4093}, pair[] = {0, 3000, 4096};
    const int32_t tiny[] = {0, 1, 2, 3};
    for (int64_t ranks = 1; ranks <= 8; ranks *= 2) {
        check_order(none, NULL, 0, ranks, 2, 1);
        check_order(one, NULL, 1, ranks, 4096 / ranks, 1.001);
        check_order(odd, NULL, 1, ranks, (4093 + ranks - 1) / ranks, 1.01);
        check_order(pair, NULL, 2, ranks, 4096 / ranks, 1.01);
        check_order(tiny, NULL, 3, ranks, 3, 8);
    }
    rng_key key = rng_key_make(7, "row_share");
    /* with one document, and with several */
    double most[] = {1.02, 1.15};
    for (uint64_t trial = 0; trial < 100; trial++) {
        int32_t cu[65] = {0};
        int64_t docs = 1 + (int64_t)rng_below(key, 3 * trial, 64), ranks = 2 << trial % 3;
        for (int64_t i = 0; i < docs; i++)
            cu[i + 1] =
                cu[i] + 1 +
                (int32_t)rng_below(key, 1000 + 100 * trial + (uint64_t)i, 8192 / (uint64_t)docs);
        int64_t exact = (cu[docs] + ranks - 1) / ranks;
        check_order(cu, NULL, docs, ranks, exact + (trial % 2 ? exact / 8 : 0),
                    docs > 1 ? most[1] : most[0]);
    }
}

/* Branches have most of their work in the keys of their prefix: rows of questions about pictures,
 * with room for just their tokens or for some more. */
static void test_row_share__branches_are_divided_evenly(void **state)
{
    (void)state;
    enum { DOCS_MAX = 400, PREFIX = 250, BRANCH = 10 };
    rng_key key = rng_key_make(9, "row_share");
    for (uint64_t trial = 0, drawn = 0; trial < 60; trial++) {
        int32_t cu[DOCS_MAX + 1] = {0}, prefix[DOCS_MAX];
        int64_t docs = 0, ranks = 2 << trial % 3;
        while (cu[docs] < 8192 && docs < DOCS_MAX - 20) {
            const int64_t root = docs, branches = 2 + (int64_t)rng_below(key, drawn++, 8);
            for (int64_t i = 0; i <= branches; i++, docs++) {
                const int32_t least = i ? BRANCH : PREFIX;
                prefix[docs] = i ? (int32_t)root : -1;
                cu[docs + 1] = cu[docs] + least + (int32_t)rng_below(key, drawn++, i ? 20 : 100);
            }
        }
        const int64_t exact = (cu[docs] + ranks - 1) / ranks;
        check_order(cu, prefix, docs, ranks, exact + (trial % 2 ? exact / 8 : 0), 1.01);
    }
}

static void test_row_share__pictures_are_divided_evenly(void **state)
{
    (void)state;
    const vision_dims dims = {.hidden = 1152, .intermediate = 4304, .depth = 27};
    int32_t grids[3 * 60];
    item_place place[60];
    rng_key key = rng_key_make(8, "row_share");
    for (int i = 0; i < 60; i++) {
        grids[3 * i] = i % 7 == 0 ? 4 : 1;
        grids[3 * i + 1] = 2 * (4 + (int32_t)rng_below(key, (uint64_t)i, 20));
        grids[3 * i + 2] = 2 * (4 + (int32_t)rng_below(key, 100 + (uint64_t)i, 20));
    }
    row rows[2] = {{.n_items = 25, .grid_thw = grids}, {.n_items = 35, .grid_thw = grids + 75}};
    for (int64_t ranks = 1; ranks <= 8; ranks *= 2) {
        int64_t merged, next[8] = {0}, most = 0;
        double uneven;
        assert_ok(row_share_items(rows, 2, &dims, ranks, place, &merged, &uneven));
        for (int i = 0; i < 60; i++) {
            assert_in_range(place[i].rank, 0, ranks - 1);
            assert_int_equal(place[i].first, next[place[i].rank]);
            next[place[i].rank] += grids[3 * i] * grids[3 * i + 1] * grids[3 * i + 2] / 4;
        }
        for (int64_t rank = 0; rank < ranks; rank++)
            most = next[rank] > most ? next[rank] : most;
        assert_int_equal(merged, most);
        assert_true(uneven >= 1 && uneven < 1.05);
    }
    int64_t merged;
    double uneven;
    assert_ok(row_share_items(NULL, 0, &dims, 4, place, &merged, &uneven));
    assert_int_equal(merged, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_share__tokens_are_divided_evenly),
        cmocka_unit_test(test_row_share__branches_are_divided_evenly),
        cmocka_unit_test(test_row_share__pictures_are_divided_evenly),
    };
    return cmocka_run_group_tests_name("row_share", tests, NULL, NULL);
}
