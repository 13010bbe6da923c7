/* launcher_own.h: starts ranks as children of this process, with the environment variables that
 * torchrun sets. For launcher.c. */
#ifndef TESSERA_TRAINER_PARALLEL_LAUNCHER_OWN_H
#define TESSERA_TRAINER_PARALLEL_LAUNCHER_OWN_H

#include <stdbool.h>

#include "common/base/status.h"

/* Starts `count` processes and waits for them. command: a path and its arguments, ending with NULL.
 * Rank 0 listens at MASTER_ADDR, or on loopback if that is not set, and at MASTER_PORT, or if that is not
 * set at a free port, which is passed to all ranks.
 *
 * Signals for which launch_passes_on is true go to all ranks. When a rank fails, the others have
 * ten seconds to say why and to end; then they are killed and this process exits with the code of
 * the first that failed. Returns ST_OK if all ended well. */
WARN_UNUSED status launch_own(char **command, int count);

/* Whether a launcher passes a signal that it read (proc_signal_fd) on to its ranks: SIGTERM and
 * SIGINT always, SIGHUP unless this process was started to ignore it (nohup). */
bool launch_passes_on(int number);

#endif
