/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of conf.h: the command line overrides the file and the file the defaults, each wrong line
 * is refused with its place, and paths are relative to the file or to the current folder. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/conf/conf_table.h"
#include "tests/unit/common/conf_room.h"

static void test_precedence__default_file_command_line(void **state)
{
    const room *space = *state;
    conf options;
    assert_ok(load_args(space, &options,
                        "# a comment\n"
                        "training:\n  seq_len: 512\n  steps: 1e3\n  seed: 1_000_000\n"
                        "optimizer: {lr: 3e-4, name: AdamW}\n"
                        "training.global_batch_size: 16\n"
                        "data:\n  format: vqav2\n  pack: no\n  split: 'train2014'\n"
                        "eval:\n"
                        "cuda_graph:\n  scope: [attn, router]\n",
                        "--training.steps", "7", "--data.group=conversation", "--log.json"));
    assert_int_equal(options.training_seq_len, 512);
    assert_int_equal(options.training_steps, 7);
    assert_int_equal(options.training_seed, 1000000);
    assert_int_equal(options.training_global_batch_size, 16);
    assert_int_equal(options.training_local_batch_size, 1);
    assert_true(options.optimizer_lr == 3e-4);
    assert_false(options.data_pack);
    assert_true(options.log_json);
    assert_int_equal(options.data_group, GROUP_CONVERSATION);
    assert_string_equal(options.data_split, "train2014");
    assert_string_equal(options.cuda_graph_scope, "attn,router");
    assert_memory_equal(options.place, space->file, strlen(space->file));
    assert_string_equal(options.place + strlen(space->file), " and the command line");
    assert_ok(conf_set(&options, "eval.freq", "10"));
    assert_int_equal(options.eval_freq, 10);
    conf_done(&options);
    conf_done(&options);
}

static void test_arguments__the_rest_is_left_for_the_verb(void **state)
{
    (void)state;
    char *argv[] = {
        (char *)"prepd",     (char *)"--index",         (char *)"3",     (char *)"--log.json",
        (char *)"--out=a.b", (char *)"--data.pack",     (char *)"false", (char *)"--eval.enable",
        (char *)"extra",     (char *)"--training.seed", (char *)"5",     NULL};
    int argc = 11;
    conf options;
    assert_ok(conf_load(&options, &argc, argv));
    assert_int_equal(argc, 5);
    assert_string_equal(argv[1], "--index");
    assert_string_equal(argv[2], "3");
    assert_string_equal(argv[3], "--out=a.b");
    assert_string_equal(argv[4], "extra");
    assert_null(argv[5]);
    assert_true(options.log_json && options.eval_enable && !options.data_pack);
    assert_int_equal(options.training_seed, 5);
    conf_done(&options);
}

static void test_arguments__wrong_ones_are_refused(void **state)
{
    (void)state;
    refuse_flag("--training.sed", "1",
                "command line: there is no option \"training.sed\"; did you "
                "mean training.seed?");
    refuse_flag("--training.seed", NULL, "--training.seed needs a value");
    refuse_flag("--training.seed", "--log.json", "--training.seed needs a value");
    refuse_flag("--training.seed=", NULL, "expected a whole number");
    refuse_flag("--training.seed", "-1", "at least 0");
    refuse_flag("--log.json=maybe", NULL, "expected true or false");
    refuse_flag("-c", NULL, "-c needs a file");
    char *argv[] = {(char *)"prepd", (char *)"-c", (char *)"/nowhere/c.yaml", NULL};
    int argc = 3;
    conf options;
    assert_fails(ST_NO_INPUT, conf_load(&options, &argc, argv), "/nowhere/c.yaml");
    argv[1] = (char *)"--config";
    argv[2] = (char *)"/";
    assert_fails(ST_USAGE, conf_load(&options, &argc, argv),
                 "/: is a folder; -c takes a YAML file");
    argv[1] = (char *)"--prepd.endpoint";
    argv[2] = (char *)"nonsense";
    argc = 3;
    assert_fails(ST_USAGE, conf_load(&options, &argc, argv),
                 "command line: prepd.endpoint: \"nonsense");
}

