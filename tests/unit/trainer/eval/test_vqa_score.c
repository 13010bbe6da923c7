/* SPDX-License-Identifier: Apache-2.0 */
/* test_vqa_score.c: the official VQAv2 accuracy, on cases worked out by hand from the published
 * rules, and on those of tests/golden/vqa.json, which make_vqa.py there wrote with the official
 * code. Letters: m of ten annotators agree. */
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "trainer/eval/vqa_score.h"

static void test_vqa__normalised(void **state)
{
    (void)state;
    const struct {
        const char *from, *to;
    } cases[] = {
        {"Yes", "yes"},
        {"  the Red\tcar\n", "red car"},
        {"a", ""},
        {"two", "2"},
        {"ten dogs", "10 dogs"},
        {"None", "0"},
        {"eleven", "eleven"},
        {"dont", "don't"},
        {"don't", "don't"},
        {"youdve", "youdve"}, /* it lacks two apostrophes */
        {"youd've", "you'd've"},
        {"Its", "its"},
        {"somebody'd", "somebodyd"},
        {"black-and-white", "black and white"},
        /* The hyphen stands beside a space once, so it is removed everywhere. */
        {"black - and white", "black and white"},
        {"t-shirt - blue", "tshirt blue"},
        {"1,000", "1000"},
        {"1,000 / 2", "1000 2"},
        {"a,b", "b"}, /* the comma becomes a space, then the article is removed */
        {"2.5", "2.5"},
        {"3.", "3"},
        {"U.S.A.", "usa"},
        {"yes!", "yes"},
        {"yes! ", "yes"},
        {"what's that?", "what's that"},
        {"$5", "$5"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *got;
        size_t size;
        assert_ok(
            vqa_compared_form(span_of(cases[i].from, strlen(cases[i].from)), true, &got, &size));
        if (strcmp(got, cases[i].to) != 0)
            fail_msg("\"%s\" became \"%s\", not \"%s\"", cases[i].from, got, cases[i].to);
        free(got);
    }
}

static double accuracy(const char *answer, const char *const *references, size_t count)
{
    span list[10];
    double out;
    for (size_t i = 0; i < count; i++)
        list[i] = span_of(references[i], strlen(references[i]));
    assert_ok(vqa_accuracy(span_of(answer, strlen(answer)), list, count, &out));
    return out;
}

/* The accuracy of an answer when `red` of the ten annotators say "red" and the others "dark
 * red". */
static double accuracy_of(int red, const char *answer)
{
    const char *references[10];
    for (int i = 0; i < 10; i++)
        references[i] = i < red ? "red" : "dark red";
    return accuracy(answer, references, 10);
}

static void test_vqa__ten_annotators(void **state)
{
    (void)state;
    /* If m of ten annotators agree, leaving each out in turn leaves m - 1 that agree (m times) or m
     * (10 - m times); each turn gives min(1, agreeing / 3). */
    const double want[] = {0.0, 0.3, 0.6, 0.9, 1.0, 1.0};
    for (int m = 0; m <= 5; m++) {
        assert_true(fabs(accuracy_of(m, "Red.") - want[m]) < 1e-12);
        assert_true(fabs(accuracy_of(10 - m, "the dark  red") - want[m]) < 1e-12);
    }
    /* All annotators agree, so nothing is normalised; only surrounding spaces are ignored. */
    const char *same[10] = {"2", "2", "2", "2", "2", "2", "2", "2", "2", "2"};
    assert_true(accuracy("2", same, 10) == 1.0);
    assert_true(accuracy(" 2\n", same, 10) == 1.0);
    assert_true(accuracy("two", same, 10) == 0.0);
    const char *cased[2] = {"Yes", "Yes"};
    assert_true(accuracy("yes", cased, 2) == 0.0);
    assert_true(accuracy("Yes", cased, 2) > 0.0);
    /* One annotator differs, so answers are normalised and "two" becomes "2". */
    same[9] = "3";
    assert_true(accuracy("two", same, 10) == 1.0);
    assert_true(fabs(accuracy("three", same, 10) - 0.3) < 1e-12);
    assert_true(accuracy("x", same, 0) == 0.0);
}

static span text_of(const json_value *value)
{
    return span_of(json_text(value, NULL), json_text_size(value));
}

/* Letters of all scripts, white space, NUL characters and long answers. */
static void test_vqa__agrees_with_the_official_code(void **state)
{
    (void)state;
    json_value *kept;
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/golden/vqa.json", getenv("TESSERA_SOURCE"));
    assert_ok(json_load(path, &kept));
    const json_value *words = json_find(kept, "normalised"), *scores = json_find(kept, "scored");
    assert_true(json_count(words) >= 50 && json_count(scores) >= 10);
    for (size_t i = 0; i < json_count(words); i++) {
        const span from = text_of(json_item(json_item(words, i), 0));
        const span to = text_of(json_item(json_item(words, i), 1));
        char *got;
        size_t size;
        assert_ok(vqa_compared_form(from, true, &got, &size));
        if (size != to.size || memcmp(got, to.data, size) != 0)
            fail_msg("case %zu, \"%s\", became \"%s\", not \"%s\"", i, (const char *)from.data, got,
                     (const char *)to.data);
        free(got);
    }
    for (size_t i = 0; i < json_count(scores); i++) {
        const json_value *one = json_item(scores, i), *given = json_find(one, "references");
        span references[10];
        double got;
        for (size_t k = 0; k < json_count(given); k++)
            references[k] = text_of(json_item(given, k));
        assert_ok(
            vqa_accuracy(text_of(json_find(one, "answer")), references, json_count(given), &got));
        if (fabs(got - json_real(json_find(one, "accuracy"), -1)) > 1e-12)
            fail_msg("case %zu: %g", i, got);
    }
    json_free(&kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vqa__normalised),
        cmocka_unit_test(test_vqa__ten_annotators),
        cmocka_unit_test(test_vqa__agrees_with_the_official_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
