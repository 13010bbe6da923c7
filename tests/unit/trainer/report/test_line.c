/* SPDX-License-Identifier: Apache-2.0 */
/* test_line.c: the log line to the character, and the same numbers in metrics.jsonl. */
#include "tests/harness.h"

#include <fcntl.h>
#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/json/json.h"
#include "trainer/ops/open.h"
#include "trainer/report/line.h"

/* torchtitan's fields with two spaces between them, then our own. */
#define NUMBER      "[0-9]+\\.[0-9]+"
#define SHARE       "[0-9]+\\.[0-9]{2}%"
#define SHORT_SHARE "[0-9]+\\.[0-9]%"
#define FIRST       "^step: +[0-9]+  loss: +" NUMBER "  grad_norm: +" NUMBER "  memory: "
#define TPS         "  tps: [0-9]{1,3}(,[0-9]{3})*"
#define PAIRS       "  pairs/s: [0-9]+(\\.[0-9])?"
#define WAIT        "  wait: " SHORT_SHARE
static const char line_form[] = FIRST SHORT_SHARE TPS "  mfu: " SHARE PAIRS WAIT "\n$";
static const char line_skipped[] = FIRST SHORT_SHARE TPS "  mfu: " SHARE PAIRS "  skipped\n$";
/* Higher than what any step here seems to do. */
static const peak_rate high_peak = {.flops = 1e18};

typedef struct bench {
    conf options;
    session run;
    reporter *reports;
    char *folder;
    char printed[4096]; /* all that went to standard output */
    int32_t *experts;   /* token copies per expert in every step; NULL: none */
} bench;

static void open_bench(bench *setup, int64_t log_freq)
{
    memset(setup, 0, sizeof *setup);
    setup->folder = harness_temp();
    setup->options.metrics_log_freq = log_freq;
    setup->options.metrics_mfu = MFU_USEFUL;
    setup->options.training_seq_len = 512;
    assert_ok(dims_preset("debug", &setup->run.dims));
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &setup->run.device));
    setup->run.conf = &setup->options;
    mesh_alone(&setup->run.mesh);
    assert_ok(setup->run.device->backend->stream_new(setup->run.device, &setup->run.stream));
    assert_ok(
        reporter_new(&setup->options, &setup->run, &high_peak, setup->folder, &setup->reports));
}

static void close_bench(bench *setup)
{
    reporter_free(&setup->reports);
    setup->run.device->backend->stream_free(&setup->run.stream);
    device_close(&setup->run.device);
    harness_remove(&setup->folder);
}

/* Reports steps from..to and keeps what goes to standard output in b->printed. */
static void report_steps(bench *setup, int64_t from, int64_t to, bool finish, bool skipped)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/stdout", setup->folder);
    fflush(stdout);
    int kept = dup(STDOUT_FILENO), out = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(kept >= 0 && out >= 0 && dup2(out, STDOUT_FILENO) >= 0);
    status st = ST_OK;
    for (int64_t step = from; step <= to && st == ST_OK; step++) {
        step_report report = {.step = step,
                              .loss = 6.25,
                              .grad_norm = 53.453,
                              .lr = 0.001,
                              .weight = 20,
                              .skipped = skipped,
                              .tokens = 900,
                              .row_capacity = 1024,
                              .patches = 64,
                              .documents = 9,
                              .pairs = 7,
                              .images = 8,
                              .targets = 20,
                              .wait_ns = 0,
                              .expert_count = setup->experts};
        report.flops = (flops){.text_linear = 300, .vision_blocks = 100, .forward = 400};
        report.flops.training = 1200;
        st = reporter_step(setup->reports, &report);
    }
    if (finish && st == ST_OK)
        st = reporter_finish(setup->reports);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    ssize_t got = pread(out, setup->printed, sizeof setup->printed - 1, 0);
    close(out);
    assert_ok(st);
    assert_true(got >= 0);
    setup->printed[got] = 0;
}

static int lines_of(const char *text)
{
    int count = 0;
    for (; *text; text++)
        count += *text == '\n';
    return count;
}

static void assert_form(const char *line, const char *form)
{
    regex_t compiled;
    assert_int_equal(regcomp(&compiled, form, REG_EXTENDED | REG_NOSUB), 0);
    if (regexec(&compiled, line, 0, NULL, 0) != 0)
        fail_msg("the line has another form: %s", line);
    regfree(&compiled);
}

static void test_reporter__line_has_the_form_of_torchtitan(void **state)
{
    (void)state;
    bench setup;
    open_bench(&setup, 10);
    report_steps(&setup, 1, 1, false, false);
    assert_form(setup.printed, line_form);
    assert_non_null(strstr(setup.printed, "step:  1  loss:  6.2500  grad_norm: 53.4530  memory: "));
    assert_non_null(strstr(setup.printed, "  wait: 0.0%\n"));
    report_steps(&setup, 2, 10, false, true);
    assert_form(setup.printed, line_skipped);
    close_bench(&setup);
}

