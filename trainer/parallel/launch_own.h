/* launch_own.h: ranks as children of this process, with torchrun's variables. For launch.c. */
#ifndef TESSERA_PARALLEL_LAUNCH_OWN_H
#define TESSERA_PARALLEL_LAUNCH_OWN_H

#include "common/status.h"

/* command: path and arguments, ends with NULL. Rank 0 listens at MASTER_ADDR and MASTER_PORT, or
 * where these are not set at a port of this machine that is free, and given to all.
 * SIGTERM, SIGINT and SIGHUP go to all ranks. When one fails the others have time to say why and
 * end; then this process leaves with the code of the first. */
WARN_UNUSED status launch_own(char **command, int n, int port);

#endif
