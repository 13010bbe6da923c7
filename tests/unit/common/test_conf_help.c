/* SPDX-License-Identifier: Apache-2.0 */
/* test_conf_help.c: what is printed about options: a configuration that loads again, help that
 * shows each program its options, the reference, and what was removed. Part of test_conf. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/common/conf_room.h"

/* What print() writes about options; the caller frees it. */
static char *print_text(const conf *options, void (*print)(const conf *, FILE *))
{
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    print(options, file);
    fclose(file);
    return text;
}

static void test_print__loads_again_to_the_same(void **state)
{
    const room *space = *state;
    conf options, again;
    assert_ok(load_text(space, &options,
                        "data:\n  system: \"two\\nlines \\\"q\\\" # \xC3\xA9\"\n  path: a b\n"
                        "  prompt: \"a\\u2028b\\x85\\ufeff\"\n"
                        "optimizer:\n  lr: 0.1\n  eps: 1e-8\ntraining:\n  seed: 7\n"));
    char *first = print_text(&options, conf_print);
    assert_ok(load_text(space, &again, first));
    char *second = print_text(&again, conf_print);
    assert_string_equal(first, second);
    assert_string_equal(again.data_prompt, "a\xE2\x80\xA8"
                                           "b\xC2\x85\xEF\xBB\xBF");
    assert_string_equal(again.data_system, "two\nlines \"q\" # \xC3\xA9");
    free(first);
    free(second);
    conf_done(&options);
    conf_done(&again);
}

static void help_prepd(const conf *options, FILE *to)
{
    (void)options;
    assert_true(conf_help(to, false, "serve", NULL, false) > 0);
}

static void help_train(const conf *options, FILE *to)
{
    static const char *const first[] = {"optimizer.lr", "prepd.endpoint", NULL};
    (void)options;
    assert_true(conf_help(to, true, "train", first, false) > 0);
}

static void help_all(const conf *options, FILE *to)
{
    (void)options;
    assert_int_equal(conf_help(to, true, "train", NULL, true), 0);
}

static void help_status(const conf *options, FILE *to)
{
    (void)options;
    assert_int_equal(conf_help(to, false, "status", NULL, true), 0);
}

static void print_reference(const conf *options, FILE *to)
{
    (void)options;
    conf_reference(to);
}

/* No line is wider than a small terminal. */
static void assert_narrow(const char *text)
{
    for (const char *at = text; *at; at += at[strcspn(at, "\n")] ? strcspn(at, "\n") + 1 : 0) {
        if (strcspn(at, "\n") > 80)
            fail_msg("wider than 80 columns: %.120s", at);
        if (!at[strcspn(at, "\n")])
            break;
    }
}

static void test_help__shows_a_verb_what_it_reads(void **state)
{
    (void)state;
    char *prepd = print_text(NULL, help_prepd), *trainer = print_text(NULL, help_train);
    char *reference = print_text(NULL, print_reference), *asking = print_text(NULL, help_status);
    assert_non_null(strstr(prepd, "\n  --prepd.workers N\n"));
    assert_null(strstr(prepd, "--optimizer.lr"));
    assert_null(strstr(prepd, "--metrics.log_freq"));
    assert_null(strstr(prepd, "Most used"));
    assert_non_null(strstr(trainer, "\n  --training.seq_len N\n"));
    assert_null(strstr(trainer, "--prepd.workers"));
    assert_non_null(strstr(asking, "\nprepd: the data daemon\n  --prepd.endpoint URL\n"));
    assert_non_null(strstr(asking, "\n  --log.json [true|false]\n"));
    assert_null(strstr(asking, "--data."));
    assert_null(strstr(asking, "\njob:"));
    assert_non_null(strstr(reference, "| `training.seq_len` | integer, 16 to 1048576 tokens | "
                                      "`2048` | both | yes |  | Tokens that one row holds. |"));
    assert_non_null(strstr(reference, "| `compile.enable` | `cuda_graph.scope` |"));
    assert_narrow(prepd);
    assert_narrow(trainer);
    free(prepd);
    free(trainer);
    free(asking);
    free(reference);
}

static void test_help__the_most_used_come_first_and_once(void **state)
{
    (void)state;
    char *trainer = print_text(NULL, help_train);
    const char *at = trainer;
    int times = 0;
    assert_non_null(strstr(trainer, "\nMost used\n  --optimizer.lr X\n"));
    while ((at = strstr(at, "\n  --optimizer.lr "))) {
        times++;
        at++;
    }
    assert_int_equal(times, 1);
    assert_true(strstr(trainer, "--prepd.endpoint URL") < strstr(trainer, "\njob: "));
    free(trainer);
}

static void test_help__shows_expert_options_only_on_request(void **state)
{
    (void)state;
    char *plain = print_text(NULL, help_train), *all = print_text(NULL, help_all);
    char *reference = print_text(NULL, print_reference);
    assert_null(strstr(plain, "--comm.init_timeout_seconds"));
    assert_null(strstr(plain, "(expert)"));
    assert_non_null(strstr(all, "\n  --comm.init_timeout_seconds X   (expert)\n"));
    assert_non_null(strstr(all, "\n  --training.seq_len N\n"));
    assert_non_null(strstr(
        reference, "| `comm.init_timeout_seconds` | number, 0.1 to 86400 s | `300` | trainer "
                   "|  | expert | "));
    assert_narrow(all);
    free(plain);
    free(all);
    free(reference);
}

static void test_removed__options_accept_only_their_old_value(void **state)
{
    const room *space = *state;
    conf options;
    assert_ok(load_text(space, &options, "optimizer:\n  name: AdamW\n"));
    conf_done(&options);
    assert_ok(load_args(space, &options, "parallelism:\n  pipeline_parallel_schedule: 1F1B\n",
                        "--optimizer.name", "adamw",
                        "--parallelism.pipeline_parallel_schedule=1f1b", NULL));
    char *text = print_text(&options, conf_print);
    assert_null(strstr(text, "optimizer.name"));
    assert_null(strstr(text, "pipeline_parallel_schedule"));
    free(text);
    conf_done(&options);
    refuse_conf(space, "optimizer:\n  name: lion\n",
                "optimizer.name: \"lion\" is refused, because this option no longer exists: AdamW "
                "is the only "
                "optimiser; leave it out");
    refuse_conf(
        space, "parallelism.pipeline_parallel_schedule: GPipe\n",
        "parallelism.pipeline_parallel_schedule: \"GPipe\" is refused, because this option no "
        "longer exists: 1F1B is the only schedule; leave it out");
    assert_fails(ST_USAGE, load_args(space, &options, "", "--optimizer.name", "sgd", NULL, NULL),
                 "this option no longer exists: AdamW is the only optimiser; leave it out");
    char *reference = print_text(NULL, print_reference);
    assert_non_null(
        strstr(reference, "| `optimizer.name` | `adamw` | AdamW is the only optimiser |"));
    free(reference);
}

int run_conf_help_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_print__loads_again_to_the_same),
        cmocka_unit_test(test_help__shows_a_verb_what_it_reads),
        cmocka_unit_test(test_help__the_most_used_come_first_and_once),
        cmocka_unit_test(test_help__shows_expert_options_only_on_request),
        cmocka_unit_test(test_removed__options_accept_only_their_old_value),
    };
    return cmocka_run_group_tests_name("conf help", tests, enter_room, leave_room);
}
