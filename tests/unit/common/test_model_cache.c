/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of model_cache.h and model_files.h: which words are names of models in the Hugging Face
 * cache, what title a folder of it gets, and which files of a model folder count in its digest. */
#include "common/base/model_cache.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/model_folder/model_files.h"
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

/* refs/main comes from elsewhere and becomes part of a path, so only a plain word is accepted. */
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

/* Makes nested folders below root until the path has this many bytes. */
static void make_deep(const char *root, size_t bytes, char out[PATH_MAX])
{
    size_t length = (size_t)snprintf(out, PATH_MAX, "%s", root);
    while (length < bytes) {
        size_t word = bytes - length - 1 > 200 ? 100 : bytes - length - 1;
        out[length++] = '/';
        memset(out + length, 'd', word);
        out[length += word] = 0;
        assert_int_equal(mkdir(out, 0755), 0);
    }
}

static void put_file(const char *folder, const char *name)
{
    char path[PATH_MAX];
    assert_true(snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
}

/* A path too long for a message must not leave a file out of the digest. One too long for the
 * system is an error. */
static void test_model_files__deep_folders_have_all_files(void **state)
{
    (void)state;
    char *root = harness_temp(), deep[PATH_MAX], deeper[PATH_MAX];
    hash128 before, after;
    make_deep(root, STATUS_PATH_MAX - 20, deep);
    const conf options = {.model_path = deep, .model_tokenizer = ""};
    put_file(deep, "tokenizer.json");
    assert_ok(model_files_digest(&options, &before));
    put_file(deep, "preprocessor_config.json");
    assert_ok(model_files_digest(&options, &after));
    assert_memory_not_equal(before.bytes, after.bytes, sizeof before.bytes);
    make_deep(deep, PATH_MAX - 20, deeper);
    const conf settings = {.model_path = deeper, .model_tokenizer = ""};
    put_file(deeper, "tokenizer.json");
    assert_fails(ST_CONFIG, model_files_digest(&settings, &after),
                 "preprocessor_config.json is longer");
    harness_remove(&root);
}

static void test_model_files__folder_names_must_be_utf8(void **state)
{
    (void)state;
    char *root = harness_temp(), path[STATUS_PATH_MAX];
    const conf options = {.model_path = path, .model_tokenizer = ""};
    const conf settings = {.model_path = "preset", .model_tokenizer = path};
    snprintf(path, sizeof path, "%s/mod\xc3\xa8le", root);
    assert_int_equal(mkdir(path, 0755), 0);
    assert_ok(model_files_told(&options));
    assert_ok(model_files_told(&settings));
    snprintf(path, sizeof path, "%s/mod\xe8le", root);
    assert_fails(ST_NO_INPUT, model_files_told(&settings), "is not a folder");
    assert_fails(ST_NO_INPUT, model_files_told(&settings),
                 "correct the path, or download the model (hf download Org/Name)");
    assert_int_equal(mkdir(path, 0755), 0);
    assert_fails(ST_CONFIG, model_files_told(&options),
                 "model.path: the folder's name is not UTF-8");
    assert_fails(ST_CONFIG, model_files_told(&settings), "model.tokenizer: the folder's");
    harness_remove(&root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_cache__names),
        cmocka_unit_test(test_model_cache__titles),
        cmocka_unit_test(test_model_cache__commits_do_not_lead_elsewhere),
        cmocka_unit_test(test_model_files__deep_folders_have_all_files),
        cmocka_unit_test(test_model_files__folder_names_must_be_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
