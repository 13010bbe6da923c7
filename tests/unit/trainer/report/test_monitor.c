/* SPDX-License-Identifier: Apache-2.0 */
/* test_monitor.c: what a run's /metrics and /healthz say, and that a scrape and a step may meet. */
#include "tests/harness.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "trainer/report/monitor.h"

static const int64_t SECOND = 1000000000;

typedef struct bench {
    conf options;
    char address[64];
    monitor *watch;
} bench;

static int setup_monitor(void **state)
{
    bench *setup = calloc(1, sizeof *setup);
    snprintf(setup->address, sizeof setup->address, "127.0.0.1:%d", harness_port(NULL));
    setup->options.metrics_trainer_listen = setup->address;
    setup->options.metrics_step_timeout = 60;
    setup->options.job_description = "a \"run\"";
    setup->options.job_dump_folder = "/runs/one";
    setup->options.model_path = "/models/m";
    setup->options.feed_replay = "";
    assert_ok(monitor_new(&setup->options, &setup->watch));
    *state = setup;
    return 0;
}

static int teardown_monitor(void **state)
{
    bench *setup = *state;
    monitor_free(&setup->watch);
    free(setup);
    return 0;
}

/* The answer to a path, on the heap. */
static char *asked(bench *setup, const char *path, int code)
{
    char *text = NULL;
    const char *type = "";
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_int_equal(monitor_answer(setup->watch, path, out, &type), code);
    fclose(out);
    return text;
}

static void assert_tells(bench *setup, const char *path, int code, const char *words)
{
    char *text = asked(setup, path, code);
    if (!strstr(text, words))
        fail_msg("%s does not say \"%s\":\n%s", path, words, text);
    free(text);
}

static void assert_leaves_out(bench *setup, const char *words)
{
    char *text = asked(setup, "/metrics", 200);
    if (strstr(text, words))
        fail_msg("/metrics says \"%s\":\n%s", words, text);
    free(text);
}

static step_report step_of(int64_t number)
{
    return (step_report){.step = number,
                         .loss = 2.5,
                         .grad_norm = 0.75,
                         .lr = 0.001,
                         .skipped = number == 2,
                         .tokens = 900,
                         .documents = 9,
                         .images = 8,
                         .targets = 20,
                         .wait_ns = SECOND / 4,
                         .bad_samples = 2};
}

