/* SPDX-License-Identifier: Apache-2.0 */
/* stats.h: what the schedules of a run held: events, rows, faults, and in which phase of a daemon's
 * work each kind of fault came. */
#ifndef TESSERA_TESTS_SIM_PREPD_STATS_H
#define TESSERA_TESTS_SIM_PREPD_STATS_H

#include <stdint.h>
#include <stdio.h>

#include "tests/sim/prepd/rules.h"

typedef enum sim_phase {
    PHASE_GREETING, /* a consumer waits for its WELCOME, or the data is being opened */
    PHASE_INDEX,    /* the index is being built */
    PHASE_LEASE,    /* rows are in work */
    PHASE_DELIVERY, /* a row that is made waits for its turn or its consumer */
    PHASE_DRAIN,
    PHASE_IDLE, /* nothing of the above */
    N_PHASES
} sim_phase;

extern const char *const phase_words[N_PHASES];

typedef struct sim_stats {
    uint64_t schedules, events, turns, rows, faults, rows_lied, rows_refused, records_lied,
        failures_made_up, lives, quarantined, files_sent, files_not_sent, real_schedules, real_rows,
        real_refused, started_over, held_back, no_stats, other_data;
    uint64_t other_cursors[2]; /* refused: of other data, of other weights */
    uint64_t fault_in[N_FAULTS][N_PHASES];
    uint64_t wrong_items[10]; /* items of each fate that ended or failed a worker */
    uint64_t virtual_ns;
} sim_stats; /* of counters alone: those of several processes are summed up word by word */

/* Prints each fault and phase that never came together, idleness aside, and returns how many. Every
 * such pair is possible. */
int stats_empty_pairs(const sim_stats *stats, FILE *to);

/* cpu_s, most_mib: the seconds of CPU that it took, and the memory of one process. */
void stats_print(const sim_stats *stats, double cpu_s, long most_mib, FILE *to);

#endif
