/* SPDX-License-Identifier: Apache-2.0 */
/* turns.h: what the bench programs share. Each program is started once and waits on its standard
 * input, where a line means one timed turn. tests/bench/prepd/run gives turns to one after the
 * other, so that a machine that others use is equally bad to all of them. */
#ifndef TESSERA_TESTS_BENCH_PREPD_TURNS_H
#define TESSERA_TESTS_BENCH_PREPD_TURNS_H

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/status.h"

/* Ends the program with the thread's note if the status is not OK. */
static inline void must(status st)
{
    if (st == ST_OK)
        return;
    fprintf(stderr, "bench: %s\n", status_text());
    exit(status_exit_code(st));
}

/* CPU time of all threads of a process in nanoseconds, as the scheduler counts it. */
static inline int64_t cpu_of(const char *pid)
{
    char path[512];
    int64_t total = 0;
    snprintf(path, sizeof(path), "/proc/%s/task", pid);
    DIR *tasks = opendir(path);
    if (!tasks)
        must(FAIL_IN(ST_NO_INPUT, path, "the process is gone"));
    for (struct dirent *listed; (listed = readdir(tasks));) {
        long long ns = 0;
        snprintf(path, sizeof(path), "/proc/%s/task/%s/schedstat", pid, listed->d_name);
        FILE *from = listed->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (from && fscanf(from, "%lld", &ns) == 1)
            total += ns;
        if (from)
            fclose(from);
    }
    closedir(tasks);
    return total;
}

/* Waits for a turn. False if the input has ended. */
static inline bool turn_begins(void)
{
    char line[64];
    return fgets(line, sizeof(line), stdin) != NULL;
}

/* Prints one line of figures for the script. cpu_ns: of the process that did the work; bytes: what
 * it sent. */
static inline void turn_ends(int64_t images, int64_t wall_ns, int64_t cpu_ns, int64_t bytes)
{
    printf("%lld %lld %lld %lld\n", (long long)images, (long long)wall_ns, (long long)cpu_ns,
           (long long)bytes);
    fflush(stdout);
}

#endif
