/* turns.h: what the bench programs share. Each is started once, waits on its standard input, and a
 * line there is one timed turn: tests/bench/prepd/run gives turns to one after the other, so that a
 * machine that others use too is equally bad to all of them. */
#ifndef TESSERA_BENCH_TURNS_H
#define TESSERA_BENCH_TURNS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/status.h"

/* Ends the program with the note of what failed. */
static inline void must(status st)
{
    if (st == ST_OK)
        return;
    fprintf(stderr, "bench: %s\n", status_text());
    exit(status_exit_code(st));
}

/* Waits for a turn. False at the end of the input. */
static inline bool turn_begins(void)
{
    char line[64];
    return fgets(line, sizeof(line), stdin) != NULL;
}

/* One line of figures for the script. cpu_ns: of who did the work; bytes: that it sent. */
static inline void turn_ends(int64_t images, int64_t wall_ns, int64_t cpu_ns, int64_t bytes)
{
    printf("%lld %lld %lld %lld\n", (long long)images, (long long)wall_ns, (long long)cpu_ns,
           (long long)bytes);
    fflush(stdout);
}

#endif
