/* SPDX-License-Identifier: Apache-2.0 */
/* test_choices.c: what options and a device's abilities make of the choices, and the line that
 * ledger and checkpoint keep of them. */
#include "tests/harness.h"

#include <string.h>

#include "common/conf/conf.h"
#include "trainer/device/choices.h"

static void test_choices__auto_falls_back_and_a_name_does_not(void **state)
{
    (void)state;
    const struct {
        int attention, experts;
        choice_facts facts;
        int way, last, experts_way, experts_last;
    } cases[] = {
        {ATTENTION_AUTO, EXPERTS_AUTO, {true, true}, 0, 2, 0, 1},
        {ATTENTION_AUTO, EXPERTS_AUTO, {false, false}, 2, 2, 1, 1},
        {ATTENTION_CUDNN, EXPERTS_HOPPER, {true, true}, 0, 1, 0, 0},
        {ATTENTION_PORTABLE, EXPERTS_PORTABLE, {true, true}, 2, 2, 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        device_choices made;
        choices_make(cases[i].attention, cases[i].experts, cases[i].facts, &made);
        assert_true(made.open && !made.strict);
        for (int choice = CHOICE_TEXT_FORWARD; choice <= CHOICE_VISION_BACKWARD; choice++) {
            assert_int_equal(made.way[choice], cases[i].way);
            assert_int_equal(made.last[choice], cases[i].last);
        }
        assert_int_equal(made.way[CHOICE_EXPERTS], cases[i].experts_way);
        assert_int_equal(made.last[CHOICE_EXPERTS], cases[i].experts_last);
        assert_int_equal(made.last[CHOICE_GRAPHS], GRAPHS_NONE);
    }
}

/* Ranks agree on what stands in their choices,
 * so a GPU that cuDNN is not used on must not have it. */
static void test_choices__an_older_gpu_has_no_cudnn(void **state)
{
    (void)state;
    assert_ok(choices_check_cudnn(90));
    assert_ok(choices_check_cudnn(100));
    assert_fails(ST_UNAVAILABLE, choices_check_cudnn(89), "and the GPU has 8.9");
}

static void test_choices__attention_by_kind_and_direction(void **state)
{
    (void)state;
    assert_int_equal(choice_attention(true, false), CHOICE_TEXT_FORWARD);
    assert_int_equal(choice_attention(true, true), CHOICE_TEXT_BACKWARD);
    assert_int_equal(choice_attention(false, false), CHOICE_VISION_FORWARD);
    assert_int_equal(choice_attention(false, true), CHOICE_VISION_BACKWARD);
}

static void note_change(void *user, const char *key, const char *was, const char *now)
{
    char *all = user;
    snprintf(all + strlen(all), 256 - strlen(all), "%s:%s:%s;", key, was, now);
}

static void test_choices__a_line_of_words_and_its_changes(void **state)
{
    (void)state;
    device_choices made;
    char was[CHOICES_TEXT], now[CHOICES_TEXT], all[256] = "";
    choices_make(ATTENTION_AUTO, EXPERTS_AUTO, (choice_facts){true, true}, &made);
    choices_text(&made, "attn, router", true, was);
    assert_string_equal(was, "text_forward=cudnn text_backward=cudnn vision_forward=cudnn "
                             "vision_backward=cudnn experts=hopper graphs=attn,router "
                             "deterministic=true");
    made.way[CHOICE_TEXT_BACKWARD] = ATTENTION_BY_NEXT_ENGINE;
    made.way[CHOICE_GRAPHS] = GRAPHS_NONE;
    choices_text(&made, "attn, router", false, now);
    choices_changes(was, now, note_change, all);
    assert_string_equal(all, "text_backward:cudnn:cudnn_next;graphs:attn,router:off;"
                             "deterministic:true:false;");
    all[0] = 0;
    made.way[CHOICE_VISION_FORWARD] = ATTENTION_BY_OURS; /* then all calls are theirs */
    made.also_ours = 1 << CHOICE_TEXT_FORWARD | 1 << CHOICE_VISION_FORWARD;
    choices_text(&made, "attn, router", false, was);
    /* Checkpoints from before that was said have "cudnn" for the same kernels. */
    choices_changes(now, was, note_change, all);
    assert_string_equal(all, "vision_forward:cudnn:portable;");
    all[0] = 0;
    choices_changes(was, now, note_change, all);
    assert_string_equal(all, "text_forward:cudnn+portable:cudnn;"
                             "vision_forward:portable:cudnn;");
    all[0] = 0;
    choices_changes("graphs=a experts=hopper text_backward=cudnn",
                    "graphs=a,b experts=hopper+other text_backward=cudnn_next+portable",
                    note_change, all);
    assert_string_equal(all, "graphs:a:a,b;experts:hopper:hopper+other;"
                             "text_backward:cudnn:cudnn_next+portable;");
    choices_text(&made, "attn, router", true, was);
    all[0] = 0;
    choices_changes(now, now, note_change, all);
    choices_changes("", now, note_change, all); /* a checkpoint that says nothing */
    choices_changes(was, "", note_change, all);
    assert_string_equal(all, "");
    choices_text(&(device_choices){0}, "step", true, now); /* a CPU */
    assert_string_equal(now, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choices__auto_falls_back_and_a_name_does_not),
        cmocka_unit_test(test_choices__an_older_gpu_has_no_cudnn),
        cmocka_unit_test(test_choices__attention_by_kind_and_direction),
        cmocka_unit_test(test_choices__a_line_of_words_and_its_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