static void test_metrics__sums_and_the_last_step(void **state)
{
    bench *setup = *state;
    assert_leaves_out(setup, "trainer_step ");
    assert_leaves_out(setup, "trainer_bad_samples");
    assert_tells(setup, "/metrics", 200, "\ntrainer_phase{phase=\"starting\"} 1\n");
    assert_tells(setup, "/metrics", 200,
                 "trainer_run_info{description=\"a \\\"run\\\"\",folder=\"/runs/one\","
                 "model=\"/models/m\",recording=\"\",stream=\"\"} 1\n");
    monitor_phase(setup->watch, PHASE_TRAINING);
    for (int64_t i = 1; i <= 3; i++) {
        const step_report step = step_of(i);
        monitor_step(setup->watch, &step);
    }
    static const char *const lines[] = {
        "\ntrainer_phase{phase=\"starting\"} 0\n",
        "\ntrainer_phase{phase=\"training\"} 1\n",
        "\ntrainer_step 3\n",
        "\ntrainer_loss 2.5\n",
        "\ntrainer_grad_norm 0.75\n",
        "\ntrainer_learning_rate 0.001",
        "\ntrainer_steps_total 3\n",
        "\ntrainer_skipped_steps_total 1\n",
        "\ntrainer_tokens_total 2700\n",
        "\ntrainer_targets_total 60\n",
        "\ntrainer_samples_total 27\n",
        "\ntrainer_images_total 24\n",
        "\ntrainer_wait_seconds_total 0.75\n",
        "\ntrainer_bad_samples 2\n",
        "\ntrainer_step_age_seconds 0.0",
        "\nprocess_cpu_seconds_total ",
        "\nprocess_start_time_seconds ",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        assert_tells(setup, "/metrics", 200, lines[i]);
}

static void test_metrics__lines_evaluations_and_saves(void **state)
{
    bench *setup = *state;
    assert_leaves_out(setup, "trainer_mfu_ratio");
    assert_leaves_out(setup, "trainer_checkpoint_step");
    assert_leaves_out(setup, "trainer_held_out");
    monitor_line(setup->watch, &(line_rates){1000, NAN, 1024, 4096});
    assert_leaves_out(setup, "trainer_mfu_ratio"); /* it is not known */
    monitor_line(setup->watch, &(line_rates){2000, 0.25, 2048, 4096});
    monitor_evaluated(setup->watch, &(evaluation){.loss = 1.5, .right = 3, .answers = 4});
    monitor_saved(setup->watch, 5, 1.25, ST_OK);
    monitor_saved(setup->watch, 6, 9, ST_IO);
    static const char *const lines[] = {
        "\ntrainer_device_tokens_per_second 2000\n",
        "\ntrainer_mfu_ratio 0.25\n",
        "\ntrainer_memory_used_bytes 2048\n",
        "\ntrainer_memory_device_bytes 4096\n",
        "\ntrainer_held_out_loss 1.5\n",
        "\ntrainer_held_out_accuracy_ratio 0.75\n",
        "\ntrainer_checkpoints_total{outcome=\"written\"} 1\n",
        "\ntrainer_checkpoints_total{outcome=\"failed\"} 1\n",
        "\ntrainer_checkpoint_step 5\n",
        "\ntrainer_checkpoint_seconds 1.25\n",
        "\ntrainer_checkpoint_age_seconds 0.0",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        assert_tells(setup, "/metrics", 200, lines[i]);
}

static void test_healthz__is_503_once_no_step_finishes(void **state)
{
    bench *setup = *state;
    char why[256] = "";
    run_figures figures = {
        .phase = PHASE_TRAINING, .phase_ns = 10 * SECOND, .step = 4, .step_ns = 20 * SECOND};
    assert_false(monitor_is_stuck(&setup->options, &figures, 80 * SECOND, why, sizeof why));
    assert_true(monitor_is_stuck(&setup->options, &figures, 81 * SECOND, why, sizeof why));
    assert_non_null(strstr(why,
                           "for 61 s no step has finished (metrics.step_timeout 60 s); the run "
                           "is training, and its last step was 4"));
    figures.phase = PHASE_EVALUATING; /* an evaluation has the same time from its beginning on */
    figures.phase_ns = 75 * SECOND;
    assert_false(monitor_is_stuck(&setup->options, &figures, 135 * SECOND, why, sizeof why));
    assert_true(monitor_is_stuck(&setup->options, &figures, 136 * SECOND, why, sizeof why));
    assert_tells(setup, "/healthz", 200, "ok\n");
    setup->options.metrics_step_timeout = -1; /* as if a long time had passed */
    assert_tells(setup, "/healthz", 503, "no step has finished");
}

static void test_answer__names_its_paths(void **state)
{
    bench *setup = *state;
    assert_tells(setup, "/", 200, "<a href=\"/metrics\">");
    assert_tells(setup, "/", 200, "<a href=\"/healthz\">");
    assert_tells(setup, "/readyz", 404, "/metrics /healthz\n");
}

static void test_monitor__none_without_an_address(void **state)
{
    (void)state;
    const conf options = {.metrics_trainer_listen = ""};
    const step_report step = step_of(1);
    monitor *none = NULL;
    assert_ok(monitor_new(&options, &none));
    assert_null(none);
    monitor_phase(none, PHASE_SAVING);
    monitor_step(none, &step);
    monitor_line(none, &(line_rates){0});
    monitor_saved(none, 1, 1, ST_OK);
    monitor_free(&none);
}

static void test_monitor__a_port_in_use_is_told(void **state)
{
    bench *setup = *state;
    monitor *other = NULL;
    assert_fails(ST_UNAVAILABLE, monitor_new(&setup->options, &other), "metrics.trainer_listen");
    assert_null(other);
}

static void *scrape(void *user)
{
    bench *setup = user;
    for (int i = 0; i < 50; i++) {
        free(asked(setup, "/metrics", 200));
        free(asked(setup, "/healthz", 200));
    }
    return NULL;
}

/* ThreadSanitizer watches this one. */
static void test_monitor__steps_and_scrapes_at_once(void **state)
{
    bench *setup = *state;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, scrape, setup), 0);
    for (int64_t i = 1; i <= 2000; i++) {
        const step_report step = step_of(i);
        monitor_step(setup->watch, &step);
        monitor_line(setup->watch, &(line_rates){(double)i, 0.5, 1, 2});
        monitor_saved(setup->watch, i, 1, ST_OK);
        monitor_phase(setup->watch, PHASE_TRAINING);
    }
    pthread_join(thread, NULL);
    assert_tells(setup, "/metrics", 200, "\ntrainer_steps_total 2000\n");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_monitor, teardown_monitor)
    const struct CMUnitTest tests[] = {
        TEST(test_metrics__sums_and_the_last_step),
        TEST(test_metrics__lines_evaluations_and_saves),
        TEST(test_healthz__is_503_once_no_step_finishes),
        TEST(test_answer__names_its_paths),
        cmocka_unit_test(test_monitor__none_without_an_address),
        TEST(test_monitor__a_port_in_use_is_told),
        TEST(test_monitor__steps_and_scrapes_at_once),
    };
    return cmocka_run_group_tests_name("monitor", tests, NULL, NULL);
}
