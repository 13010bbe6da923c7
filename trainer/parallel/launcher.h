/* launcher.h: `trainer VERB --nproc N` starts the N ranks of this machine itself.
 *
 * On CPUs it runs Open MPI's mpirun, whose engine carries the collectives there; on GPUs it starts
 * the ranks as its own children (launcher_own.h). Either way it passes SIGTERM, SIGINT and SIGHUP
 * on to the ranks and leaves with the exit code of the first rank that failed. */
#ifndef TESSERA_TRAINER_PARALLEL_LAUNCHER_H
#define TESSERA_TRAINER_PARALLEL_LAUNCHER_H

#include "common/conf/conf.h"

/* Removes "--nproc N" from argv and sets *out to N, or to 0 if it is not there. ST_USAGE if N is
 * not a number of ranks. */
WARN_UNUSED status launch_take(int *argc, char **argv, int *out);

/* Runs this program again as `ranks` ranks, which are descendants of this process, with the
 * arguments argv [argc], of which the first is the verb. Sets what `options` leaves open of device
 * and engine (engine.h). Returns ST_OK when all ranks have ended without error; does not return if
 * one failed. ST_USAGE if this process is itself a rank. */
WARN_UNUSED status launch_ranks(conf *options, int ranks, int argc, char **argv);
/* The same with a verb's arguments as they were typed. It reads the options only for what they say
 * about the ranks; the ranks read them again. `needs` is as for verb_load. `check` is given the
 * options and the number of ranks: it adds what the verb implies for them, and refuses what the
 * ranks would refuse, so that a refusal is printed once and no rank is started. */
WARN_UNUSED status launch_again(int ranks, const conf_need *needs, status (*check)(conf *, int),
                                int argc, char **argv);

#endif
