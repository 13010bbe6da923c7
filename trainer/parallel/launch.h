/* launch.h: --nproc N: starts the ranks of this machine itself. */
#ifndef TESSERA_PARALLEL_LAUNCH_H
#define TESSERA_PARALLEL_LAUNCH_H

#include "common/conf.h"

/* Takes "--nproc N" out of argv; *out is 0 where it is not there. ST_USAGE for a bad N. */
WARN_UNUSED status launch_take(int *argc, char **argv, int *out);

/* This program again, with these arguments (argv[0]: the verb), as n ranks. On CPUs by Open MPI's
 * mpirun, below this process, which hands SIGTERM and SIGINT to the ranks and leaves with the code
 * of the first that failed. c says what it runs on. */
WARN_UNUSED status launch_ranks(const conf *c, int n, int argc, char **argv);

#endif
