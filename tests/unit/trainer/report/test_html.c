/* SPDX-License-Identifier: Apache-2.0 */
/* test_html.c: report.html: curves with several points are plotted, those with one point are facts;
 * the loss has a logarithmic axis and a smoothed line; the page loads nothing from elsewhere.
 * Letters: x, y the points of a curve. */
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/report/html.h"

static int count(const char *text, const char *part)
{
    int count_ = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
        count_++;
    return count_;
}

/* The page of a run of this many steps, in which the loss halves every ten steps. The caller frees
 * it. */
static char *page_of(const char *folder, int steps)
{
    static const html_fact facts[] = {{"final accuracy", "75.0 %", "of <8> answers"}};
    char path[STATUS_PATH_MAX];
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    for (int step = 1; step <= steps; step++)
        fprintf(file, "{\"step\":%d,\"loss\":%.6f,\"lr\":0.001,\"tps\":%d,\"seconds\":1.5}\n", step,
                8 * pow(0.5, step / 10.0), 1000 + step);
    fclose(file);
    assert_ok(html_report(folder, (html_mark){.step = 1}, "a <run>", facts, 1, "optimizer.lr: 1"));
    snprintf(path, sizeof path, "%s/report.html", folder);
    file = fopen(path, "re");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    return text;
}

static void test_report__plots_what_has_several_points(void **state)
{
    (void)state;
    char *folder = harness_temp(), *text = page_of(folder, 60);
    assert_int_equal(count(text, "<svg "), 3);
    assert_int_equal(count(text, "role=\"img\" aria-label=\"loss by step: "), 1);
    assert_int_equal(count(text, ">step</text>"), 3);
    assert_int_equal(count(text, "<polyline class=\"raw\""), 1); /* and a smoothed line over it */
    assert_int_equal(count(text, "<polyline class=\"line\""), 3);
    assert_int_equal(count(text, "<dt>duration</dt><dd>1 min 30 s"), 1);
    assert_int_equal(count(text, "<dd>75.0 %<small>of &lt;8&gt; answers"), 1);
    assert_int_equal(count(text, "a &lt;run&gt;</h1>"), 1);
    assert_int_equal(count(text, "prefers-color-scheme:dark"), 1);
    assert_int_equal(count(text, "://") + count(text, "src=") + count(text, "url("), 0);
    free(text);
    harness_remove(&folder);
}

/* An exponential decay is a straight line on a logarithmic axis. */
static void test_report__has_a_logarithmic_loss(void **state)
{
    (void)state;
    char *folder = harness_temp(), *text = page_of(folder, 11);
    const char *at = strstr(text, "<polyline class=\"line\" points=\"");
    assert_non_null(at);
    double x[11], y[11];
    at += strlen("<polyline class=\"line\" points=\"");
    for (int i = 0; i < 11; i++) {
        char *end;
        x[i] = strtod(at, &end);
        y[i] = strtod(end + 1, &end);
        at = end;
    }
    for (int i = 1; i < 10; i++)
        assert_true(fabs((y[i] - y[0]) / (x[i] - x[0]) - (y[10] - y[0]) / (x[10] - x[0])) < 0.01);
    free(text);
    harness_remove(&folder);
}

static void test_report__tells_a_single_point_as_a_value(void **state)
{
    (void)state;
    char *folder = harness_temp(), *text = page_of(folder, 1);
    assert_int_equal(count(text, "<svg ") + count(text, "<circle"), 0);
    assert_int_equal(count(text, "<dt>tokens per second</dt><dd>1001<small>real tokens, at step 1"),
                     1);
    free(text);
    harness_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_report__plots_what_has_several_points),
        cmocka_unit_test(test_report__has_a_logarithmic_loss),
        cmocka_unit_test(test_report__tells_a_single_point_as_a_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
