/* SPDX-License-Identifier: Apache-2.0 */
/* monitor.h: the run as an operator watches it, over HTTP at metrics.trainer_listen:
 *
 *   GET /metrics   figures for Prometheus
 *   GET /healthz   200 while steps finish, 503 with the reason once none has for
 *                  metrics.step_timeout
 *
 * The run hands over numbers as they come, by copying them under a lock that nothing waits under;
 * a separate thread makes texts of them. So answering costs the steps nothing, and a run that
 * hangs is answered for all the same. Only the first rank has a monitor. All functions but
 * monitor_new accept NULL, which is a run without one. trainer/running.md explains the figures. */
#ifndef TESSERA_TRAINER_REPORT_MONITOR_H
#define TESSERA_TRAINER_REPORT_MONITOR_H

#include "common/base/hash.h"
#include "trainer/eval/evaluate.h"
#include "trainer/run/step.h"

typedef struct monitor monitor;

/* What a run is doing. To add one, name it in monitor.c. */
typedef enum run_phase {
    PHASE_STARTING,
    PHASE_TRAINING,
    PHASE_EVALUATING,
    PHASE_SAVING,
    PHASE_ENDING,
    RUN_PHASES
} run_phase;

/* Listens at metrics.trainer_listen, and says in the log if other machines can read there; *out is
 * NULL if the option is empty. The options are borrowed. CONFIG and UNAVAILABLE as http_open. */
WARN_UNUSED status monitor_new(const conf *options, monitor **out);
void monitor_free(monitor **monitor);

void monitor_phase(monitor *monitor, run_phase phase);
/* The session is open: its model, stream, ranks and length are known. planned: bytes of memory that
 * the first rank is to take. */
void monitor_opened(monitor *monitor, const session *run, int64_t planned);
void monitor_step(monitor *monitor, const step_report *step);
/* What a log line says of the steps since the one before it: tokens a second of one device, the
 * share of its peak from 0 to 1 or NAN, and its memory in bytes. */
typedef struct line_rates {
    double tokens, mfu;
    size_t memory_used, memory_total;
} line_rates;
void monitor_line(monitor *monitor, const line_rates *rates);
void monitor_evaluated(monitor *monitor, const evaluation *result);
/* How a save ended: a checkpoint_saved (checkpoint/save/writer.h); `monitor` may be NULL here too. */
void monitor_saved(void *monitor, int64_t step, double seconds, status how);

/* An http_handler; `user` is the monitor. For tests; the thread calls it. */
int monitor_answer(void *user, const char *path, FILE *out, const char **out_type);

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
