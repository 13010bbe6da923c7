/* check_ranks.h: runs the steps of trainer check on several ranks, which are processes of their
 * own:
 *
 *   trainer check -c FILE --nproc N          compares; it starts and waits for
 *     trainer check .. --nproc N --trace F   which starts, under mpirun (parallel/launcher.h),
 *       trainer check .. --trace F           N ranks, of which rank 0 writes the trace F */
#ifndef TESSERA_TRAINER_CHECK_RANKS_H
#define TESSERA_TRAINER_CHECK_RANKS_H

#include "trainer/check/check_trace.h"

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
