/* test_vqa_score.c: the official VQAv2 accuracy, on cases worked out by hand from the published
 * rules. Letters: m of ten annotators agree. */
#include "tests/harness.h"

#include <math.h>
#include <string.h>

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
        char got[VQA_ANSWER_MAX];
        vqa_normalise(cases[i].from, got);
        if (strcmp(got, cases[i].to) != 0)
            fail_msg("\"%s\" became \"%s\", not \"%s\"", cases[i].from, got, cases[i].to);
    }
}

/* The accuracy of an answer when `red` of the ten annotators say "red" and the others "dark
 * red". */
static double accuracy_of(int red, const char *answer)
{
    const char *references[10];
    for (int i = 0; i < 10; i++)
        references[i] = i < red ? "red" : "dark red";
    return vqa_accuracy(answer, references, 10);
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
    /* All annotators agree, so nothing is normalised; only case and surrounding spaces are
     * ignored. */
    const char *same[10] = {"2", "2", "2", "2", "2", "2", "2", "2", "2", "2"};
    assert_true(vqa_accuracy("2", same, 10) == 1.0);
    assert_true(vqa_accuracy(" 2\n", same, 10) == 1.0);
    assert_true(vqa_accuracy("two", same, 10) == 0.0);
    const char *cased[2] = {"Yes", "Yes"};
    assert_true(vqa_accuracy("yes", cased, 2) > 0.0);
    /* One annotator differs, so answers are normalised and "two" becomes "2". */
    same[9] = "3";
    assert_true(vqa_accuracy("two", same, 10) == 1.0);
    assert_true(fabs(vqa_accuracy("three", same, 10) - 0.3) < 1e-12);
    assert_true(vqa_accuracy("x", same, 0) == 0.0);
}

static void test_vqa__long_answers_are_bounded(void **state)
{
    (void)state;
    char text[5000], got[VQA_ANSWER_MAX];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    vqa_normalise(text, got);
    assert_true(strlen(got) < VQA_ANSWER_MAX);
    for (size_t i = 0; i + 1 < sizeof text; i += 5)
        memcpy(text + i, "cant ", 5);
    vqa_normalise(text, got); /* every word becomes longer */
    assert_true(strlen(got) < VQA_ANSWER_MAX && strncmp(got, "can't can't ", 12) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vqa__normalised),
        cmocka_unit_test(test_vqa__ten_annotators),
        cmocka_unit_test(test_vqa__long_answers_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
