/* SPDX-License-Identifier: Apache-2.0 */
/* check_steps.h: the steps that trainer check compares: their losses and gradient norms, and how
 * they are run on several ranks, which are processes:
 *
 *   trainer check -c FILE --nproc N          compares; it starts and waits for
 *     trainer check .. --nproc N --trace F   which starts, under mpirun (parallel/launcher.h),
 *       trainer check .. --trace F           N ranks, of which rank 0 writes the trace F */
#ifndef TESSERA_TRAINER_CLI_CHECK_STEPS_H
#define TESSERA_TRAINER_CLI_CHECK_STEPS_H

#include "trainer/run/session.h"

enum { TRACE_STEPS = 64 };

typedef struct trace {
    double loss[TRACE_STEPS];
    double norm[TRACE_STEPS][1 + GROUP_COUNT]; /* of the whole gradient, then of each group */
} trace;

/* Runs steps `from` to `to`, where the first step is 1. ST_BAD_INPUT if the stream ends before
 * that. */
WARN_UNUSED status trace_steps(session *session, int64_t from, int64_t to, trace *out);
/* The largest relative difference of any loss, and of any norm, over the first `count` steps. */
void trace_compare(const trace *first, const trace *second, int64_t count, double *out_loss,
                   double *out_norm);
/* |a - b| over the larger of |a| and |b|; infinity if one of them is not a number. Letters: a, b
 * the two. */
double trace_distance(double a, double b);

/* ---- several ranks ---- */

/* Changes the options to run on one rank: every degree becomes 1. */
void check_for_one(conf *options);
/* Changes the options to run on `ranks` ranks: keeps their layout if it is one of that many, and
 * takes data-parallel shards otherwise. ST_CONFIG names what does not fit. */
WARN_UNUSED status check_for_ranks(conf *options, int ranks, layout *out);

/* Starts `ranks` ranks with these arguments, of which argv[0] is the verb, waits for them and reads
 * their trace. */
WARN_UNUSED status check_start_ranks(const conf *options, int ranks, int argc, char **argv,
                                     int64_t steps, trace *out);
/* The process in between: starts the ranks, and ends with its parent. */
WARN_UNUSED status check_launch(conf *options, int ranks, int argc, char **argv);
/* One rank: runs the steps; rank 0 writes the trace to `path`. */
WARN_UNUSED status check_as_rank(conf *options, int64_t steps, const char *path);

#endif