/* The columns of the line with the widest number in each field, counted from a line of small
 * numbers. */
static void test_reporter__line_fits_120_columns(void **state)
{
    (void)state;
    static const char *const widest[] = {"99.9%", "999,999", "99.99%", "99999", "100.0%"};
    for (int skipped = 0; skipped < 2; skipped++) {
        bench setup;
        size_t more = 0;
        open_bench(&setup, 1000000);
        reporter_rest(setup.reports, -1000000000); /* the step took a second */
        report_steps(&setup, 1000000, 1000000, false, skipped);
        assert_form(setup.printed, skipped ? line_skipped : line_form);
        const char *at = strstr(setup.printed, "memory: ");
        for (size_t i = 0; i < sizeof widest / sizeof *widest - (size_t)skipped; i++) {
            at = strchr(at, ':') + 2;
            const size_t here = strcspn(at, " \n");
            more += strlen(widest[i]) > here ? strlen(widest[i]) - here : 0;
        }
        if (strlen(setup.printed) - 1 + more > 120)
            fail_msg("%zu columns: %s", strlen(setup.printed) - 1 + more, setup.printed);
        close_bench(&setup);
    }
}

static void test_reporter__prints_the_first_every_nth_and_the_last(void **state)
{
    (void)state;
    bench setup;
    open_bench(&setup, 4);
    report_steps(&setup, 1, 9, false, false); /* prints 1, 4 and 8 */
    assert_int_equal(lines_of(setup.printed), 3);
    report_steps(&setup, 10, 11, true, false); /* prints 11, since the run ends */
    assert_int_equal(lines_of(setup.printed), 1);
    assert_non_null(strstr(setup.printed, "step: 11 "));
    report_steps(&setup, 12, 12, true, false); /* prints 12 once, not twice */
    assert_int_equal(lines_of(setup.printed), 1);
    close_bench(&setup);
}

/* Counts cover all steps since the last line; the loss is that of the line's own step. */
static void test_reporter__metrics_have_every_field(void **state)
{
    (void)state;
    static const char *const reals[] = {
        "loss",         "aux",         "grad_norm", "lr",          "seconds",
        "memory_gib",   "tps",         "tflops",    "mfu_percent", "vision_percent",
        "wait_percent", "fill_percent"};
    const struct {
        const char *key;
        int64_t value;
    } counts[] = {{"step", 4},    {"targets", 60},  {"samples", 27}, {"pairs", 21},
                  {"images", 24}, {"tokens", 2700}, {"patches", 192}};
    bench setup;
    open_bench(&setup, 4);
    report_steps(&setup, 1, 4, false, false);
    char path[4096], line[4096];
    snprintf(path, sizeof path, "%s/metrics.jsonl", setup.folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file)); /* step 1 */
    assert_non_null(fgets(line, sizeof line, file)); /* steps 2 to 4 */
    assert_null(fgets(path, sizeof path, file));
    fclose(file);
    json_value *object;
    assert_ok(json_parse(line, strlen(line), "metrics", &object));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int64_t got;
        assert_ok(json_want_int(object, counts[i].key, "metrics", &got));
        if (got != counts[i].value)
            fail_msg("%s is %lld", counts[i].key, (long long)got);
    }
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        double got;
        assert_ok(json_want_real(object, reals[i], "metrics", &got));
    }
    const char *digest;
    assert_ok(json_want_text(object, "rows_digest", "metrics", &digest));
    assert_int_equal(strlen(digest), 32);
    json_free(&object);
    close_bench(&setup);
}

