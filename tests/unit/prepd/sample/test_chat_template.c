/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of chat_template.h: the chat template of a model folder is found as the reference finds it,
 * and one that is not known is refused. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "prepd/sample/chat_template.h"

static char *folder;

static int setup_template(void **state)
{
    (void)state;
    folder = harness_temp();
    return 0;
}

static int teardown_template(void **state)
{
    (void)state;
    harness_remove(&folder);
    return 0;
}

static conf options(void)
{
    return (conf){.model_path = folder, .model_tokenizer = "", .data_format = DATA_VQAV2};
}

/* Writes a file of the folder, or removes it if text is NULL. */
static void write_template_file(const char *name, const char *text)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
    if (!text)
        return;
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* The template that is found must be this text from that file; "" if there is none. */
static void expect_template(const char *file, const char *text)
{
    const conf settings = options();
    const hash128 want = hash_bytes(text, strlen(text));
    chat_template chat;
    assert_ok(chat_template_find(&settings, &chat));
    assert_string_equal(*chat.path ? chat.path + strlen(folder) + 1 : "", file);
    if (*file)
        assert_memory_equal(&chat.digest, &want, sizeof want);
}

/* transformers 4.57.3 and 5.23 do the same: the processor prefers chat_template.json to
 * chat_template.jinja, and the tokenizer reads chat_template.jinja and its own settings. */
static void test_chat_template__is_found_as_by_the_reference(void **state)
{
    (void)state;
    expect_template("", "");
    write_template_file("tokenizer_config.json", "{\"eos_token\": \"x\", \"chat_template\": null}");
    write_template_file("preprocessor_config.json", "{}");
    expect_template("", "");
    write_template_file("tokenizer_config.json", "{\"chat_template\": \"of the tokenizer\"}");
    expect_template("tokenizer_config.json", "of the tokenizer");
    write_template_file("chat_template.jinja", "of the folder\n");
    expect_template("chat_template.jinja", "of the folder");
    write_template_file("chat_template.jinja",
                        "of the folder"); /* a last newline makes no difference */
    expect_template("chat_template.jinja", "of the folder");
    write_template_file("chat_template.json", "{\"chat_template\": \"of the processor\\n\"}");
    expect_template("chat_template.json", "of the processor");
    /* without a preprocessor file there is no processor */
    write_template_file("preprocessor_config.json", NULL);
    expect_template("chat_template.jinja", "of the folder");
    write_template_file("chat_template.jinja", NULL);
    write_template_file("tokenizer_config.json",
                        "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"t\"},"
                        " {\"name\": \"default\", \"template\": \"d\"}]}");
    expect_template("tokenizer_config.json", "d");
    conf settings = options();
    settings.model_path = "a-preset";
    chat_template chat;
    assert_ok(chat_template_find(&settings, &chat));
    assert_string_equal(chat.path, "");
    settings.model_tokenizer = folder;
    assert_ok(chat_template_find(&settings, &chat));
    assert_string_not_equal(chat.path, "");
}

static void test_chat_template__bad_files_are_named(void **state)
{
    (void)state;
    const conf settings = options();
    chat_template chat;
    write_template_file("tokenizer_config.json",
                        "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"t\"}]}");
    assert_fails(ST_BAD_INPUT, chat_template_find(&settings, &chat), "tokenizer_config.json");
    assert_non_null(strstr(status_text(), "chat_template is an array, expected a text"));
    write_template_file("tokenizer_config.json", "{");
    assert_fails(ST_BAD_INPUT, chat_template_find(&settings, &chat), "tokenizer_config.json");
    write_template_file("tokenizer_config.json", NULL);
}

static void test_chat_template__an_unknown_one_is_refused(void **state)
{
    (void)state;
    conf settings = options();
    chat_template chat;
    write_template_file("chat_template.jinja", "{{ messages }}<think>");
    assert_fails(ST_CONFIG, chat_template_check(&settings, &chat), "chat_template.jinja");
    assert_non_null(strstr(status_text(), "puts <think> into answers"));
    assert_non_null(strstr(status_text(), "set model.chat_template to instruct"));
    write_template_file("chat_template.jinja", "{{ messages }}");
    assert_fails(ST_CONFIG, chat_template_check(&settings, &chat),
                 "does not know this chat template (");
    assert_null(strstr(status_text(), "<think>"));
    settings.model_chat_template = CHAT_TEMPLATE_INSTRUCT;
    assert_ok(chat_template_check(&settings, &chat));
    assert_null(chat.releases);
    settings.model_chat_template = CHAT_TEMPLATE_KNOWN;
    settings.data_format = DATA_TEXT; /* plain text needs no template */
    assert_ok(chat_template_check(&settings, &chat));
    assert_string_equal(chat.path, "");
    write_template_file("chat_template.jinja", NULL);
}

static void test_chat_template__the_published_one_is_known(void **state)
{
    (void)state;
    chat_template chat;
    char *published = harness_shared("data/tokenizer");
    if (!published)
        HARNESS_SKIP("no shared tokenizer");
    conf settings = options();
    settings.model_path = published;
    assert_ok(chat_template_check(&settings, &chat));
    assert_non_null(strstr(chat.path, "chat_template.json"));
    assert_non_null(strstr(chat.releases, "Qwen3-VL Instruct"));
    free(published);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_template__is_found_as_by_the_reference),
        cmocka_unit_test(test_chat_template__bad_files_are_named),
        cmocka_unit_test(test_chat_template__an_unknown_one_is_refused),
        cmocka_unit_test(test_chat_template__the_published_one_is_known),
    };
    return cmocka_run_group_tests(tests, setup_template, teardown_template);
}