static void test_file__each_wrong_line_is_named(void **state)
{
    const room *space = *state;
    refuse_conf(
        space, "training:\n  seq_length: 5\n",
        "c.yaml:2: there is no option \"training.seq_length\"; did you mean training.seq_len?");
    refuse_conf(space, "\n\nlr: 1\n",
                "c.yaml:3: there is no option \"lr\"; did you mean optimizer.lr?");
    refuse_conf(space, "trainin:\n  seed: 5\n", "did you mean training.seed?");
    refuse_conf(space, "foo:\n  bar: 5\n", "c.yaml:2: there is no option \"foo.bar\"");
    assert_null(strstr(status_text(), "did you mean"));
    refuse_conf(
        space, "\ntraining: 5\n",
        "c.yaml:2: training is a section and takes no value of its own: write its keys below "
        "it, indented (training:, then");
    refuse_conf(space, "training: [steps, seed]\n", "training is a section");
    refuse_conf(space, "training:\n  seed: 5\n  seq_len: 8\n",
                "c.yaml:3: training.seq_len: 8 is out of range; allowed: 16 to 1048576 tokens");
    refuse_conf(space, "training:\n  steps: many\n",
                "whole number (at least 0 steps), found \"many\"");
    refuse_conf(space, "training:\n  steps: 1.5\n", "whole number");
    refuse_conf(space, "training:\n  steps: 0x10\n", "whole number");
    refuse_conf(space, "training:\n  steps: _1\n", "whole number");
    refuse_conf(space, "training:\n  steps: 99999999999999999999\n", "whole number");
    refuse_conf(space, "training:\n  steps: 1e30\n", "whole number");
    refuse_conf(space, "training:\n  steps:\n", "whole number");
    refuse_conf(space, "training:\n  steps: [1, 2]\n", "expected one value, found a list");
    refuse_conf(space, "training:\n  steps: {a: 1}\n", "\"training.steps.a\"");
    refuse_conf(space, "optimizer:\n  lr: .nan\n", "expected a number");
    refuse_conf(space, "optimizer:\n  lr: 11\n", "allowed: 0 to 10");
    refuse_conf(space, "data:\n  pack: perhaps\n",
                "expected true or false (yes, no, on, off, 1, 0), found \"perhaps\"");
    refuse_conf(
        space, "data:\n  format: vqa2\n",
        "\"vqa2\" is not one of: vqav2, conversations, webdataset, text, video, mixture; did "
        "you mean vqav2?");
    refuse_conf(space, "training:\n  seed: 1\n  seed: 2\n",
                "c.yaml:3: the key training.seed appears twice");
    refuse_conf(space, "data:\n  pack: true\ndata:\n  split: a\n",
                "c.yaml:3: the key data appears twice");
    refuse_conf(space, "training.seed: 1\ntraining:\n  seed: 2\n",
                "c.yaml:3: the key training.seed");
    refuse_conf(space, "data:\n  format: text\ntraining:\n  dataset: text\n",
                "c.yaml:4: training.dataset sets data.format, which line 2 already sets");
    refuse_conf(space, "a: [1, 2\n", "c.yaml:2: not YAML");
    refuse_conf(
        space, "training:\n\tseed: 1\n",
        "c.yaml:2: not YAML: there is a tab in the indentation (column 1); YAML is indented "
        "with spaces only");
    refuse_conf(space, "training:\n  seed: 1\n  \tsteps: 2\n",
                "c.yaml:3: not YAML: there is a tab in the indentation (column 3)");
    refuse_conf(space, "training:\n  seed: [1\n", "c.yaml:3: not YAML: while parsing");
    refuse_conf(space, "- 1\n", "expected \"section:\"");
    refuse_conf(space, "a: &x 1\nb: *x\n", "\"a\"");
    refuse_conf(space, "training: *x\n", "aliases are not supported");
    refuse_conf(space, "training:\n  seed: 1\n---\ndata:\n", "a second YAML document");
    refuse_conf(space, "data:\n  split: [[1]]\n", "plain values only");
    refuse_conf(space, "data:\n  split: \"a\\0b\"\n", "NUL");
    refuse_conf(space, "data:\n  split: [\"a\\0b\"]\n",
                "c.yaml:2: data.split: a value contains a NUL");
    refuse_conf(space, "data:\n  split: [\"a,b\", c]\n", "\"a,b\" contains a comma");
    refuse_conf(space, "cuda_graph:\n  scope: [\"\", attn]\n", "\",attn\" is not off");
    refuse_conf(space, "a: \xff\n", "not YAML");
}

