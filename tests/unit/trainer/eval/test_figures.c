/* test_figures.c: what an evaluation says about itself: the chance level, what each figure is taken
 * over, and paths without the folders of this machine. */
#include "tests/harness.h"

#include <math.h>
#include <string.h>

#include "trainer/eval/chance.h"
#include "trainer/eval/figures.h"

/* A row of n documents of four tokens: a picture, the question, and two targets of the answer. */
static row row_of(arena *memory, const int32_t (*asked)[2], int n, bool with_pictures)
{
    row r = {.n_tokens = 4 * n, .n_docs = n};
    assert_ok(row_alloc(&r, memory, 0));
    for (int i = 0; i < n; i++) {
        const int32_t ids[4] = {with_pictures ? 900 + i : 900, asked[i][0], asked[i][1], 7};
        memcpy(r.input_ids + 4 * i, ids, sizeof ids);
        memcpy(r.labels + 4 * i + 2, ids + 2, 2 * sizeof *ids);
        r.visual_row[4 * i] = with_pictures ? i : -1;
        r.cu_seqlens[i + 1] = 4 * (i + 1);
    }
    return r;
}

static double chance_of(const int32_t (*asked)[2], int n, bool with_pictures)
{
    arena memory;
    arena_init(&memory, 0);
    chance all = {0};
    reply replies[16];
    const row r = row_of(&memory, asked, n, with_pictures);
    assert_int_equal(replies_of_row(&r, replies), n);
    assert_ok(chance_add(&all, &r, replies, n));
    const double percent = chance_percent(&all);
    chance_done(&all);
    arena_done(&memory);
    return percent;
}

static void test_chance__is_how_often_the_same_question_has_the_same_answer(void **state)
{
    (void)state;
    /* question 1: of the 6 pairs of its 4 answers 2 agree; question 2: its 2 answers agree */
    const int32_t asked[6][2] = {{1, 10}, {2, 30}, {1, 20}, {1, 10}, {2, 30}, {1, 20}};
    const double want = 100 * (4 * 2.0 / 6 + 2 * 1.0) / 6;
    assert_true(fabs(chance_of(asked, 6, true) - want) < 1e-9);
    assert_true(isnan(chance_of(asked, 6, false))); /* nothing to exchange */
    assert_true(isnan(chance_of(asked, 0, true)));
    const int32_t unlike[4][2] = {{1, 10}, {2, 10}, {3, 10}, {3, 10}};
    assert_true(isnan(chance_of(unlike, 4, true))); /* most questions occur once */
}

static void test_replies__are_runs_of_targets(void **state)
{
    (void)state;
    arena memory;
    arena_init(&memory, 0);
    row r = {.n_tokens = 10, .n_docs = 3};
    reply got[4];
    assert_ok(row_alloc(&r, &memory, 0));
    const int32_t borders[4] = {0, 6, 8, 10};
    memcpy(r.cu_seqlens, borders, sizeof borders);
    for (int t = 0; t < 10; t++) /* a conversation of two turns; none; a reply to its end */
        r.labels[t] = t == 1 || t == 2 || t == 5 || t == 9 ? t : NO_LABEL;
    assert_int_equal(replies_of_row(&r, NULL), 3);
    assert_int_equal(replies_of_row(&r, got), 3);
    const reply want[3] = {{0, 1, 3}, {0, 5, 6}, {2, 9, 10}};
    assert_memory_equal(got, want, sizeof want);
    arena_done(&memory);
}

static const html_fact *fact_named(const html_fact *facts, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(facts[i].name, name) == 0)
            return &facts[i];
    fail_msg("no fact is named %s", name);
    return facts;
}

static void test_facts__say_what_they_are_taken_over(void **state)
{
    (void)state;
    html_fact facts[EVALUATION_FACTS];
    evaluation e = {.loss = 0.25, .answers = 8, .right = 6, .documents = 8, .chance_percent = NAN};
    int n = evaluation_facts(&e, facts);
    assert_int_equal(n, 2); /* nothing that is not known */
    assert_string_equal(fact_named(facts, n, "held-out accuracy")->value, "75.0 %");
    assert_non_null(strstr(fact_named(facts, n, "held-out accuracy")->note, "of 8 answers"));
    e.documents = 4;
    e.documents_right = 2;
    e.swapped = 5;
    e.swapped_right = 1;
    e.own_right = 4;
    e.chance_percent = 25;
    e.vqa.all = (vqa_share){.sum = 3, .count = 4};
    n = evaluation_facts(&e, facts);
    assert_int_equal(n, EVALUATION_FACTS);
    assert_non_null(strstr(fact_named(facts, n, "whole documents")->note, "of 4 documents"));
    const html_fact *swapped = fact_named(facts, n, "images swapped");
    assert_string_equal(swapped->value, "20.0 %");
    assert_non_null(strstr(swapped->note, "of 5 answers"));
    assert_non_null(strstr(swapped->note, "own pictures: 80.0 %"));
    assert_string_equal(fact_named(facts, n, "chance")->value, "25.0 %");
    const html_fact *generated = fact_named(facts, n, "generated answers");
    assert_non_null(strstr(generated->note, "4 questions"));
    for (int i = 0; i < n; i++)
        assert_null(strstr(facts[i].note, "VQAv2")); /* the data may be anything */
}

static void test_path_shown__has_no_folder_of_this_machine(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"/mine/data/model", "/mine/data", "model"},
        {"/mine/data/run/checkpoint/", "/mine/data", "run/checkpoint"},
        {"/mine/database/model", "/mine/data", "model"},
        {"/other/models/Qwen3/", "/mine/data", "Qwen3"},
        {"Qwen/Qwen3-VL-30B-A3B-Instruct", "/data", "Qwen/Qwen3-VL-30B-A3B-Instruct"},
        {"/data", "/data", "data"},
        {"", "/data", ""},
    };
    char shown[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        path_shown(cases[i][0], cases[i][1], shown, sizeof shown);
        assert_string_equal(shown, cases[i][2]);
    }
    conf c = {
        .data_path = "/mine/data", .data_split = "train", .eval_split = "val", .eval_path = ""};
    html_fact fact;
    data_fact(&c, true, &fact);
    assert_string_equal(fact.value, "data");
    assert_string_equal(fact.note, "split val");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chance__is_how_often_the_same_question_has_the_same_answer),
        cmocka_unit_test(test_replies__are_runs_of_targets),
        cmocka_unit_test(test_facts__say_what_they_are_taken_over),
        cmocka_unit_test(test_path_shown__has_no_folder_of_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
