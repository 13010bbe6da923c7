/* SPDX-License-Identifier: Apache-2.0 */
/* test_step_totals.c: the counts of a step become those of all ranks. Every number of a report is
 * either summed, with each row counted by one of the ranks that share it, or in the list below of
 * what is a rank's own: one that someone adds to step_report and forgets in step_rows.c fails. */
#include "tests/harness.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/run/step_parts.h"

/* Two of each, so that a rank shares its rows in every way. */
static const layout degrees = {.replicate = 2,
                               .shard = 2,
                               .context = 2,
                               .tensor = 2,
                               .pipeline = 2,
                               .expert = 1,
                               .expert_tensor = 1,
                               .world = 32};

typedef struct member {
    size_t offset, bytes;
} member;

/* clang-format off */
#define MEMBER(name) {offsetof(step_report, name), sizeof((step_report *)0)->name}
/* clang-format on */

/* What the ranks do not sum: it is the same on all of them, is one rank's alone, or is found by
 * other means. The two flags follow each other in one word. */
static const member others[] = {
    MEMBER(step),         MEMBER(loss),        MEMBER(aux),
    MEMBER(weight),       MEMBER(grad_norm),   MEMBER(lr),
    MEMBER(group_norm),   MEMBER(skipped),     MEMBER(own_tokens),
    MEMBER(own_features), MEMBER(balance),     MEMBER(own_context_balance),
    MEMBER(sample),       MEMBER(n_samples),   MEMBER(own_vision_balance),
    MEMBER(input_ns),     MEMBER(wait_ns),     MEMBER(rows_digest),
    MEMBER(cursor),       MEMBER(where),       MEMBER(samples_digest),
    MEMBER(expert_count), MEMBER(stopped_at),  MEMBER(updated),
    MEMBER(unit_share),   MEMBER(bad_samples),
};

enum { WORDS = sizeof(step_report) / sizeof(int64_t) };

static bool is_summed(int word)
{
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if ((size_t)word * sizeof(int64_t) + sizeof(int64_t) > others[i].offset &&
            (size_t)word * sizeof(int64_t) < others[i].offset + others[i].bytes)
            return false;
    return true;
}

static session session_of(int rank)
{
    session run = {0};
    mesh_sketch(&degrees, rank, &run.mesh);
    return run;
}

/* What a rank counts in a word: all ranks that share rows count the same. */
static int64_t counted(const session *run, int word)
{
    return 1000 * (word + 1) + 7 * run->mesh.place.consumer;
}

static step_report report_of(const session *run)
{
    int64_t words[WORDS];
    step_report report;
    for (int i = 0; i < WORDS; i++)
        words[i] = is_summed(i) ? counted(run, i) : 0;
    memcpy(&report, words, sizeof report);
    return report;
}

/* Adds up what all ranks bring, as the collectives do. */
static step_totals sum_over_ranks(void)
{
    step_totals sum = {0};
    for (int rank = 0; rank < degrees.world; rank++) {
        const session run = session_of(rank);
        const step_report report = report_of(&run);
        step_totals own;
        step_totals_of(&run, &report, 10 + rank, &own);
        for (size_t i = 0; i < STEP_TOTALS; i++)
            sum.count[i] += own.count[i];
        sum.dearest = own.dearest > sum.dearest ? own.dearest : sum.dearest;
        sum.waited = own.waited > sum.waited ? own.waited : sum.waited;
    }
    return sum;
}

static void test_step_totals__count_each_row_once(void **state)
{
    (void)state;
    const session run = session_of(5);
    const step_totals sum = sum_over_ranks();
    step_report report = report_of(&run);
    int64_t words[WORDS];
    int summed = 0;
    step_totals_into(&run, &sum, &report);
    memcpy(words, &report, sizeof words);
    for (int i = 0; i < WORDS; i++) {
        int64_t want = 0;
        if (!is_summed(i))
            continue;
        summed++;
        /* Each of the ranks that share rows has counted its part of the targets. */
        const bool parts = (size_t)i * sizeof(int64_t) == offsetof(step_report, targets);
        for (int rank = 0; rank < degrees.world; rank++) {
            const session other = session_of(rank);
            const mesh_place *at = &other.mesh.place;
            if (at->pipeline == 0 && (parts || (at->context == 0 && at->tensor == 0)))
                want += counted(&other, i);
        }
        if (words[i] != want)
            fail_msg("the number at byte %zu of step_report is %lld after the sum, not %lld: it "
                     "belongs in the list of step_rows.c, or in that of what is not summed here",
                     (size_t)i * sizeof(int64_t), (long long)words[i], (long long)want);
    }
    assert_int_equal(summed, STEP_TOTALS - 1);
    assert_true(report.wait_ns == 10 + degrees.world - 1);
    /* The slowest consumer against the mean. */
    const double mean = (double)report.cost / 4;
    assert_true(fabs(report.balance - sum.dearest / mean) < 1e-12 && report.balance > 1);
    assert_false(report.stop);
}

static void test_step_totals__one_rank_stops_all(void **state)
{
    (void)state;
    const session run = session_of(0), other = session_of(degrees.world - 1);
    step_report asked = {.stop = true}, report = {0};
    step_totals sum = sum_over_ranks(), own;
    step_totals_of(&other, &asked, 0, &own);
    for (size_t i = 0; i < STEP_TOTALS; i++)
        sum.count[i] += own.count[i];
    step_totals_into(&run, &sum, &report);
    assert_true(report.stop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_step_totals__count_each_row_once),
        cmocka_unit_test(test_step_totals__one_rank_stops_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