/* 40 known keys and 25 unknown ones, as a file of another program has them. */
static void test_file__all_mistakes_are_collected(void **state)
{
    const room *space = *state;
    char text[4096] = "training:\n",
         *argv[] = {(char *)"prepd", (char *)"-c", (char *)space->file, NULL};
    for (int i = 0; i < 25; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "  seq_len%d: %d\n", i, i);
    snprintf(text + strlen(text), sizeof text - strlen(text),
             "  steps: many\n  seed: 1\n  seed: 2\n  global_batch_size: 0\n  epochs: 0\n"
             "validation:\n  freq: 10\noptimizer:\n  name: lion\n");
    write_yaml(space, text);
    conf options;
    mistakes wrong = {0};
    int argc = 3;
    static const conf_need needs[] = {
        {"model.path", "model.tokenizer", "name one"}, {"data.path", NULL, "name the data"}, {0}};
    assert_fails(ST_CONFIG, conf_load_all(&options, &argc, argv, needs, &wrong),
                 "c.yaml:2: there is no option \"training.seq_len0\"; did you mean "
                 "training.seq_len?");
    assert_int_equal(wrong.count, 25 + 7);
    static const char *const rest[] = {
        "c.yaml:27: training.steps: expected a whole number",
        "c.yaml:29: the key training.seed appears twice",
        "c.yaml:30: training.global_batch_size: 0 is out of range",
        "yaml:33: there is no option \"validation.freq\"; did you mean",
        "c.yaml:35: optimizer.name: \"lion\" is refused, because this option no longer exists",
        "c.yaml: model.path is not set: name one",
        "c.yaml: data.path is not set: name the data",
    };
    for (int i = 0; i < 7; i++)
        assert_non_null(strstr(wrong.text[25 + i], rest[i]));
    mistakes_done(&wrong);
    assert_int_equal(wrong.count, 0);
}

static void test_arguments__all_mistakes_are_collected(void **state)
{
    (void)state;
    char *argv[] = {(char *)"trainer",
                    (char *)"--training.sed",
                    (char *)"1",
                    (char *)"--log.json",
                    (char *)"--training.steps=x",
                    (char *)"--data.format",
                    (char *)"vqa3",
                    (char *)"word",
                    NULL};
    int argc = 8;
    conf options;
    mistakes wrong = {0};
    assert_fails(ST_USAGE, conf_load_all(&options, &argc, argv, NULL, &wrong),
                 "did you mean training.seed?");
    assert_int_equal(wrong.count, 3);
    assert_non_null(strstr(wrong.text[1], "command line: training.steps: expected a whole number"));
    assert_non_null(strstr(wrong.text[2], "\"vqa3\" is not one of"));
    mistakes_done(&wrong);
}

static int64_t mistakes_in(const room *space, const char *text, const char *first)
{
    char *argv[] = {(char *)"prepd", (char *)"-c", (char *)space->file, NULL};
    int argc = 3;
    conf options;
    mistakes wrong = {0};
    write_yaml(space, text);
    assert_fails(ST_CONFIG, conf_load_all(&options, &argc, argv, NULL, &wrong), first);
    const int64_t count = wrong.count;
    mistakes_done(&wrong);
    return count;
}

/* A value that is wrong already is no reason to complain about how it goes with others. */
static void test_rules__all_that_are_broken_are_collected(void **state)
{
    const room *space = *state;
    assert_int_equal(mistakes_in(space,
                                 "training:\n  steps: 0\n"
                                 "image:\n  min_pixels: 9\n  max_pixels: 8\n",
                                 "training.steps is 0"),
                     2);
    assert_int_equal(
        mistakes_in(space, "training:\n  steps: 0\n  epoch: 1\n", "did you mean training.epochs?"),
        1);
}

/* Of a file that is something else altogether a part is enough. */
static void test_mistakes__the_list_is_bounded(void **state)
{
    (void)state;
    mistakes wrong = {0};
    for (int i = 0; i < 3 * MISTAKES_KEPT; i++)
        assert_ok(mistakes_add(&wrong, FAIL(ST_CONFIG, "mistake %d", i)));
    assert_int_equal(wrong.count, 3 * MISTAKES_KEPT);
    assert_string_equal(wrong.text[MISTAKES_KEPT - 1], "mistake 49");
    assert_fails(ST_CONFIG, mistakes_first(&wrong), "mistake 0");
    assert_fails(ST_NO_MEMORY, mistakes_add(&wrong, FAIL(ST_NO_MEMORY, "none")), "none");
    assert_int_equal(wrong.count, 3 * MISTAKES_KEPT);
    mistakes_done(&wrong);
}

