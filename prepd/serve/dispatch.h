/* dispatch.h: the daemon: one thread, one loop, no image library.
 *
 *   consumers  ROUTER  prepd.endpoint            HELLO, CREDIT, BYE  <->  WELCOME, ROW, END, ERROR
 *   workers    ROUTER  prepd.endpoint .workers   JOIN, ON, ROW, RECORDS, FAILED  <->  TERMS, LEASE
 *   control    ROUTER  prepd.endpoint .control   COMMAND  <->  ANSWER
 *   signals    signalfd                          TERM: drain; INT: clean stop; either twice: at
 * once; HUP metrics    HTTP    metrics.listen            GET /metrics /healthz /readyz
 */
#ifndef TESSERA_PREPD_SERVE_DISPATCH_H
#define TESSERA_PREPD_SERVE_DISPATCH_H

#include <stdbool.h>

#include "common/conf/conf.h"
#include "common/base/status.h"

/* Serves until stopped by a signal, drained, or failed. ST_OK after a clean stop. quiet: no
 * progress bar. for_command: the one consumer is the command that started this daemon, which tells
 * itself why it is refused. The conf is borrowed and changed by SIGHUP, which resolves the args (as
 * the verb got them) again; what may change is listed in reload.c. */
WARN_UNUSED status dispatch_run(conf *c, char *const *args, int n_args, bool quiet,
                                bool for_command);

#endif
