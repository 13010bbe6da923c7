/* SPDX-License-Identifier: Apache-2.0 */
/* test_train.c: a whole training run on a device that is known only by its description, and what
 * the last line of metrics.jsonl says of it. */
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/json/json.h"
#include "trainer/bench/bench.h"
#include "trainer/optim/groups.h"
#include "trainer/plan/layout_plan.h"
#include "trainer/plan/recompute_plan.h"
#include "trainer/run/step.h"
#include "trainer/train/train.h"

enum { SEQ_LEN = 64, ROWS = 4 };

/* The last line of a file of the run. */
static json_value *last_line(const char *folder, const char *name)
{
    char path[4096], line[8192] = "";
    json_value *value;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
    }
    fclose(file);
    assert_ok(json_parse(line, strlen(line), name, &value));
    return value;
}

/* The losses that the run is told instead of its own: 1 everywhere but in this step. 0: its own. */
static int64_t bad_step;

status __real_step_wait(session *run, step_report *out);
status __wrap_step_wait(session *run, step_report *out);

status __wrap_step_wait(session *run, step_report *out)
{
    TRY(__real_step_wait(run, out));
    if (bad_step)
        out->loss = out->step == bad_step ? 5.0 : 1.0;
    return ST_OK;
}

/* The options of trainer train of the debug model on the folder's rows.rec. */
static void load_options(const char *folder, const char *backend, const char *steps, conf *out)
{
    char rows[4096];
    snprintf(rows, sizeof rows, "%s/rows.rec", folder);
    const char *word[] = {"trainer",
                          "--model.path=debug",
                          "--training.seq_len=64",
                          "--lr_scheduler.warmup_steps=2",
                          "--training.global_batch_size=2",
                          "--training.threads=1",
                          "--metrics.log_freq=1",
                          "--eval.enable=false",
                          "--checkpoint.enable=false",
                          "--training.steps",
                          steps,
                          "--training.backend",
                          backend,
                          "--feed.replay",
                          rows,
                          "--job.dump_folder",
                          folder,
                          NULL};
    int count = sizeof word / sizeof *word - 1;
    assert_ok(conf_load(out, &count, (char **)word));
    assert_int_equal(count, 1);
}

/* Runs trainer train on rows of text, with standard output and standard error in files of the
 * folder. */
static void run_train(const char *folder, const char *backend, const char *steps)
{
    char rows[4096], said[4096], warned[4096];
    conf options;
    model_dims dims;
    const world alone = {.place = {.size = 1, .local_size = 1}};
    snprintf(rows, sizeof rows, "%s/rows.rec", folder);
    snprintf(said, sizeof said, "%s/stdout", folder);
    snprintf(warned, sizeof warned, "%s/stderr", folder);
    assert_ok(dims_preset("debug", &dims));
    assert_ok(text_rows_record(rows, &dims, ROWS, SEQ_LEN, 16, 0));
    load_options(folder, backend, steps, &options);
    fflush(stdout);
    int kept[] = {dup(STDOUT_FILENO), dup(STDERR_FILENO)};
    assert_non_null(freopen(said, "w", stdout));
    assert_non_null(freopen(warned, "w", stderr));
    status st = train_run(&options, &alone, false);
    fflush(stdout);
    fflush(stderr);
    assert_true(dup2(kept[0], STDOUT_FILENO) >= 0 && dup2(kept[1], STDERR_FILENO) >= 0);
    close(kept[0]);
    close(kept[1]);
    assert_ok(st);
    conf_done(&options);
}

/* The line of the last of two steps. */
static json_value *trained(const char *backend)
{
    char *folder = harness_temp();
    run_train(folder, backend, "2");
    json_value *line = last_line(folder, "metrics.jsonl");
    int64_t step;
    assert_ok(json_want_int(line, "step", "metrics", &step));
    assert_int_equal(step, 2);
    harness_remove(&folder);
    return line;
}

