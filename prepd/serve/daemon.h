/* SPDX-License-Identifier: Apache-2.0 */
/* daemon.h: the daemon. One thread and one loop, which never decodes an image.
 *
 *   consumers  ROUTER    prepd.endpoint           HELLO, CREDIT, BYE  <->  WELCOME, ROW, END, ERROR
 *   workers    ROUTER    the same and .workers    JOIN, ON, ROW, RECORDS, FAILED  <->  TERMS, LEASE
 *   control    ROUTER    the same and .control    COMMAND  <->  ANSWER
 *   signals    signalfd  SIGTERM drains, SIGINT stops cleanly, a second one of either stops at
 *             once, SIGHUP reads the options again
 *   metrics    HTTP      metrics.listen           GET /, /metrics, /healthz, /readyz
 *
 * With tcp, workers and control have the next two ports instead. */
#ifndef TESSERA_PREPD_SERVE_DAEMON_H
#define TESSERA_PREPD_SERVE_DAEMON_H

#include <stdbool.h>

#include "common/conf/conf.h"
#include "common/base/status.h"

/* Serves until it is stopped by a signal, drained, or fails. ST_OK after a clean stop.
 *
 * The options are borrowed, and SIGHUP changes them: it resolves args [n_args] (as the verb got
 * them) again. reload.c lists what may change. for_command: the one consumer is the command
 * that started this daemon, which prints itself why it was refused. */
WARN_UNUSED status daemon_run(conf *options, char *const *args, int n_args, bool for_command);

#endif
