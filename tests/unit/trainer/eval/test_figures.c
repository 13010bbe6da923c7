/* SPDX-License-Identifier: Apache-2.0 */
/* test_figures.c: what an evaluation says about itself: the chance level, what each figure is taken
 * over, and paths without the folders of this machine. */
#include "tests/harness.h"

#include <math.h>
#include <string.h>

#include "trainer/eval/image_swap.h"
#include "trainer/eval/html_page.h"

/* A row of count documents of four tokens: a picture, the question,
 * and two targets of the answer. */
static row row_of(arena *memory, const int32_t (*asked)[2], int count, bool with_pictures)
{
    row packed = {.n_tokens = 4 * count, .n_docs = count};
    assert_ok(row_alloc(&packed, memory, 0));
    for (int i = 0; i < count; i++) {
        const int32_t ids[4] = {with_pictures ? 900 + i : 900, asked[i][0], asked[i][1], 7};
        memcpy(packed.input_ids + 4 * i, ids, sizeof ids);
        memcpy(packed.labels + 4 * i + 2, ids + 2, 2 * sizeof *ids);
        packed.visual_row[4 * i] = with_pictures ? i : -1;
        packed.cu_seqlens[i + 1] = 4 * (i + 1);
    }
    return packed;
}

static double chance_of(const int32_t (*asked)[2], int count, bool with_pictures)
{
    arena memory;
    arena_init(&memory, 0);
    chance all = {0};
    reply replies[16];
    const row packed = row_of(&memory, asked, count, with_pictures);
    assert_int_equal(replies_of_row(&packed, replies), count);
    assert_ok(chance_add(&all, &packed, replies, count));
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
    row packed = {.n_tokens = 10, .n_docs = 3};
    reply got[4];
    assert_ok(row_alloc(&packed, &memory, 0));
    const int32_t borders[4] = {0, 6, 8, 10};
    memcpy(packed.cu_seqlens, borders, sizeof borders);
    for (int token = 0; token < 10;
         token++) /* a conversation of two turns; none; a reply to its end */
        packed.labels[token] =
            token == 1 || token == 2 || token == 5 || token == 9 ? token : NO_LABEL;
    assert_int_equal(replies_of_row(&packed, NULL), 3);
    assert_int_equal(replies_of_row(&packed, got), 3);
    const reply want[3] = {{0, 1, 3}, {0, 5, 6}, {2, 9, 10}};
    assert_memory_equal(got, want, sizeof want);
    arena_done(&memory);
}

static const html_fact *fact_named(const html_fact *facts, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(facts[i].name, name) == 0)
            return &facts[i];
    fail_msg("no fact is named %s", name);
    return facts;
}

static void test_facts__say_what_they_are_taken_over(void **state)
{
    (void)state;
    html_fact facts[EVALUATION_FACTS];
    evaluation result = {
        .loss = 0.25, .answers = 8, .right = 6, .documents = 8, .chance_percent = NAN};
    int count = evaluation_facts(&result, facts);
    assert_int_equal(count, 2); /* nothing that is not known */
    assert_string_equal(fact_named(facts, count, "held-out accuracy")->value, "75.0 %");
    assert_non_null(strstr(fact_named(facts, count, "held-out accuracy")->note, "of 8 answers"));
    result.documents = 4;
    result.documents_right = 2;
    result.swapped = 5;
    result.swapped_right = 1;
    result.own_right = 4;
    result.chance_percent = 25;
    result.vqa.all = (vqa_share){.sum = 3, .count = 4};
    count = evaluation_facts(&result, facts);
    assert_int_equal(count, EVALUATION_FACTS);
    assert_non_null(strstr(fact_named(facts, count, "whole documents")->note, "of 4 documents"));
    const html_fact *swapped = fact_named(facts, count, "images swapped");
    assert_string_equal(swapped->value, "20.0 %");
    assert_non_null(strstr(swapped->note, "of 5 answers"));
    assert_non_null(strstr(swapped->note, "own pictures: 80.0 %"));
    assert_string_equal(fact_named(facts, count, "chance")->value, "25.0 %");
    const html_fact *generated = fact_named(facts, count, "generated answers");
    assert_non_null(strstr(generated->note, "4 questions"));
    for (int i = 0; i < count; i++)
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
    conf options = {
        .data_path = "/mine/data", .data_split = "train", .eval_split = "val", .eval_path = ""};
    html_fact fact;
    data_fact(&options, true, &fact);
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
