/* launcher.h: --nproc N: starts the ranks of this machine itself. */
#ifndef TESSERA_TRAINER_PARALLEL_LAUNCHER_H
#define TESSERA_TRAINER_PARALLEL_LAUNCHER_H

#include "common/conf/conf.h"

/* Takes "--nproc N" out of argv; *out is 0 where it is not there. ST_USAGE for a bad N. */
WARN_UNUSED status launch_take(int *argc, char **argv, int *out);

/* This program again, with these arguments (argv[0]: the verb), as n ranks below this process,
 * which hands SIGTERM and SIGINT to them and leaves with the code of the first that failed: by Open
 * MPI's mpirun where its engine carries collectives, else as children of its own (launcher_own.h).
 * c says which; what it leaves open is chosen (engine.h). */
WARN_UNUSED status launch_ranks(conf *c, int n, int argc, char **argv);
/* The same of a verb's own words: the options are read for what they say of the ranks, which read
 * them again. check: what the words mean for the options besides, and what n ranks would refuse of
 * them, so that no rank is started and the refusal is told once. */
WARN_UNUSED status launch_again(int n, status (*check)(conf *, int), int argc, char **argv);

#endif
