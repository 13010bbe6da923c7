/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h: threads that share one piece of work at a time, made for cores that other processes use
 * too.
 *
 * A piece of work is a number of tasks. The caller and the helper threads that are awake take tasks
 * one by one. The caller never waits for a helper to start: if none gets a core, the caller does
 * everything itself, and a helper that comes late finds nothing left. The caller waits only for
 * tasks that a helper has begun. After a job, helpers spin for some microseconds, because ops
 * follow each other closely; then they sleep.
 *
 * Why not OpenMP's threads: an OpenMP team ends only when all of its members have run. With a
 * decoder busy on one of two cores, every parallel region took a hundred times as long as on idle
 * cores. OpenMP's threads also spin for milliseconds by default, which can only be changed before
 * main. */
#ifndef TESSERA_TRAINER_DEVICE_POOL_H
#define TESSERA_TRAINER_DEVICE_POOL_H

#include <stdint.h>

#include "common/base/status.h"

/* A pool of helper threads. One job runs at a time. */
typedef struct pool pool;

/* Does one task of a job. `thread` is 0 for the caller and up to threads - 1 for helpers. Two tasks
 * with the same thread number never run at once, so it may choose a scratch area. */
typedef void (*pool_task)(const void *context, int64_t task, int thread);

/* This process's CPUs, divided among the job's `ranks` on this machine (proc_cpus_each): at most
 * `most`. */
int pool_share(int ranks, int most);
/* How many threads fill so many values of a model from files or a generator: pool_share, but 1 if
 * the values are so few that threads cost more than they save. */
int pool_share_of(int64_t values, int ranks, int most);

/* Starts threads - 1 helpers, since `threads` counts the caller. NO_MEMORY; OS if a thread
 * cannot be started. */
WARN_UNUSED status pool_new(int threads, pool **out);
void pool_free(pool **pool);
int pool_threads(const pool *pool);

/* Runs tasks 0 to tasks - 1 (tasks < 2^32) and returns when all are done. A call from inside a
 * task, or while another thread's call runs, does its tasks on the calling thread alone; so does
 * one with no pool (NULL). */
void pool_run(pool *pool, int64_t tasks, pool_task run, const void *context);

#endif
