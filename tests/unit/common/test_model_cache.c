/* test_model_cache.c: which words are names in the Hugging Face cache, what its folders are called.
 */
#include "common/model_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

static void test_model_cache__names(void **state)
{
    (void)state;
    static const char *const names[] = {"Qwen/Qwen3-VL-30B-A3B-Instruct", "a/b", "A_1/b.c-d"};
    static const char *const others[] = {"",     "debug", "/a/b",  "a/b/c", "a/",  "/b",
                                         "./a",  "../a",  "a/..",  "a/.b",  "~/b", "a b/c",
                                         ".a/b", "a//b",  "a/b\n", "a/b/"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_true(model_cache_is_name(names[i]));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(model_cache_is_name(others[i]));
}

static void test_model_cache__titles(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"/c/hub/models--Org--Model-1/snapshots/0123", "Org/Model-1"},
        {"models--Org--Model/snapshots/0123", "Org/Model"},
        {"/c/models--Org--My--Model/snapshots/0123", "Org/My--Model"},
        {"/c/other/snapshots/0123", "0123"},
        {"/c/models--Org/snapshots/0123", "0123"},
        {"/some/folder", "folder"},
        {"word", "word"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char title[STATUS_PATH_MAX];
        model_cache_title(pairs[i][0], title);
        assert_string_equal(title, pairs[i][1]);
    }
}

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[STATUS_PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* refs/main is a stranger's file: only a plain word may come of it. */
static void test_model_cache__commits_do_not_lead_elsewhere(void **state)
{
    (void)state;
    static const char *const commits[] = {"../../..", "a/b", "", "\n", ".", "..", " x"};
    char *root = harness_temp(), command[STATUS_PATH_MAX], refs[STATUS_PATH_MAX];
    char found[STATUS_PATH_MAX] = "untouched", words[STATUS_PATH_MAX];
    snprintf(refs, sizeof refs, "%s/models--a--b/refs", root);
    snprintf(command, sizeof command, "mkdir -p %s %s/../snapshots/abc", refs, refs);
    assert_int_equal(system(command), 0);
    assert_int_equal(setenv("HF_HUB_CACHE", root, 1), 0);
    for (size_t i = 0; i < sizeof commits / sizeof *commits; i++) {
        write_file(refs, "main", commits[i]);
        assert_false(model_cache_find("a/b", found));
        assert_string_equal(found, "untouched");
        model_cache_explain("a/b", words, sizeof words);
        assert_non_null(strstr(words, "models--a--b/refs/main"));
    }
    write_file(refs, "main", "abc\n");
    assert_true(model_cache_find("a/b", found));
    assert_non_null(strstr(found, "models--a--b/snapshots/abc"));
    write_file(refs, "main", "gone");
    assert_false(model_cache_find("a/b", found));
    model_cache_explain("a/b", words, sizeof words);
    assert_non_null(strstr(words, "snapshots/gone"));
    harness_remove(&root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_cache__names),
        cmocka_unit_test(test_model_cache__titles),
        cmocka_unit_test(test_model_cache__commits_do_not_lead_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
