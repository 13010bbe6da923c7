/* supervisor.h: `prepd worker` as a user starts it: a small process that keeps workers alive.
 *
 * It starts each worker by exec and starts another when one dies. It says nothing about deaths: a
 * machine that the daemon does not control could say anything.
 *
 *   prepd worker (supervisor) --exec--> prepd worker --supervisor ID --JOIN--> dispatcher
 *
 * The supervisor touches no data and no image library. It tells the dispatcher that it is there,
 * and hears one thing from it: that the daemon is drained for good (BYE), at a time when there may
 * be no worker to hear it. */
#ifndef TESSERA_PREPD_WORKER_SUPERVISOR_H
#define TESSERA_PREPD_WORKER_SUPERVISOR_H

#include "common/base/status.h"

/* Keeps n_workers workers running for the dispatcher at this endpoint. keys may be NULL. Each is
 * started as args [n_args] (argv[0] a path, then "worker" and its options), which are borrowed.
 * Returns when all have left in good order; when one was refused because it makes other rows
 * (ST_MISMATCH), or for what an operator must mend, such as a key without the role or a poor copy
 * of the data (its status); or after a signal or the dispatcher's BYE, which let them finish what
 * they have in work. A worker that broke the protocol, and a dispatcher that went away, are waited
 * for: 10 s, doubling to 10 minutes. */
WARN_UNUSED status supervisor_run(char *const *args, int n_args, int n_workers,
                                  const char *endpoint, const char *keys);

#endif
