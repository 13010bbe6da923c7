/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_child.h: a private daemon for one command.
 *
 * digest, sample, check, record and plan start a daemon of their own with the user's options and
 * become its consumer. So they see exactly what a trainer would see, and image code runs in workers
 * only. */
#ifndef TESSERA_PREPD_CLI_VERBS_CHILD_H
#define TESSERA_PREPD_CLI_VERBS_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

#include "common/conf/conf.h"
#include "common/program/verb.h"
#include "proto/session/client.h"

typedef struct child_daemon {
    pid_t pid;                    /* 0 if there is none */
    char folder[STATUS_PATH_MAX]; /* temporary, for its socket */
    char endpoint[STATUS_PATH_MAX + 16];
} child_daemon;

/* Starts `prepd serve` with the same options, on its own endpoint, with its own workers
 * and without metrics. From now on signals are noted (verbs_child.h). args [n_args] are the words
 * that the verb got (-c FILE and --section.key VALUE), `options` is what they mean. */
WARN_UNUSED status child_start(const conf *options, char *const *args, int n_args,
                               child_daemon *out);
/* Closes its consumer (NULL: none), stops it and removes its folder. note is why the command
 * failed, if it did: what the daemon has printed on stderr already is removed from it, and so is
 * the daemon's address, which the user did not choose. Does not return if a signal stopped the
 * command (verbs_child.h), so whatever is half written must be removed before. */
void child_stop(child_daemon *child, client **rows, status_note *note);

/* Connects one consumer to a stream of the child, beginning at row from_row, and waits for it as
 * long as the child lives. If the child has failed, returns the status of its exit code without a
 * note, since the child has printed the reason. */
WARN_UNUSED status child_open(child_daemon *child, const char *stream, int64_t from_row,
                              int64_t credit_bytes, client **out);

/* The same for the train stream, to ask for a report: WELCOME has the text of plan_report
 * ("report") and the time that planning took ("planning_ns"). No rows follow. */
WARN_UNUSED status child_report(child_daemon *child, client **out);

/* What making rows cannot do without: a model and data. */
extern const conf_need verb_needs_rows[];

/* Reads options into `options`, with the user's logging; `needs` are as for verb_load, and any
 * other word left in argv is refused. *out_args [*out_n_args] are the words for child_start: a heap
 * array that borrows from argv. */
WARN_UNUSED status verb_conf(int argc, char **argv, const conf_need *needs, conf *options,
                             char ***out_args, int *out_n_args);

/* ST_USAGE if text, the value of --connect, is not an endpoint. */
WARN_UNUSED status verb_endpoint(const char *text);

/* The signals that stop a command with a private daemon, so that it leaves nothing
 * behind.
 *
 * Such a command has a temporary folder, and may have a file half written. From interrupt_listen
 * on, SIGINT, SIGTERM, SIGHUP and SIGPIPE only set a flag, at which waiting for rows ends with
 * ST_STOPPED. The command then cleans up as after any failure, and interrupt_end ends the process
 * by the signal, as the shell expects. A signal that is ignored (nohup) stays so. */

bool interrupt_heard(void);

#endif
