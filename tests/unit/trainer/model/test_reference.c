/* SPDX-License-Identifier: Apache-2.0 */
/* test_reference.c: compares the forward pass with a second implementation, reference.py (numpy,
 * float64, one document at a time): the negative log-likelihood of every target, and the auxiliary
 * loss. test_gradients.c ties the backward pass to the forward pass; this test ties the forward
 * pass to the equations. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/trainer/model/fixture.h"
#include "trainer/checkpoint/hf/hf_export.h"

/* Float against double through ten layers, on a negative log-likelihood of about 10. The message
 * prints the difference found. */
static const double tolerance = 1e-4;

static FILE *start_reference(const char *folder)
{
    const char *source = getenv("TESSERA_SOURCE");
    char command[4096];
    if (system("/usr/bin/python3 -c 'import numpy' 2>/dev/null") != 0)
        HARNESS_SKIP("no python3-numpy");
    snprintf(
        command, sizeof command,
        "/usr/bin/python3 '%s/tests/unit/trainer/model/reference.py' '%s' '%s/row.safetensors'",
        source ? source : ".", folder, folder);
    FILE *file = popen(command, "r");
    assert_non_null(file);
    return file;
}

static double next_value(FILE *file, const char *prefix)
{
    char line[128];
    if (!fgets(line, sizeof line, file))
        fail_msg("the reference stopped before its end");
    assert_int_equal(strncmp(line, prefix, strlen(prefix)), 0);
    return strtod(line + strlen(prefix), NULL);
}

static void compare_documents(const document *docs, int count)
{
    fixture setup;
    model_dims dims;
    device_batch *batch = NULL;
    void *nll;
    double worst = 0;
    assert_ok(dims_preset("debug", &dims));
    fixture_open(&setup, &dims);
    row packed = fixture_row(&setup, docs, count, false);
    model_options options = {.training = false, .router_aux_coef = 1};
    batch_caps_for(&packed, 1, 1, 4, &options.cap);
    fixture_model(&setup, &options, false);
    char *folder = harness_temp(), path[STATUS_PATH_MAX];
    snprintf(path, sizeof path, "%s/row.safetensors", folder);
    assert_ok(row_save(&packed, path));
    assert_ok(hf_export(setup.registry, setup.queue, &setup.dims, folder,
                        &(hf_export_options){.dtype = HF_EXPORT_F32}));

    assert_ok(
        setup.dev->backend->alloc(setup.dev, (size_t)options.cap.targets * sizeof(float), &nll));
    assert_ok(stage_rows(setup.staging, setup.queue, &packed, 1, &batch));
    assert_ok(model_forward(setup.net, setup.queue, batch, &setup.sums, nll, NULL));
    FILE *file = start_reference(folder);
    for (int64_t i = 0; i < batch->targets; i++) {
        double want = next_value(file, "");
        worst = fmax(worst, fabs(((float *)nll)[i] - want) / fmax(1, want));
    }
    double aux = next_value(file, "aux ");
    assert_int_equal(pclose(file), 0);
    print_message("%lld targets: largest difference %.2g, aux %.7g and %.7g\n",
                  (long long)batch->targets, worst, fixture_aux(&setup), aux);
    assert_true(worst < tolerance);
    assert_true(fabs(fixture_aux(&setup) - aux) < tolerance * aux);
    setup.dev->backend->release(setup.dev, nll);
    harness_remove(&folder);
    fixture_close(&setup);
}

static void test_reference__spec_batch(void **state)
{
    (void)state;
    compare_documents(debug_documents, 3);
}

static void test_reference__large_image_and_text_only_row(void **state)
{
    (void)state;
    compare_documents(&(const document){"5 1x12x18 9", 77}, 1);
    compare_documents((const document[]){{"19", 78}, {"6", 79}}, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference__spec_batch),
        cmocka_unit_test(test_reference__large_image_and_text_only_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
