/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c: see pool.h.
 *
 * The ticket is one 64-bit word: the job's number in the high half, and in the low half how many of
 * its tasks are still to be taken. A thread owns a task once its compare-and-swap has lowered the
 * low half. From then on the job cannot end before that thread reports, so `tasks`, `run` and
 * `context` are safe to read; before, they are not. A latecomer finds no task left, or its swap
 * fails because the job's number has changed.
 *
 * Both halves must be one word. With the count beside the ticket, a latecomer could take one task
 * too many of the old job while the caller was writing down the next one. */
#include "trainer/device/pool.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/proc.h"

/* Up to this many values, threads cost more than they save. */
static const int64_t few_values = 1 << 22;

enum {
    SPIN_NS = 30000, /* about what it costs to wake a sleeping thread */
    SPIN_ROUND = 32, /* pauses between two readings of the clock */
    CACHE_LINE = 64
};

typedef struct helper {
    pool *pool;
    pthread_t thread;
    int number;
} helper;

struct pool {
    int threads;
    helper *helpers; /* threads - 1 of them */
    int started;
    pool_task run;
    const void *context;
    int64_t tasks;
    _Alignas(CACHE_LINE) _Atomic uint64_t ticket;
    _Alignas(CACHE_LINE) _Atomic int64_t done;
    _Alignas(CACHE_LINE) _Atomic int sleepers;
    _Atomic bool busy, caller_sleeps, stop;
    pthread_mutex_t lock;
    pthread_cond_t work, finished;
};

static void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static uint64_t job_of(uint64_t ticket)
{
    return ticket >> 32;
}

/* Takes and runs tasks of job `job` until none is left. */
static void take_tasks(pool *threads, uint64_t job, int thread)
{
    uint64_t ticket = atomic_load(&threads->ticket);
    while (job_of(ticket) == job) {
        int64_t left = (int64_t)(ticket & UINT32_MAX);
        if (left == 0)
            return;
        if (!atomic_compare_exchange_weak(&threads->ticket, &ticket, ticket - 1))
            continue;
        int64_t tasks = threads->tasks;
        threads->run(threads->context, tasks - left, thread);
        if (atomic_fetch_add(&threads->done, 1) + 1 == tasks &&
            atomic_load(&threads->caller_sleeps)) {
            pthread_mutex_lock(&threads->lock);
            pthread_cond_signal(&threads->finished);
            pthread_mutex_unlock(&threads->lock);
        }
        ticket = atomic_load(&threads->ticket);
    }
}

/* Waits for a job other than `seen`, first spinning, then asleep. Returns its number. */
static uint64_t next_job(pool *threads, uint64_t seen)
{
    for (int64_t end = clock_ns() + SPIN_NS; clock_ns() < end;)
        for (int i = 0; i < SPIN_ROUND; i++) {
            uint64_t job = job_of(atomic_load(&threads->ticket));
            if (job != seen)
                return job;
            pause_briefly();
        }
    pthread_mutex_lock(&threads->lock);
    atomic_fetch_add(&threads->sleepers, 1);
    while (job_of(atomic_load(&threads->ticket)) == seen && !atomic_load(&threads->stop))
        pthread_cond_wait(&threads->work, &threads->lock);
    atomic_fetch_sub(&threads->sleepers, 1);
    pthread_mutex_unlock(&threads->lock);
    return job_of(atomic_load(&threads->ticket));
}

static void *helper_main(void *arg)
{
    helper *thread = arg;
    for (uint64_t seen = 0; !atomic_load(&thread->pool->stop);) {
        seen = next_job(thread->pool, seen);
        take_tasks(thread->pool, seen, thread->number);
    }
    return NULL;
}

int pool_threads(const pool *threads)
{
    return threads->threads;
}

static void wait_done(pool *threads, int64_t tasks)
{
    for (int64_t end = clock_ns() + SPIN_NS; clock_ns() < end;)
        for (int i = 0; i < SPIN_ROUND; i++) {
            if (atomic_load(&threads->done) == tasks)
                return;
            pause_briefly();
        }
    pthread_mutex_lock(&threads->lock);
    atomic_store(&threads->caller_sleeps, true);
    while (atomic_load(&threads->done) != tasks)
        pthread_cond_wait(&threads->finished, &threads->lock);
    atomic_store(&threads->caller_sleeps, false);
    pthread_mutex_unlock(&threads->lock);
}

void pool_run(pool *threads, int64_t tasks, pool_task run, const void *context)
{
    assert(tasks <= UINT32_MAX);
    if (!threads || threads->started == 0 || tasks <= 1 || atomic_exchange(&threads->busy, true)) {
        for (int64_t task = 0; task < tasks; task++)
            run(context, task, 0);
        return;
    }
    uint64_t job = (job_of(atomic_load(&threads->ticket)) + 1) & UINT32_MAX;
    threads->run = run;
    threads->context = context;
    threads->tasks = tasks;
    atomic_store(&threads->done, 0);
    atomic_store(&threads->ticket, job << 32 | (uint64_t)tasks);
    if (atomic_load(&threads->sleepers) > 0) {
        pthread_mutex_lock(&threads->lock);
        pthread_cond_broadcast(&threads->work);
        pthread_mutex_unlock(&threads->lock);
    }
    take_tasks(threads, job, 0);
    wait_done(threads, tasks);
    atomic_store(&threads->busy, false);
}

int pool_share(int ranks, int most)
{
    const int share = proc_cpus_each(ranks);
    return share < most ? share : most;
}

int pool_share_of(int64_t values, int ranks, int most)
{
    return values > few_values ? pool_share(ranks, most) : 1;
}

status pool_new(int threads, pool **out)
{
    pool *made = aligned_alloc(CACHE_LINE, sizeof *made);
    helper *helpers = calloc((size_t)threads, sizeof *helpers);
    if (!made || !helpers) {
        free(made);
        free(helpers);
        return FAIL(ST_NO_MEMORY, "out of memory for %d threads", threads);
    }
    *made = (pool){.threads = threads, .helpers = helpers};
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->work, NULL);
    pthread_cond_init(&made->finished, NULL);
    /* Signals are handled by the main thread, so helpers inherit a mask that blocks all of them. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    for (int i = 0; i < threads - 1 && error == 0; i++) {
        helpers[i] = (helper){.pool = made, .number = i + 1};
        error = pthread_create(&helpers[i].thread, NULL, helper_main, &helpers[i]);
        made->started += error == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        int started = made->started;
        pool_free(&made);
        return FAIL(ST_OS, "thread %d of %d cannot be started (error %d); ask for fewer threads",
                    started + 2, threads, error);
    }
    *out = made;
    return ST_OK;
}

void pool_free(pool **pp)
{
    pool *threads = *pp;
    if (!threads)
        return;
    pthread_mutex_lock(&threads->lock);
    atomic_store(&threads->stop, true);
    pthread_cond_broadcast(&threads->work);
    pthread_mutex_unlock(&threads->lock);
    for (int i = 0; i < threads->started; i++)
        pthread_join(threads->helpers[i].thread, NULL);
    pthread_cond_destroy(&threads->finished);
    pthread_cond_destroy(&threads->work);
    pthread_mutex_destroy(&threads->lock);
    free(threads->helpers);
    free(threads);
    *pp = NULL;
}
