/* launcher_own.h: ranks as children of this process, with torchrun's variables. For launcher.c. */
#ifndef TESSERA_TRAINER_PARALLEL_LAUNCHER_OWN_H
#define TESSERA_TRAINER_PARALLEL_LAUNCHER_OWN_H

#include <stdbool.h>

#include "common/base/status.h"

/* command: path and arguments, ends with NULL. Rank 0 listens at MASTER_ADDR and MASTER_PORT, or
 * where these are not set at a port of this machine that is free, and given to all.
 * What launch_passes_on names goes to all ranks. When one fails the others have time to say why and
 * end; then this process leaves with the code of the first. */
WARN_UNUSED status launch_own(char **command, int n, int port);

/* Whether a launcher passes a signal that it read (proc_signal_fd) on to its ranks: SIGTERM and
 * SIGINT always, SIGHUP unless this process was started to ignore it (nohup). */
bool launch_passes_on(int number);

#endif
