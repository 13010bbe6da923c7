/* stop.h: the one place that hears SIGTERM, SIGINT and SIGHUP. The first sets a flag that the step
 * and every wait ask for; the same one again does what the system does by default. (Not the
 * other one: an interrupted launcher passes SIGTERM on to ranks that heard the terminal's SIGINT.)
 * SIGHUP never does: a terminal that hangs up may send it twice, by its shell and by the kernel,
 * and the checkpoint must not be lost to the second. Where SIGHUP was ignored when the process
 * started (nohup), it stays ignored.
 *
 * Of several ranks none may stop where others go on: a step tells all of them that one has heard a
 * signal (step_report.stop), and behind the same step all are asked to stop. */
#ifndef TESSERA_TRAINER_RUN_STOP_H
#define TESSERA_TRAINER_RUN_STOP_H

#include <stdbool.h>

#include "common/base/status.h"

/* From the first signal on the process has deadline_s seconds for whatever is under way: the step,
 * a save that waits for the one before, the last save. Then it ends with the exit code of TIMEOUT;
 * what is whole on disk stands. tells: the first signal is answered with a
 * line, at once. Once in a process. */
WARN_UNUSED status stop_listen(double deadline_s, bool tells);
bool stop_asked(void);
/* The same deadline for a run that ends by itself. */
void stop_by_deadline(void);

bool stop_heard(void);    /* by this process */
void stop_together(void); /* from here on stop_asked waits for stop_agree */
void stop_agree(void);

#endif
