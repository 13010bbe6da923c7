/* SPDX-License-Identifier: Apache-2.0 */
/* stats.c: prints what a run held. */
#include "tests/sim/prepd/stats.h"

const char *const phase_words[N_PHASES] = {"greeting", "index", "lease",
                                           "delivery", "drain", "idle"};

void stats_print(const sim_stats *of, double cpu_s, long most_mib, FILE *to)
{
    const double count = of->schedules > 0 ? (double)of->schedules : 1;
    fprintf(
        to,
        "of a schedule: %.0f events (%.0f turns), %.1f rows, %.1f faults, %.1f lives of daemons, "
        "%.0f virtual seconds\n",
        (double)of->events / count, (double)of->turns / count, (double)of->rows / count,
        (double)of->faults / count, (double)of->lives / count,
        (double)of->virtual_ns / 1e9 / count);
    fprintf(to,
            "%.0f events a second of CPU; %ld MiB of memory; bad samples in rows %llu; rows with "
            "lies %llu, refused %llu; "
            "false records told %llu; "
            "good samples called bad %llu\n",
            (double)of->events / (cpu_s > 0 ? cpu_s : 1), most_mib,
            (unsigned long long)of->quarantined, (unsigned long long)of->rows_lied,
            (unsigned long long)of->rows_refused, (unsigned long long)of->records_lied,
            (unsigned long long)of->failures_made_up);
    fprintf(to, "files sent %llu, not there or unreadable %llu\n",
            (unsigned long long)of->files_sent, (unsigned long long)of->files_not_sent);
    fprintf(to, "schedules with real rows %llu; real rows %llu, refused %llu\n",
            (unsigned long long)of->real_schedules, (unsigned long long)of->real_rows,
            (unsigned long long)of->real_refused);
    fprintf(to,
            "held-out rows from the start again %llu; credit held back %llu; cursors refused: of "
            "other data %llu, of other weights %llu; data that had changed %llu; sizes that could "
            "not be asked for %llu\n",
            (unsigned long long)of->started_over, (unsigned long long)of->held_back,
            (unsigned long long)of->other_cursors[0], (unsigned long long)of->other_cursors[1],
            (unsigned long long)of->other_data, (unsigned long long)of->no_stats);
    fprintf(to, "%-58s", "");
    for (int k = 0; k < N_PHASES; k++)
        fprintf(to, "%10s", phase_words[k]);
    fprintf(to, "\n");
    for (int i = 0; i < N_FAULTS; i++) {
        fprintf(to, "%-58s", fault_words[i]);
        for (int k = 0; k < N_PHASES; k++)
            fprintf(to, "%10llu", (unsigned long long)of->fault_in[i][k]);
        fprintf(to, "\n");
    }
}

int stats_empty_pairs(const sim_stats *of, FILE *to)
{
    int empty = 0;
    for (int i = 0; i < N_FAULTS; i++)
        for (int k = 0; k < PHASE_IDLE; k++) {
            if (of->fault_in[i][k] > 0)
                continue;
            fprintf(to, "in no schedule: %s, in the phase %s\n", fault_words[i], phase_words[k]);
            empty++;
        }
    return empty;
}
