/* SPDX-License-Identifier: Apache-2.0 */
/* stop.h: the only place that handles SIGTERM, SIGINT and SIGHUP.
 *
 * The first signal sets a flag that the step and every wait look at, so that the run ends in order.
 * A second SIGTERM after a SIGTERM, or SIGINT after a SIGINT, does what the system does by default.
 * A SIGTERM after a SIGINT does not, because an interrupted launcher sends SIGTERM to ranks that
 * have already received the terminal's SIGINT. A second SIGHUP changes nothing: when a terminal
 * hangs up, both its shell and the kernel may send one, and the checkpoint must not be lost to the
 * second. If SIGHUP was ignored when the process started (nohup), it stays ignored.
 *
 * With several ranks, no rank may stop while others continue. Each step therefore reports to all ranks
 * whether one of them has received a signal (step_report.stop), and all of them stop after the same
 * step. */
#ifndef TESSERA_TRAINER_RUN_STOP_H
#define TESSERA_TRAINER_RUN_STOP_H

#include <stdbool.h>

#include "common/base/status.h"

/* Installs the handlers; at most once in a process. From the first signal on the process has
 * deadline_s seconds to finish the step, a save under way and the last save. After that it exits
 * with the exit code of ST_TIMEOUT, and the checkpoints that are whole on disk remain. logs: the
 * first signal is answered at once with a log line. */
WARN_UNUSED status stop_listen(double deadline_s, bool logs);
/* True once the run should end: a signal was received or, after stop_together, the ranks have
 * agreed to stop. */
bool stop_asked(void);
/* Starts the same deadline without a signal, for a run that ends by itself. */
void stop_by_deadline(void);

bool stop_signalled(void); /* this process has received a signal, whatever the others have agreed */
void stop_together(void);  /* from now on stop_asked is false until stop_agree is called */
void stop_agree(void); /* all ranks know that one of them was asked to stop; starts the deadline */

#endif
