/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of how tokenizer.json is read: what we do not implement and what is malformed is refused,
 * and the message names the place. Each case changes one thing in the golden file
 * (tests/golden/tokenizer), whose two forms write merges as pairs or as strings. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "common/tokenizer/tokenizer.h"

static char *read_golden(const char *form)
{
    const char *source = getenv("TESSERA_SOURCE");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/golden/tokenizer/%s/tokenizer.json",
             source ? source : ".", form);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = malloc(65536);
    assert_non_null(text);
    size_t got = fread(text, 1, 65535, file);
    assert_true(got > 1000 && got < 65535);
    text[got] = 0;
    fclose(file);
    return text;
}

/* A copy of text in which the first `from` is replaced by `to`; the test fails if there is none. */
static char *changed(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    if (!at)
        fail_msg("the golden file has no %s", from);
    char *out;
    assert_true(asprintf(&out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) > 0);
    return out;
}

static void refuse_tokenizer(const char *form, const char *from, const char *to, const char *words)
{
    char *text = read_golden(form), *bad = changed(text, from, to);
    tokenizer *vocabulary = NULL;
    assert_fails(ST_BAD_INPUT, tokenizer_parse(bad, strlen(bad), "some.json", &vocabulary), words);
    assert_null(vocabulary);
    assert_non_null(strstr(status_text(), "some.json"));
    free(bad);
    free(text);
}

static void accept(const char *from, const char *to, const char *text, int32_t want)
{
    char *golden = read_golden("pairs"), *good = changed(golden, from, to);
    tokenizer *vocabulary = NULL;
    tokenizer_scratch *scratch = NULL;
    token_list list = {0};
    assert_ok(tokenizer_parse(good, strlen(good), "some.json", &vocabulary));
    assert_ok(tokenizer_scratch_new(vocabulary, &scratch));
    assert_ok(tokenizer_encode(vocabulary, scratch, text, strlen(text), &list));
    assert_true(list.count > 0);
    assert_int_equal(list.id[0], want);
    token_list_done(&list);
    tokenizer_scratch_free(&scratch);
    tokenizer_free(&vocabulary);
    free(good);
    free(golden);
}

static void test_load__broken_structure(void **state)
{
    (void)state;
    refuse_tokenizer("pairs", "{\"version\"", "{\"version", "some.json");
    refuse_tokenizer("pairs", "\"model\":", "\"modem\":", "model is missing, expected an object");
    refuse_tokenizer("pairs", "\"model\":{", "\"model\":[],\"x\":{",
                     "model is an array, expected an object");
    refuse_tokenizer("pairs", "\"vocab\":{", "\"vocab\":1,\"x\":{", "model.vocab is an integer");
    refuse_tokenizer("pairs", "\"vocab\":{", "\"vocal\":{", "model.vocab is missing");
    refuse_tokenizer("pairs", "\"merges\":[", "\"mergers\":[", "model.merges is missing");
    refuse_tokenizer("pairs", "\"merges\":[", "\"merges\":{},\"x\":[", "model.merges is an object");
    refuse_tokenizer("pairs", "\"pre_tokenizer\":", "\"pre\":", "pre_tokenizer is missing");
    refuse_tokenizer("pairs", "\"added_tokens\":[", "\"added_tokens\":[1,",
                     "added_tokens[0] is an integer");
    refuse_tokenizer("pairs", "\"added_tokens\":[", "\"added_tokens\":1,\"x\":[",
                     "added_tokens is an integer");
}

static void test_load__vocabulary(void **state)
{
    (void)state;
    refuse_tokenizer("pairs", "\"vocab\":{", "\"vocab\":{\"zz\":\"1\",",
                     "model.vocab[\"zz\"] is a text");
    refuse_tokenizer("pairs", "\"vocab\":{", "\"vocab\":{\"zz\":-1,", "is -1, expected 0 to");
    refuse_tokenizer("pairs", "\"vocab\":{", "\"vocab\":{\"zz\":99999999999,",
                     "is 99999999999, expected");
    refuse_tokenizer("pairs", "\"vocab\":{", "\"vocab\":{\"zz\":3,", "repeats id 3");
    refuse_tokenizer("pairs", "\"vocab\":{", "\"vocab\":{\"\":400,", "empty text");
    refuse_tokenizer("pairs", "\"A\":32", "\"AAAA\":32", "no symbol for byte 0x41");
}

static void test_load__merges(void **state)
{
    (void)state;
    refuse_tokenizer("strings", "\"merges\":[", "\"merges\":[\"ab\",", "model.merges[0] is \"ab\"");
    refuse_tokenizer("strings", "\"merges\":[", "\"merges\":[\"a b c\",",
                     "two symbols and one space");
    refuse_tokenizer("strings", "\"merges\":[", "\"merges\":[\"qqq b\",",
                     "needs the symbol \"qqq\"");
    refuse_tokenizer("strings", "\"merges\":[", "\"merges\":[\"q Q\",", "needs the symbol \"qQ\"");
    refuse_tokenizer("pairs", "\"merges\":[", "\"merges\":[[\"a\"],",
                     "model.merges[0] is an array with 1");
    refuse_tokenizer("pairs", "\"merges\":[", "\"merges\":[[\"a\",1],",
                     "model.merges[0][1] is an integer");
    refuse_tokenizer("pairs", "\"merges\":[", "\"merges\":[7,", "model.merges[0] is an integer");
    refuse_tokenizer("pairs", "\"merges\":[", "\"merges\":[[\"\",\"b\"],", "needs the symbol \"\"");
}

