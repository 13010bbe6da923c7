/* supervisor.h: `prepd worker` as a user starts it: a small process that keeps workers alive.
 *
 * It starts each worker by exec, starts another one when it dies, and hands the new one the words
 * how the old one died, for its JOIN: only a parent can tell a crash from a signal that somebody
 * sent, and without that a sample that kills its worker could never be told from bad luck.
 *
 *   prepd worker (supervisor)  --exec-->  prepd worker --supervisor ID  --JOIN{supervisor,
 * before}--> dispatcher
 *
 * It touches no data and no image library. To the dispatcher it says that it is there, and hears
 * from it one thing: that it is drained for good (BYE), which its workers may not be there to hear.
 */
#ifndef TESSERA_PREPD_WORKER_SUPERVISOR_H
#define TESSERA_PREPD_WORKER_SUPERVISOR_H

#include "common/json/json.h"
#include "common/base/status.h"

/* Keeps n workers of the dispatcher at this endpoint (keys NULL: none), each started as args
 * (argv[0] a path, then "worker" and its options; [n_args] borrowed), until all have left in good
 * order, one is refused, or a signal or the dispatcher asks it to go (they finish what they have in
 * work). */
WARN_UNUSED status supervisor_run(char *const *args, int n_args, int n, const char *endpoint,
                                  const char *keys);

/* In a worker: "before":{"pid":P,"how":"crash|timeout|outside","what":TEXT} of the process it
 * replaces, if there was one; only the first call writes it. */
void supervisor_put_before(json_writer *w);

#endif
