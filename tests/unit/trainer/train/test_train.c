/* test_train.c: a whole run on a device that its description names: what its lines say. */
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/json/json.h"
#include "trainer/bench/text_rows.h"
#include "trainer/train/train.h"

enum { STEPS = 2, SEQ_LEN = 64, ROWS = 4 };

/* The line of its last step. */
static json_value *last_line(const char *folder)
{
    char path[4096], line[8192] = "";
    json_value *v;
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
    }
    fclose(f);
    assert_ok(json_parse(line, strlen(line), "metrics", &v));
    return v;
}

/* trainer train of the debug model on rows of text; its line of step STEPS. */
static json_value *trained(const char *backend)
{
    char *folder = harness_temp(), rows[4096];
    snprintf(rows, sizeof rows, "%s/rows.rec", folder);
    const char *word[] = {"trainer",
                          "--model.path=debug",
                          "--training.seq_len=64",
                          "--training.steps=2",
                          "--training.global_batch_size=2",
                          "--training.threads=1",
                          "--metrics.log_freq=1",
                          "--metrics.report=false",
                          "--eval.enable=false",
                          "--checkpoint.enable=false",
                          "--training.backend",
                          backend,
                          "--feed.replay",
                          rows,
                          "--job.dump_folder",
                          folder,
                          NULL};
    int n = sizeof word / sizeof *word - 1;
    conf c;
    model_dims d;
    const world alone = {.place = {.size = 1, .local_size = 1}};
    assert_ok(dims_preset("debug", &d));
    assert_ok(text_rows_record(rows, &d, ROWS, SEQ_LEN, 16, 0));
    assert_ok(conf_load(&c, &n, (char **)word));
    assert_int_equal(n, 1);
    fflush(stdout);
    int kept = dup(STDOUT_FILENO);
    assert_non_null(freopen("/dev/null", "w", stdout));
    status st = train_run(&c, &alone);
    fflush(stdout);
    assert_true(dup2(kept, STDOUT_FILENO) >= 0);
    close(kept);
    assert_ok(st);
    json_value *line = last_line(folder);
    int64_t step;
    assert_ok(json_want_int(line, "step", "metrics", &step));
    assert_int_equal(step, STEPS);
    conf_done(&c);
    harness_remove(&folder);
    return line;
}

static double read_metric(const json_value *line, const char *key)
{
    double x;
    assert_ok(json_want_real(line, key, "metrics", &x));
    return x;
}

/* Without metrics.peak_tflops mfu is a share of what its maker says of an H200, whatever a small
 * product between launch and wait would come to. */
static void test_train__mfu_is_a_share_of_the_known_peak(void **state)
{
    (void)state;
    json_value *line = trained("cuda"); /* emulated, as "NVIDIA H200, .." */
    const double want = 100.0 * read_metric(line, "tflops") / 989.0;
    assert_true(want > 0.0 && fabs(read_metric(line, "mfu_percent") / want - 1.0) < 1e-9);
    json_free(&line);
}

/* Of a device that nobody knows: of what it reaches here, which no step does. */
static void test_train__mfu_is_a_share_of_what_was_measured(void **state)
{
    (void)state;
    json_value *line = trained("cpu");
    const double mfu = read_metric(line, "mfu_percent");
    assert_true(mfu > 0.0 && mfu < 100.0);
    assert_true(mfu > 1.01 * 100.0 * read_metric(line, "tflops") / 989.0);
    json_free(&line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_train__mfu_is_a_share_of_the_known_peak),
        cmocka_unit_test(test_train__mfu_is_a_share_of_what_was_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
