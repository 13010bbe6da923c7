/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of fit_limits_load: where the limits of a picture's size come from, and that a preprocessor
 * file whose steps differ from ours is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/sample/fit.h"
#include "tests/harness.h"

/* Keys that every preprocessor file must have. */
#define MUST "\"patch_size\": 16, \"image_mean\": [0.5, 0.5, 0.5], \"image_std\": 0.5"

static char *folder;

static int setup_limits(void **state)
{
    (void)state;
    folder = harness_temp();
    return 0;
}

static int teardown_limits(void **state)
{
    (void)state;
    harness_remove(&folder);
    return 0;
}

static conf with_file(const char *json)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/preprocessor_config.json", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(json, file);
    fclose(file);
    return (conf){.model_path = folder, .model_tokenizer = ""};
}

static void check_limits(const conf *options, int64_t min_pixels, int64_t max_pixels)
{
    fit_limits limits;
    assert_ok(fit_limits_load(options, &limits));
    assert_int_equal(limits.min_pixels, min_pixels);
    assert_int_equal(limits.max_pixels, max_pixels);
}

static void test_fit_limits_load__takes_options_before_files(void **state)
{
    (void)state;
    conf options = {.model_path = "", .model_tokenizer = ""};
    check_limits(&options, 65536, 16777216);
    options.model_path = "qwen3-vl-30b-a3b"; /* a preset has no folder */
    check_limits(&options, 65536, 16777216);
    options = with_file("{" MUST ", \"merge_size\": 2, \"temporal_patch_size\": 2, "
                        "\"size\": {\"shortest_edge\": 4096, \"longest_edge\": 9000}}");
    check_limits(&options, 4096, 9000);
    options.image_max_pixels = 5000;
    check_limits(&options, 4096, 5000);
    options.image_min_pixels = 10;
    check_limits(&options, 10, 5000);
    options = (conf){.model_path = "a-preset", .model_tokenizer = folder};
    check_limits(&options, 4096, 9000);
    options = with_file("{" MUST ", \"min_pixels\": 1024, \"max_pixels\": null, "
                        "\"size\": {\"shortest_edge\": 4096, \"longest_edge\": 9000}}");
    check_limits(&options, 1024, 9000);
    options = with_file("{" MUST "}"); /* the defaults of the reference's class */
    check_limits(&options, 3136, 1003520);
    options = with_file("{" MUST ", \"size\": null, \"max_pixels\": 200000}");
    check_limits(&options, 3136, 200000);
}

/* Values with which the reference would make other pixels than we do are refused. */
static void test_fit_limits_load__other_steps(void **state)
{
    static const struct {
        const char *json, *words; /* NULL: accepted */
    } rows[] = {
        {"{\"patch_size\": 16, \"image_mean\": 0.5, \"image_std\": 0.5, \"resample\": 3}", NULL},
        {"{" MUST ", \"rescale_factor\": 0.00392156862745098, \"do_rescale\": true}", NULL},
        {"{" MUST ", \"do_resize\": null}", NULL},
        {"{}", "patch_size is missing"},
        {"{\"patch_size\": 16, \"image_std\": 0.5}", "image_mean is missing"},
        {"{\"patch_size\": 16, \"image_std\": 0.5, \"image_mean\": null}", "image_mean is missing"},
        {"{\"patch_size\": 16, \"image_mean\": 0.5}", "image_std is missing"},
        {"{\"patch_size\": 16, \"image_mean\": [0.48145466, 0.4578275, 0.40821073], "
         "\"image_std\": 0.5}",
         "image_mean is not 0.5"},
        {"{\"patch_size\": 16, \"image_mean\": 0.5, \"image_std\": [0.5, 0.5]}",
         "image_std is not 0.5"},
        {"{\"patch_size\": 16, \"image_mean\": 0.5, \"image_std\": \"half\"}",
         "image_std is not 0.5"},
        {"{" MUST ", \"rescale_factor\": 1}", "rescale_factor is not"},
        {"{" MUST ", \"resample\": 2}", "resample is 2"},
        {"{" MUST ", \"do_resize\": false}", "do_resize is false"},
        {"{" MUST ", \"do_normalize\": false}", "do_normalize is false"},
    };
    fit_limits limits;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const conf options = with_file(rows[i].json);
        if (rows[i].words)
            assert_fails(ST_BAD_INPUT, fit_limits_load(&options, &limits), rows[i].words);
        else
            assert_ok(fit_limits_load(&options, &limits));
    }
}

static void test_fit_limits_load__refuses(void **state)
{
    fit_limits limits;
    (void)state;
    conf options = with_file("{\"patch_size\": 14}");
    assert_fails(ST_BAD_INPUT, fit_limits_load(&options, &limits), "patch_size is 14");
    options = with_file("{" MUST ", \"size\": {\"shortest_edge\": \"big\"}}");
    assert_fails(ST_BAD_INPUT, fit_limits_load(&options, &limits), "shortest_edge");
    /* the reference needs both edges */
    options = with_file("{" MUST ", \"size\": {\"shortest_edge\": 10}}");
    assert_fails(ST_BAD_INPUT, fit_limits_load(&options, &limits), "longest_edge");
    options = with_file("{" MUST ", \"size\": {\"shortest_edge\": 0, \"longest_edge\": 9}}");
    assert_fails(ST_BAD_INPUT, fit_limits_load(&options, &limits), "1 <= min <= max");
    options = with_file("[1]");
    assert_fails(ST_BAD_INPUT, fit_limits_load(&options, &limits), "expected an object");
    options = with_file("{\"size\": ");
    assert_fails(ST_BAD_INPUT, fit_limits_load(&options, &limits), "preprocessor_config.json");
    options = with_file("{" MUST "}");
    options.image_max_pixels = 3135;
    assert_fails(ST_CONFIG, fit_limits_load(&options, &limits), "image.max_pixels 3135");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fit_limits_load__takes_options_before_files),
        cmocka_unit_test(test_fit_limits_load__other_steps),
        cmocka_unit_test(test_fit_limits_load__refuses),
    };
    return cmocka_run_group_tests(tests, setup_limits, teardown_limits);
}