static void test_load__what_is_not_implemented(void **state)
{
    (void)state;
    refuse_tokenizer("pairs", "\"type\":\"BPE\"", "\"type\":\"Unigram\"",
                     "model.type is \"Unigram\"");
    refuse_tokenizer("pairs", "\"dropout\":null", "\"dropout\":0.1", "model.dropout is set");
    refuse_tokenizer("pairs", "\"unk_token\":null", "\"unk_token\":\"?\"",
                     "model.unk_token is set");
    refuse_tokenizer("pairs", "\"byte_fallback\":false", "\"byte_fallback\":true",
                     "model.byte_fallback");
    refuse_tokenizer("pairs", "\"ignore_merges\":false", "\"ignore_merges\":true",
                     "model.ignore_merges");
    refuse_tokenizer("pairs", "\"type\":\"NFC\"", "\"type\":\"NFKC\"",
                     "normalizer.type is \"NFKC\"");
    refuse_tokenizer("pairs", "{\"type\":\"NFC\"}", "3", "normalizer is an integer");
    refuse_tokenizer("pairs", "\"type\":\"Sequence\"", "\"type\":\"Metaspace\"", "\"Metaspace\"");
    refuse_tokenizer("pairs", "\"type\":\"Split\"", "\"type\":\"Digits\"",
                     "[0].type is \"Digits\"");
    refuse_tokenizer("pairs", "\"Isolated\"", "\"Removed\"", "behavior is \"Removed\"");
    refuse_tokenizer("pairs", "\"invert\":false", "\"invert\":true", "invert is set");
    refuse_tokenizer("pairs", "\"Regex\":", "\"String\":", "pattern.Regex is missing");
    refuse_tokenizer("pairs", "(?i:", "(?i:(", "does not compile");
    refuse_tokenizer("pairs", "\"add_prefix_space\":false", "\"add_prefix_space\":true",
                     "add_prefix_space");
    refuse_tokenizer("pairs", "\"use_regex\":false", "\"use_regex\":true", "use_regex is set");
    refuse_tokenizer("pairs", "\"post_processor\":null",
                     "\"post_processor\":{\"type\":\"TemplateProcessing\"}",
                     "post_processor.type is \"TemplateProcessing\"");
}

static void test_load__added_tokens(void **state)
{
    (void)state;
    refuse_tokenizer("pairs", "\"id\":352,", "", "added_tokens[0].id is missing");
    refuse_tokenizer("pairs", "\"id\":352", "\"id\":\"352\"", "added_tokens[0].id is a text");
    refuse_tokenizer("pairs", "\"id\":353", "\"id\":352", "repeats id 352");
    refuse_tokenizer("pairs", "\"content\":\"<|endoftext|>\"", "\"content\":\"\"",
                     "content is empty");
    refuse_tokenizer("pairs", "\"content\":\"<|endoftext|>\",", "",
                     "added_tokens[0].content is missing");
    refuse_tokenizer("pairs", "\"lstrip\":false", "\"lstrip\":true",
                     "added_tokens[0].lstrip is set");
    refuse_tokenizer("pairs", "\"rstrip\":false", "\"rstrip\":true",
                     "added_tokens[0].rstrip is set");
    refuse_tokenizer("pairs", "\"single_word\":false", "\"single_word\":true",
                     "single_word is set");
    refuse_tokenizer("pairs", "\"special\":true", "\"special\":1", "special is an integer");
}

/* A file without a normaliser is valid, and then "e" and U+0301 are not composed. */
static void test_load__what_may_be_absent(void **state)
{
    (void)state;
    accept("{\"type\":\"NFC\"}", "null", "e\xCC\x81", 68);
    accept("\"normalizer\":{\"type\":\"NFC\"},", "", "e\xCC\x81", 68);
    accept("\"type\":\"BPE\",", "", "A", 32);
    accept("\"added_tokens\":[", "\"added_tokens\":[],\"x\":[", "<|im_end|>", 27);
    accept("\"id\":352", "\"id\":5000", "<|endoftext|>", 5000);
}

static void test_load__digest_is_that_of_the_file(void **state)
{
    (void)state;
    char *text = read_golden("pairs");
    tokenizer *vocabulary = NULL;
    assert_ok(tokenizer_parse(text, strlen(text), "some.json", &vocabulary));
    assert_true(hash_equal(tokenizer_digest(vocabulary), hash_bytes(text, strlen(text))));
    tokenizer_free(&vocabulary);
    assert_fails(ST_NO_INPUT, tokenizer_load("/nowhere", &vocabulary), "/nowhere/tokenizer.json");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load__broken_structure),
        cmocka_unit_test(test_load__vocabulary),
        cmocka_unit_test(test_load__merges),
        cmocka_unit_test(test_load__what_is_not_implemented),
        cmocka_unit_test(test_load__added_tokens),
        cmocka_unit_test(test_load__what_may_be_absent),
        cmocka_unit_test(test_load__digest_is_that_of_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