static int64_t cache_bytes(const room *space, const char *text, const char *flag)
{
    conf options;
    assert_ok(load_args(space, &options, text, flag, NULL, NULL, NULL));
    const int64_t bytes = options.cache_bytes;
    conf_done(&options);
    return bytes;
}

static void test_bytes__may_have_a_unit(void **state)
{
    const room *space = *state;
    assert_int_equal(cache_bytes(space, "cache:\n  bytes: 3MiB\n", NULL), 3 << 20);
    assert_int_equal(cache_bytes(space, "cache:\n  bytes: 8 GiB\n", NULL), INT64_C(8) << 30);
    assert_int_equal(cache_bytes(space, "", "--cache.bytes=1TiB"), INT64_C(1) << 40);
    assert_int_equal(cache_bytes(space, "", "--cache.bytes=4_096kib"), 4096 << 10);
    assert_int_equal(cache_bytes(space, "", "--cache.bytes=1e7"), 10000000);
    const char *const none[] = {"8GB",    "8G",    "GiB",        "1.5GiB",
                                "8  GiB", "8GiBs", "8388608TiB", "8GiBGiB"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        char text[64], words[160];
        snprintf(text, sizeof text, "prepd:\n  ship_bytes: %s\n", none[i]);
        snprintf(words, sizeof words,
                 "prepd.ship_bytes: expected a whole number (at least 1 bytes, or in KiB, MiB, "
                 "GiB, TiB), found \"%s\"",
                 none[i]);
        refuse_conf(space, text, words);
    }
    refuse_conf(space, "cache:\n  bytes: 2TiB\n",
                "cache.bytes: 2199023255552 is out of range; allowed:");
    refuse_conf(space, "cache:\n  bytes: -1MiB\n", "cache.bytes: -1048576 is out of range");
    refuse_conf(space, "training:\n  steps: 1KiB\n",
                "whole number (at least 0 steps), found \"1KiB\"");
}

static void test_rules__between_options(void **state)
{
    const room *space = *state;
    conf options;
    refuse_conf(space, "training:\n  steps: 0\n",
                "training.steps is 0, so training.epochs decides");
    refuse_conf(space, "image:\n  min_pixels: 9\n  max_pixels: 8\n",
                "larger than image.max_pixels");
    refuse_conf(space, "cuda_graph:\n  scope: attn,rooter\n", "is not off, step, or a list");
    refuse_conf(space, "cuda_graph:\n  scope: attn mlp\n",
                "\"attn mlp\" is not off, step, or a list of attn, router, experts, vision");
    refuse_conf(space, "prepd:\n  endpoint: http://x\n",
                "c.yaml:2: prepd.endpoint: \"http://x\" is neither ipc://PATH nor tcp://");
    refuse_conf(space, "prepd:\n  endpoint: tcp://127.0.0.1:99999\n", "port");
    refuse_conf(space, "prepd:\n  endpoint: \"ipc://\"\n", "neither ipc://PATH nor tcp://");
    refuse_conf(space, "parallelism:\n  expert_tensor_parallel_degree: 2\n", "must be 1 or equal");
    assert_ok(load_text(space, &options, "training:\n  steps: 0\n  epochs: 1.5\n"));
    conf_done(&options);
    assert_ok(load_text(space, &options, "prepd:\n  endpoint: tcp://127.0.0.1:5555\n"));
    conf_done(&options);
    assert_ok(load_text(space, &options, ""));
    conf_done(&options);
}

static void test_aliases__torchtitan_spellings(void **state)
{
    const room *space = *state;
    conf options;
    assert_ok(load_args(space, &options,
                        "training:\n  dataset: text\n  batch_size: 3\n"
                        "model:\n  hf_assets_path: /m\n"
                        "compile:\n  enable: false\n",
                        "--debug.seed", "9", NULL, NULL));
    assert_int_equal(options.data_format, DATA_TEXT);
    assert_int_equal(options.training_local_batch_size, 3);
    assert_int_equal(options.training_seed, 9);
    assert_string_equal(options.model_path, "/m");
    assert_string_equal(options.cuda_graph_scope, "off");
    assert_ok(conf_set(&options, "compile.enable", "true"));
    assert_string_equal(options.cuda_graph_scope, "step");
    conf_done(&options);
}

