/* test_pool.c: the thread pool of the CPU backend runs every task exactly once, however its helper
 * threads are scheduled: asleep, late, or called from inside a task. ThreadSanitizer runs it
 * too. */
#include "tests/harness.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

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
    tally *t = (tally *)context;
    assert_in_range(thread, 0, THREADS - 1);
    assert_int_equal(atomic_fetch_add(&t->inside[thread], 1), 0);
    atomic_fetch_add(&t->seen[task], 1);
    if (t->nap_us && task % 7 == 0)
        usleep((useconds_t)t->nap_us);
    atomic_fetch_sub(&t->inside[thread], 1);
}

static void run_and_check(pool *p, tally *t, int64_t tasks)
{
    for (int64_t i = 0; i < TASKS_MAX; i++)
        atomic_store(&t->seen[i], 0);
    pool_run(p, tasks, count_task, t);
    for (int64_t i = 0; i < TASKS_MAX; i++)
        assert_int_equal(atomic_load(&t->seen[i]), i < tasks);
}

static void test_pool_run__every_task_once(void **state)
{
    (void)state;
    tally *t = calloc(1, sizeof *t);
    for (int threads = 1; threads <= THREADS; threads++) {
        pool *p = NULL;
        assert_ok(pool_new(threads, &p));
        assert_int_equal(pool_threads(p), threads);
        const int64_t tasks[] = {0, 1, 2, 3, 17, TASKS_MAX};
        for (int i = 0; i < 6; i++)
            run_and_check(p, t, tasks[i]);
        pool_free(&p);
        assert_null(p);
    }
    free(t);
}

/* Short jobs one after the other, with gaps long enough for the helpers to fall asleep. */
static void test_pool_run__many_jobs(void **state)
{
    (void)state;
    tally *t = calloc(1, sizeof *t);
    pool *p = NULL;
    assert_ok(pool_new(THREADS, &p));
    for (int i = 0; i < 2000; i++) {
        run_and_check(p, t, i % 9);
        if (i % 100 == 0)
            usleep(1000);
    }
    /* Tasks now sleep, so that the caller runs out of tasks before its helpers are done and goes to
     * sleep itself. */
    t->nap_us = 300;
    for (int i = 0; i < 20; i++)
        run_and_check(p, t, 40);
    pool_free(&p);
    free(t);
}

static void inner_task(const void *context, int64_t task, int thread)
{
    assert_int_equal(thread, 0);
    atomic_fetch_add(&((tally *)context)->seen[task], 1);
}

static void outer_task(const void *context, int64_t task, int thread)
{
    (void)thread;
    tally *t = (tally *)context;
    if (task == 3)
        pool_run(t->again, 50, inner_task, t);
}

/* A job that a task starts would wait for helpers that are waiting for that very task, so it runs
 * on the calling thread alone. */
static void test_pool_run__inside_a_task(void **state)
{
    (void)state;
    tally *t = calloc(1, sizeof *t);
    assert_ok(pool_new(2, &t->again));
    pool_run(t->again, 8, outer_task, t);
    for (int i = 0; i < 50; i++)
        assert_int_equal(atomic_load(&t->seen[i]), 1);
    pool_free(&t->again);
    free(t);
}

typedef struct tiny_job {
    int64_t tasks;
    _Atomic int64_t ran;
    _Atomic bool over, wrong;
} tiny_job;

static void tiny_task(const void *context, int64_t task, int thread)
{
    (void)thread;
    tiny_job *j = (tiny_job *)context;
    if (task >= j->tasks || atomic_load(&j->over))
        atomic_store(&j->wrong, true);
    atomic_fetch_add(&j->ran, 1);
}

/* The jobs are so small that helpers come late to nearly all of them, and their size changes from
 * one to the next. A helper that mixes up two jobs would take a task too many: the task would run
 * twice, or the caller would wait for ever (the alarm ends the program). */
static void test_pool_run__latecomers_take_nothing(void **state)
{
    (void)state;
    enum { JOBS = 300000 };
    tiny_job *jobs = calloc(JOBS, sizeof *jobs);
    pool *p = NULL;
    assert_ok(pool_new(THREADS, &p));
    alarm(500);
    for (int i = 0; i < JOBS; i++) {
        jobs[i].tasks = 2 + (i * 5) % 11;
        pool_run(p, jobs[i].tasks, tiny_task, &jobs[i]);
        atomic_store(&jobs[i].over, true);
    }
    alarm(0);
    pool_free(&p);
    for (int i = 0; i < JOBS; i++) {
        assert_int_equal(atomic_load(&jobs[i].ran), jobs[i].tasks);
        assert_false(atomic_load(&jobs[i].wrong));
    }
    free(jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_run__every_task_once),
        cmocka_unit_test(test_pool_run__many_jobs),
        cmocka_unit_test(test_pool_run__inside_a_task),
        cmocka_unit_test(test_pool_run__latecomers_take_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
