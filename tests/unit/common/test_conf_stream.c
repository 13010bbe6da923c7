/* SPDX-License-Identifier: Apache-2.0 */
/* test_conf_stream.c: the options that make a stream, compared with those of a daemon, and those
 * that an evaluation replaces. Part of test_conf. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "tests/unit/common/conf_room.h"

static void test_stream__compares_only_what_changes_rows(void **state)
{
    const room *space = *state;
    conf first, second;
    char *old_text, *new_text, *difference = NULL;
    hash128 model = hash_bytes("m", 1), other = hash_bytes("o", 1);
    assert_ok(load_text(space, &first, "training:\n  seed: 1\n"));
    assert_ok(load_text(space, &second,
                        "training:\n  seed: 1\n  steps: 5\nprepd:\n  workers: 7\n"
                        "data:\n  path: elsewhere\n"));
    assert_ok(conf_stream_json(&first, model, &old_text));
    assert_ok(conf_stream_json(&second, model, &new_text));
    assert_string_equal(old_text, new_text);
    assert_ok(conf_stream_diff(old_text, new_text, &difference));
    assert_null(difference);
    free(new_text);
    assert_ok(conf_set(&second, "training.seed", "2"));
    assert_ok(conf_stream_json(&second, model, &new_text));
    assert_ok(conf_stream_diff(old_text, new_text, &difference));
    assert_string_equal(difference, "training.seed: 1 here, 2 there");
    free(difference);
    free(new_text);
    assert_ok(conf_stream_json(&first, other, &new_text));
    assert_ok(conf_stream_diff(old_text, new_text, &difference));
    assert_int_equal(strncmp(difference, "model.path: ", 12), 0);
    free(difference);
    free(new_text);
    /* A key that one side lacks has its default there: the other build did not know the option
     * yet. */
    assert_ok(
        conf_stream_diff("{\"video.prompt\": \"4.57\", \"data.pack\": true, \"video.fps\": 0.0}",
                         "{}", &difference));
    assert_null(difference);
    assert_ok(conf_stream_diff("{\"video.prompt\": \"5.23\"}", "{}", &difference));
    assert_string_equal(difference, "video.prompt: \"5.23\" here, \"4.57\" there");
    free(difference);
    assert_ok(conf_stream_diff("{}", "{\"training.seed\": 1}", &difference));
    assert_string_equal(difference, "training.seed: 0 here, 1 there");
    free(difference);
    assert_ok(conf_stream_diff("{}", "{\"new.key\": true}", &difference));
    assert_string_equal(difference, "new.key: nothing here, true there");
    free(difference);
    /* The same for an option that no longer exists. */
    assert_ok(conf_stream_diff("{}", "{\"data.suffix\": \"\", \"data.overlong\": \"auto\"}",
                               &difference));
    assert_null(difference);
    assert_ok(conf_stream_diff("{\"video.min_frames\": 0}", "{}", &difference));
    assert_null(difference);
    assert_ok(conf_stream_diff("{}", "{\"data.suffix\": \"Be brief.\"}", &difference));
    assert_string_equal(difference, "data.suffix: nothing here, \"Be brief.\" there");
    free(difference);
    assert_fails(ST_PROTOCOL, conf_stream_diff(old_text, "[]", &difference), "object");
    assert_fails(ST_BAD_INPUT, conf_stream_diff(old_text, "{", &difference), "peer");
    free(old_text);
    conf_done(&first);
    conf_done(&second);
}

/* A system prompt can have hundreds of words, and two may differ only at their ends. */
static void test_stream__compares_long_texts_whole(void **state)
{
    char ours[600], theirs[600], *difference = NULL;
    (void)state;
    for (int i = 0; i < 2; i++)
        snprintf(i ? theirs : ours, sizeof ours, "{\"data.system\": \"%0300d%s\"}", 0,
                 i ? "theirs" : "ours");
    assert_ok(conf_stream_diff(ours, ours, &difference));
    assert_null(difference);
    assert_ok(conf_stream_diff(ours, theirs, &difference));
    assert_non_null(difference);
    assert_non_null(strstr(difference, "0\".. there (the first 300 bytes are the same)"));
    free(difference);
    assert_ok(conf_stream_diff("{\"a\": \"x\\u0000y\"}", "{\"a\": \"x\\u0000z\"}", &difference));
    assert_non_null(difference);
    free(difference);
}

static void test_eval__options_replace_those_of_data(void **state)
{
    const room *space = *state;
    conf options, evaluated;
    assert_ok(
        load_text(space, &options, "data:\n  path: /d\n  answer: drawn\neval:\n  limit: 5\n"));
    assert_ok(conf_eval(&options, &evaluated));
    conf_done(&options); /* the copy does not point into it */
    assert_string_equal(evaluated.data_path, "/d");
    assert_string_equal(evaluated.data_split, "val");
    assert_int_equal(evaluated.data_limit, 5);
    assert_int_equal(evaluated.data_answer, ANSWER_MAJORITY);
    assert_false(evaluated.data_shuffle);
    assert_true(evaluated.training_epochs == 1);
    conf_done(&evaluated);
    assert_ok(load_text(space, &options, "eval:\n  path: /e\n"));
    assert_ok(conf_eval(&options, &evaluated));
    assert_string_equal(evaluated.data_path, "/e");
    conf_done(&options);
    conf_done(&evaluated);
}

int run_conf_stream_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream__compares_only_what_changes_rows),
        cmocka_unit_test(test_stream__compares_long_texts_whole),
        cmocka_unit_test(test_eval__options_replace_those_of_data),
    };
    return cmocka_run_group_tests_name("conf stream", tests, enter_room, leave_room);
}