static void test_paths__are_relative_to_the_file_or_the_current_folder(void **state)
{
    const room *space = *state;
    conf options;
    char want[5000], here[4096];
    assert_non_null(getcwd(here, sizeof here));
    assert_ok(load_args(space, &options, "data:\n  path: ./d/x\nmodel:\n  path: qwen3-vl-30b-a3b\n",
                        "--eval.path", "e", "--feed.replay=/abs", NULL));
    snprintf(want, sizeof want, "%s/d/x", space->folder);
    assert_string_equal(options.data_path, want);
    snprintf(want, sizeof want, "%s/e", here);
    assert_string_equal(options.eval_path, want);
    assert_string_equal(options.feed_replay, "/abs");
    assert_string_equal(options.model_path, "qwen3-vl-30b-a3b");
    assert_string_equal(options.model_tokenizer, "");
    snprintf(want, sizeof want, "ipc://%s/prepd.sock", space->folder);
    assert_string_equal(options.prepd_endpoint, want);
    snprintf(want, sizeof want, "%s/outputs", here);
    assert_string_equal(options.job_dump_folder, want);
    conf_done(&options);
    /* A leading .. is taken away, since the folder has no links in it; a later one stays. */
    assert_ok(load_args(space, &options,
                        "data:\n  path: .././../x/../y\nmodel:\n  tokenizer: .\njob:\n"
                        "  dump_folder: ../..a\nprepd:\n  endpoint: ipc://../s\n",
                        "--eval.path", "../../../../../../../../../../../../e", NULL, NULL));
    char above[4096];
    snprintf(above, sizeof above, "%s", space->folder);
    *strrchr(above, '/') = 0;
    snprintf(want, sizeof want, "%s/..a", above);
    assert_string_equal(options.job_dump_folder, want);
    snprintf(want, sizeof want, "ipc://%s/s", above);
    assert_string_equal(options.prepd_endpoint, want);
    assert_string_equal(options.model_tokenizer, space->folder);
    assert_string_equal(options.eval_path, "/e");
    if (strrchr(above, '/'))
        *strrchr(above, '/') = 0;
    snprintf(want, sizeof want, "%s/x/../y", above);
    assert_string_equal(options.data_path, want);
    conf_done(&options);
    snprintf(want, sizeof want, "%s/debug", space->folder);
    assert_int_equal(mkdir(want, 0755), 0);
    assert_ok(load_args(space, &options, "model:\n  path: debug\n", "--prepd.endpoint", "ipc://s",
                        NULL, NULL));
    /* a folder beside the file is preferred to the preset of that name */
    assert_string_equal(options.model_path, want);
    snprintf(want, sizeof want, "ipc://%s/s", here);
    assert_string_equal(options.prepd_endpoint, want);
    conf_done(&options);
}

/* The one option whose value may grow long says in its help how long it may be. */
static void test_texts__the_longest_value_is_documented(void **state)
{
    const room *space = *state;
    char text[CONF_TEXT_MAX + 1], longest[32];
    conf options;
    assert_ok(load_text(space, &options, ""));
    memset(text, ' ', sizeof text);
    text[CONF_TEXT_MAX - 1] = 0;
    assert_ok(conf_set(&options, "prepd.rank_endpoints", text));
    text[CONF_TEXT_MAX - 1] = ' ';
    text[CONF_TEXT_MAX] = 0;
    assert_fails(ST_USAGE, conf_set(&options, "prepd.rank_endpoints", text),
                 "prepd.rank_endpoints: the value is longer than 4095 bytes");
    snprintf(longest, sizeof longest, "at most %d bytes", CONF_TEXT_MAX - 1);
    assert_non_null(strstr(conf_row_find("prepd.rank_endpoints")->help, longest));
    conf_done(&options);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts__the_longest_value_is_documented),
        cmocka_unit_test(test_precedence__default_file_command_line),
        cmocka_unit_test(test_arguments__the_rest_is_left_for_the_verb),
        cmocka_unit_test(test_arguments__wrong_ones_are_refused),
        cmocka_unit_test(test_file__each_wrong_line_is_named),
        cmocka_unit_test(test_file__all_mistakes_are_collected),
        cmocka_unit_test(test_arguments__all_mistakes_are_collected),
        cmocka_unit_test(test_rules__all_that_are_broken_are_collected),
        cmocka_unit_test(test_mistakes__the_list_is_bounded),
        cmocka_unit_test(test_bytes__may_have_a_unit),
        cmocka_unit_test(test_rules__between_options),
        cmocka_unit_test(test_aliases__torchtitan_spellings),
        cmocka_unit_test(test_paths__are_relative_to_the_file_or_the_current_folder),
    };
    return cmocka_run_group_tests(tests, enter_room, leave_room) + run_conf_help_tests() +
           run_conf_stream_tests();
}
