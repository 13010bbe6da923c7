/* monitor_text.h: what a monitor knows, and the texts that are made of it. Internal to monitor.c
 * and monitor_text.c. */
#ifndef TESSERA_TRAINER_REPORT_MONITOR_TEXT_H
#define TESSERA_TRAINER_REPORT_MONITOR_TEXT_H

#include "common/base/hash.h"
#include "trainer/report/monitor.h"

/* Counts are of this process; times are clock_ns. */
typedef struct run_figures {
    run_phase phase;
    int64_t phase_ns; /* when it began */
    int64_t ranks, steps_planned, planned_bytes;
    char stream[HASH_TEXT]; /* the id of the stream; "" for a recording */
    /* of the last finished step; step 0: none yet */
    int64_t step, step_ns, bad_samples;
    double loss, grad_norm, lr;
    /* sums over the finished steps and all ranks */
    int64_t steps, skipped, tokens, targets, samples, images, wait_ns;
    bool has_line;
    line_rates rates;
    bool is_evaluated;
    double held_out_loss, held_out_accuracy; /* from 0 to 1 */
    int64_t saved, unsaved;                  /* checkpoints that were written, and that were not */
    int64_t saved_step, saved_ns;            /* of the last one that was written */
    double saved_seconds;
} run_figures;

/* Prints all figures for Prometheus. */
void monitor_print(FILE *out, const conf *options, const run_figures *figures, int64_t now_ns);
/* Writes why the run is not healthy and returns true; false if it is. */
bool monitor_is_stuck(const conf *options, const run_figures *figures, int64_t now_ns, char *out,
                      size_t size);

#endif
