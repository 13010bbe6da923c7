/* time_limit.h: a worker's own time limit on one item, past which SIGALRM ends it.
 *
 * The limit is counted in ticks of a timer. Ticks that fall due while the process is stopped arrive
 * as one, so a worker that someone stops for an hour is not taken for one that hangs. The parent
 * tells the two apart by how the process ended (proc_end_of). The time is measured in the worker,
 * so a slow connection does not count. Retries within an item wait within its limit. */
#ifndef TESSERA_PREPD_WORKER_MEDIA_TIME_LIMIT_H
#define TESSERA_PREPD_WORKER_MEDIA_TIME_LIMIT_H

#include <stdbool.h>

#include "common/base/status.h"

/* Sets the limit for items that begin from now on. Call it once in a process. */
WARN_UNUSED status time_limit_install(double seconds);
/* Begins an item. */
void time_limit_start(void);
/* Ends the time limit of the current item: nothing is in work until the next one begins. */
void time_limit_stop(void);

/* Waits before something is tried again: longer each time within an item, in all an eighth of the
 * limit, and at most a few seconds. False if that is used up or there is no limit. */
bool time_limit_wait(void);

#endif
