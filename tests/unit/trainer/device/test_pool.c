/* SPDX-License-Identifier: Apache-2.0 */
/* test_pool.c: the thread pool of the CPU backend runs every task exactly once, however its helper
 * threads are scheduled: asleep, late, or called from inside a task. ThreadSanitizer runs it
 * too. */
#include "tests/harness.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/proc.h"
#include "trainer/device/pool.h"

enum { THREADS = 4, TASKS_MAX = 3000 };

typedef struct tally {
    _Atomic int seen[TASKS_MAX];
    _Atomic int inside[THREADS]; /* tasks now running under each thread number */
    pool *again;                 /* if not NULL, a task starts a job on this pool */
    int nap_us;
} tally;

static void count_task(const void *context, int64_t task, int thread)
{
    tally *tallied = (tally *)context;
    assert_in_range(thread, 0, THREADS - 1);
    assert_int_equal(atomic_fetch_add(&tallied->inside[thread], 1), 0);
    atomic_fetch_add(&tallied->seen[task], 1);
    if (tallied->nap_us && task % 7 == 0)
        usleep((useconds_t)tallied->nap_us);
    atomic_fetch_sub(&tallied->inside[thread], 1);
}

static void run_and_check(pool *threads, tally *tallied, int64_t tasks)
{
    for (int64_t i = 0; i < TASKS_MAX; i++)
        atomic_store(&tallied->seen[i], 0);
    pool_run(threads, tasks, count_task, tallied);
    for (int64_t i = 0; i < TASKS_MAX; i++)
        assert_int_equal(atomic_load(&tallied->seen[i]), i < tasks);
}

static void test_pool_run__every_task_once(void **state)
{
    (void)state;
    tally *tallied = calloc(1, sizeof *tallied);
    for (int threads = 1; threads <= THREADS; threads++) {
        pool *workers = NULL;
        assert_ok(pool_new(threads, &workers));
        assert_int_equal(pool_threads(workers), threads);
        const int64_t tasks[] = {0, 1, 2, 3, 17, TASKS_MAX};
        for (int i = 0; i < 6; i++)
            run_and_check(workers, tallied, tasks[i]);
        pool_free(&workers);
        assert_null(workers);
    }
    free(tallied);
}

/* Short jobs one after the other, with gaps long enough for the helpers to fall asleep. */
static void test_pool_run__many_jobs(void **state)
{
    (void)state;
    tally *tallied = calloc(1, sizeof *tallied);
    pool *workers = NULL;
    assert_ok(pool_new(THREADS, &workers));
    for (int i = 0; i < 2000; i++) {
        run_and_check(workers, tallied, i % 9);
        if (i % 100 == 0)
            usleep(1000);
    }
    /* Tasks now sleep, so that the caller runs out of tasks before its helpers are done and goes to
     * sleep itself. */
    tallied->nap_us = 300;
    for (int i = 0; i < 20; i++)
        run_and_check(workers, tallied, 40);
    pool_free(&workers);
    free(tallied);
}

static void inner_task(const void *context, int64_t task, int thread)
{
    assert_int_equal(thread, 0);
    atomic_fetch_add(&((tally *)context)->seen[task], 1);
}

static void outer_task(const void *context, int64_t task, int thread)
{
    (void)thread;
    tally *tallied = (tally *)context;
    if (task == 3)
        pool_run(tallied->again, 50, inner_task, tallied);
}

/* A job that a task starts would wait for helpers that are waiting for that very task, so it runs
 * on the calling thread alone. */
static void test_pool_run__inside_a_task(void **state)
{
    (void)state;
    tally *tallied = calloc(1, sizeof *tallied);
    assert_ok(pool_new(2, &tallied->again));
    pool_run(tallied->again, 8, outer_task, tallied);
    for (int i = 0; i < 50; i++)
        assert_int_equal(atomic_load(&tallied->seen[i]), 1);
    pool_free(&tallied->again);
    free(tallied);
}

typedef struct tiny_job {
    int64_t tasks;
    _Atomic int64_t ran;
    _Atomic bool over, wrong;
} tiny_job;

static void tiny_task(const void *context, int64_t task, int thread)
{
    (void)thread;
    tiny_job *jobs = (tiny_job *)context;
    if (task >= jobs->tasks || atomic_load(&jobs->over))
        atomic_store(&jobs->wrong, true);
    atomic_fetch_add(&jobs->ran, 1);
}

/* The jobs are so small that helpers come late to nearly all of them, and their size changes from
 * one to the next. A helper that mixes up two jobs would take a task too many: the task would run
 * twice, or the caller would wait for ever (the alarm ends the program). */
static void test_pool_run__latecomers_take_nothing(void **state)
{
    (void)state;
    enum { JOBS = 300000 };
    tiny_job *jobs = calloc(JOBS, sizeof *jobs);
    pool *workers = NULL;
    assert_ok(pool_new(THREADS, &workers));
    alarm(500);
    for (int i = 0; i < JOBS; i++) {
        jobs[i].tasks = 2 + (i * 5) % 11;
        pool_run(workers, jobs[i].tasks, tiny_task, &jobs[i]);
        atomic_store(&jobs[i].over, true);
    }
    alarm(0);
    pool_free(&workers);
    for (int i = 0; i < JOBS; i++) {
        assert_int_equal(atomic_load(&jobs[i].ran), jobs[i].tasks);
        assert_false(atomic_load(&jobs[i].wrong));
    }
    free(jobs);
}

/* Ranks of a machine divide its CPUs, and no rank is left without a thread. */
static void test_pool_share__divides_the_cpus(void **state)
{
    (void)state;
    const int cpus = proc_cpus();
    const int64_t many = 1 << 23, few = 1 << 20;
    int all = 0;
    assert_int_equal(pool_share(1, 1000000), cpus);
    assert_int_equal(pool_share(0, 1000000), cpus);
    assert_int_equal(pool_share(1, 1), 1);
    assert_int_equal(pool_share(cpus, 16), 1);
    assert_int_equal(pool_share(8 * cpus, 16), 1);
    for (int rank = 0; rank < cpus; rank++)
        all += pool_share(cpus, 16);
    assert_int_equal(all, cpus);
    assert_int_equal(pool_share_of(many, 1, 1000000), cpus);
    assert_int_equal(pool_share_of(many, cpus, 16), 1);
    assert_int_equal(pool_share_of(few, 1, 16), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_run__every_task_once),
        cmocka_unit_test(test_pool_run__many_jobs),
        cmocka_unit_test(test_pool_run__inside_a_task),
        cmocka_unit_test(test_pool_run__latecomers_take_nothing),
        cmocka_unit_test(test_pool_share__divides_the_cpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
