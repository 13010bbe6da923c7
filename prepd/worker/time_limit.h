/* time_limit.h: a worker's own limit on one item: past it, it ends by SIGALRM.
 *
 * The limit is a number of ticks of a timer. Ticks that fall due while the process is stopped come
 * as one, so a worker that somebody stops for an hour is not mistaken for one that hangs. Whoever
 * sees the process end tells the two apart (proc_end_of); its time is measured where it runs, so a
 * slow link does not count. What is tried again inside an item waits within its limit. */
#ifndef TESSERA_PREPD_WORKER_TIME_LIMIT_H
#define TESSERA_PREPD_WORKER_TIME_LIMIT_H

#include <stdbool.h>

#include "common/base/status.h"

/* Once per process; the limit holds for the items begun from now on. */
WARN_UNUSED status time_limit_install(double seconds);
void time_limit_start(void); /* an item begins */
void time_limit_stop(void);  /* nothing is in work */

/* Before something is tried again: waits, longer each time of an item, an eighth of the limit in
 * all and a few seconds at most. False: that is used up, or there is no limit. */
bool time_limit_wait(void);

#endif
