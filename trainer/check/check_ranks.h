/* check_ranks.h: the steps of trainer check on several ranks, in processes of their own.
 *
 *   trainer check -c FILE --nproc N          compares; it starts, and waits for,
 *     trainer check .. --nproc N --trace F   which starts, below mpirun (parallel/launcher.h),
 *       trainer check .. --trace F           N ranks; rank 0 writes what they found */
#ifndef TESSERA_TRAINER_CHECK_RANKS_H
#define TESSERA_TRAINER_CHECK_RANKS_H

#include "trainer/check/check_trace.h"

/* The options for one rank: every degree 1. */
void check_for_one(conf *c);
/* The options for n ranks: the layout that they name where it is one of n, else data-parallel
 * shards. ST_CONFIG names what does not fit. */
WARN_UNUSED status check_for_ranks(conf *c, int n, layout *out);

/* Runs n ranks with these arguments (argv[0]: the verb) and reads what they found. */
WARN_UNUSED status check_start_ranks(const conf *c, int n, int argc, char **argv, int64_t steps,
                                     trace *out);
/* The process between: starts the ranks. */
WARN_UNUSED status check_launch(conf *c, int n, int argc, char **argv);
/* A rank: its steps; rank 0 writes the file. */
WARN_UNUSED status check_as_rank(conf *c, int64_t steps, const char *path);

#endif
