/* pool.h: threads that share one piece of work at a time, made for cores that others use too.
 *
 * Work is a number of tasks; the caller and whichever helpers are awake take them one by one. The
 * caller never waits for a helper to start: if none gets a core it does everything itself, and one
 * that comes late finds nothing. It waits only for tasks a helper has begun. Helpers spin for some
 * microseconds after a job, since ops follow each other closely, then sleep.
 *
 * Why not OpenMP's threads: a team ends when all its members have run. With a decoder busy on one
 * of two cores every parallel region took 12 to 16 ms instead of 0.1 (its threads also spin for
 * milliseconds by default, and that can only be changed before main). */
#ifndef TESSERA_TRAINER_DEVICE_POOL_H
#define TESSERA_TRAINER_DEVICE_POOL_H

#include <stdint.h>

#include "common/base/status.h"

typedef struct pool pool;

/* thread: 0 (the caller) .. threads - 1; two tasks with the same number never run at once. */
typedef void (*pool_task)(const void *context, int64_t task, int thread);

/* threads counts the caller: 1 starts none. */
WARN_UNUSED status pool_new(int threads, pool **out);
void pool_free(pool **p);
int pool_threads(const pool *p);

/* Runs tasks 0 .. tasks-1 (< 2^32) and returns when all are done. A call from inside a task, or
 * while another thread's call runs, does its tasks alone. */
void pool_run(pool *p, int64_t tasks, pool_task run, const void *context);

#endif