static double read_metric(const json_value *line, const char *key)
{
    double value;
    assert_ok(json_want_real(line, key, "metrics", &value));
    return value;
}

/* Without metrics.peak_tflops, mfu on an H200 is a share of the peak that its maker states, and not
 * of a short measurement of our own. */
static void test_train__mfu_is_a_share_of_the_known_peak(void **state)
{
    (void)state;
    json_value *line = trained("cuda"); /* emulated, named "NVIDIA H200, .." */
    const double want = 100.0 * read_metric(line, "tflops") / 989.0;
    assert_true(want > 0.0 && fabs(read_metric(line, "mfu_percent") / want - 1.0) < 1e-9);
    json_free(&line);
}

/* On a device whose peak is not known, mfu is a share of the speed measured here, which no step
 * reaches. */
static void test_train__mfu_is_a_share_of_what_was_measured(void **state)
{
    (void)state;
    json_value *line = trained("cpu");
    const double mfu = read_metric(line, "mfu_percent");
    assert_true(mfu > 0.0 && mfu < 100.0);
    assert_true(mfu > 1.01 * 100.0 * read_metric(line, "tflops") / 989.0);
    json_free(&line);
}

/* One batch at five times the median of those before it: one line, and its ids in the ledger. */
static void test_train__a_leap_is_told_in_one_line(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[4096], line[8192];
    int told = 0;
    bad_step = 60;
    run_train(folder, "cpu", "60");
    bad_step = 0;
    snprintf(path, sizeof path, "%s/stderr", folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        if (!strstr(line, "step 60: "))
            continue;
        told++;
        assert_non_null(strstr(line, "loss 5.0000 is 5.0 times the median of the steps before it; "
                                     "its sample ids are in ledger.jsonl\n"));
    }
    fclose(file);
    assert_int_equal(told, 1);
    json_value *value = last_line(folder, "ledger.jsonl");
    assert_true(json_bool(json_find(value, "leaps"), false));
    assert_true(json_count(json_find(value, "ids")) ==
                (size_t)json_int(json_find(value, "documents"), 0));
    json_free(&value);
    harness_remove(&folder);
}

/* trainer plan --device h200 and a run on the emulated H200 plan the same bytes, and memory.json
 * has them. */
static void test_train__plans_as_trainer_plan_does(void **state)
{
    (void)state;
    char *folder = harness_temp();
    conf options;
    model_dims dims;
    params *registry;
    layout degrees;
    plan_device on;
    recomputes recomputed;
    memory_plan plan;
    int64_t told;
    run_train(folder, "cuda", "2");
    json_value *kept = last_line(folder, "memory.json");
    load_options(folder, "cuda", "2", &options);
    assert_ok(session_dims(&options, &dims));
    assert_ok(params_new(&dims, &registry));
    assert_ok(groups_apply(&options, registry));
    assert_ok(layout_of(&options, NULL, &degrees));
    assert_ok(plan_device_named("h200", &on));
    const plan_input in = {
        .conf = &options, .layout = &degrees, .dims = &dims, .params = registry, .device = &on};
    assert_ok(recompute_plan_of(&in, options.training_local_batch_size, &recomputed));
    assert_ok(layout_plan_make(&in, options.training_local_batch_size, &recomputed, &plan));
    assert_ok(json_want_int(kept, "planned_by_options", "memory.json", &told));
    assert_int_equal(told, plan.total);
    assert_ok(json_want_int(json_find(kept, "regions"), "context", "memory.json", &told));
    assert_int_equal(told, plan.gpu.context);
    json_free(&kept);
    params_free(&registry);
    conf_done(&options);
    harness_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_train__mfu_is_a_share_of_the_known_peak),
        cmocka_unit_test(test_train__mfu_is_a_share_of_what_was_measured),
        cmocka_unit_test(test_train__a_leap_is_told_in_one_line),
        cmocka_unit_test(test_train__plans_as_trainer_plan_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