/* The numbers of a line of metrics.jsonl; lines count from 1. */
static json_value *metrics_of(const bench *setup, int number)
{
    char path[4096], line[4096];
    json_value *value;
    snprintf(path, sizeof path, "%s/metrics.jsonl", setup->folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (int i = 0; i < number; i++)
        assert_non_null(fgets(line, sizeof line, file));
    fclose(file);
    assert_ok(json_parse(line, strlen(line), "metrics", &value));
    return value;
}

/* The two ways of counting FLOPs: useful ones of real tokens, or torchtitan's of whole rows. */
static void test_reporter__both_countings(void **state)
{
    (void)state;
    const int kinds[] = {MFU_USEFUL, MFU_TORCHTITAN};
    for (int i = 0; i < 2; i++) {
        bench setup;
        open_bench(&setup, 1);
        reporter_free(&setup.reports);
        setup.options.metrics_mfu = kinds[i];
        assert_ok(
            reporter_new(&setup.options, &setup.run, &high_peak, setup.folder, &setup.reports));
        report_steps(&setup, 1, 1, false, false);
        json_value *value = metrics_of(&setup, 1);
        const double seconds = json_real(json_find(value, "seconds"), 0);
        assert_true(fabs(json_real(json_find(value, "pairs_per_s"), 0) * seconds / 7 - 1) < 1e-9);
        const double tokens = kinds[i] == MFU_USEFUL ? 900 : 1024;
        const double work =
            kinds[i] == MFU_USEFUL ? 1200 : 1024 * dims_flops_torchtitan(&setup.run.dims, 512);
        assert_true(fabs(json_real(json_find(value, "tps"), 0) * seconds / tokens - 1) < 1e-9);
        assert_true(fabs(json_real(json_find(value, "tflops"), 0) * 1e12 * seconds / work - 1) <
                    1e-9);
        assert_true(fabs(json_real(json_find(value, "mfu_percent"), 0) /
                             (1e-4 * json_real(json_find(value, "tflops"), 0)) -
                         1) < 1e-9); /* at a peak of a million TFLOP/s */
        json_free(&value);
        close_bench(&setup);
    }
}

/* A measured peak that a step surpasses was measured under other load, so it is measured again. A
 * peak that was not measured here stays, and the line says that mfu is not known. */
static void test_reporter__mfu_is_never_above_100(void **state)
{
    (void)state;
    for (int measured = 0; measured < 2; measured++) {
        bench setup;
        double mfu;
        const peak_rate low = {.flops = 1.0, .measured = measured, .tries_left = 1};
        open_bench(&setup, 1);
        reporter_free(&setup.reports);
        assert_ok(reporter_new(&setup.options, &setup.run, &low, setup.folder, &setup.reports));
        report_steps(&setup, 1, 2, false, false);
        const bool unknown = strstr(setup.printed, "  mfu: unknown  ") != NULL;
        assert_true(unknown == !measured);
        for (int line = 1; line <= 2; line++) {
            json_value *value = metrics_of(&setup, line);
            if (measured) {
                assert_ok(json_want_real(value, "mfu_percent", "metrics", &mfu));
                assert_true(mfu > 0.0 && mfu <= 100.0);
            } else {
                assert_non_null(json_find(value, "mfu_percent"));
                assert_true(isnan(json_real(json_find(value, "mfu_percent"), NAN)));
            }
            json_free(&value);
        }
        close_bench(&setup);
    }
}

/* The expert load is that of the step which the line names, even if later steps are queued before
 * it is written. */
static void test_reporter__load_is_of_its_step(void **state)
{
    (void)state;
    bench setup;
    open_bench(&setup, 10);
    const text_dims *dims = &setup.run.dims.text;
    const size_t count = (size_t)(dims->layers * dims->experts);
    setup.experts = calloc(count, sizeof *setup.experts);
    assert_non_null(setup.experts);
    for (size_t i = 0; i < count; i++)
        setup.experts[i] = 3;
    report_steps(&setup, 1, 1, false, false);
    json_value *value = metrics_of(&setup, 1);
    assert_true(json_real(json_find(value, "expert_load"), 0) == 1.0);
    assert_true(json_real(json_find(value, "experts_idle_percent"), -1) == 0.0);
    json_free(&value);
    for (size_t i = 0; i < count; i++) /* two experts of a layer get all tokens, three to one */
        setup.experts[i] = (int64_t)i % dims->experts == 0 ? 3 : (int64_t)i % dims->experts == 1;
    report_steps(&setup, 2, 2, false, false);
    memset(setup.experts, 0, count * sizeof *setup.experts);
    assert_ok(reporter_finish(setup.reports));
    value = metrics_of(&setup, 2);
    const double experts = (double)dims->experts;
    assert_true(fabs(json_real(json_find(value, "expert_load"), 0) - 0.75 * experts) < 1e-9);
    assert_true(fabs(json_real(json_find(value, "experts_idle_percent"), 0) -
                     100 * (experts - 2) / experts) < 1e-9);
    json_free(&value);
    free(setup.experts);
    close_bench(&setup);
}

/* Time handed to reporter_rest does not count as training time. With the 0.3 s that the test
 * sleeps, 900 tokens could be at most 3,000 a second; without them the rate is far higher, however
 * slow the machine is. */
static void test_reporter__rates_leave_out_rest(void **state)
{
    (void)state;
    bench setup;
    open_bench(&setup, 1);
    int64_t start = clock_ns();
    usleep(300000);
    reporter_rest(setup.reports, clock_ns() - start);
    report_steps(&setup, 1, 1, false, false);
    const char *tps = strstr(setup.printed, "tps: ");
    assert_non_null(tps);
    int64_t rate = 0;
    for (const char *at = tps + strlen("tps: "); *at != ' '; at++)
        rate = *at == ',' ? rate : rate * 10 + (*at - '0');
    assert_true(rate > 3000);
    close_bench(&setup);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reporter__line_has_the_form_of_torchtitan),
        cmocka_unit_test(test_reporter__line_fits_120_columns),
        cmocka_unit_test(test_reporter__prints_the_first_every_nth_and_the_last),
        cmocka_unit_test(test_reporter__metrics_have_every_field),
        cmocka_unit_test(test_reporter__both_countings),
        cmocka_unit_test(test_reporter__mfu_is_never_above_100),
        cmocka_unit_test(test_reporter__load_is_of_its_step),
        cmocka_unit_test(test_reporter__rates_leave_out_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
