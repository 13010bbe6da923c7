/* verbs_child.h: a private daemon for one command, so that digest, sample, check, record and plan
 * see what a trainer would see, and image code runs in workers only. */
#ifndef TESSERA_PREPD_CLI_VERBS_CHILD_H
#define TESSERA_PREPD_CLI_VERBS_CHILD_H

#include <sys/types.h>

#include "common/conf/conf.h"
#include "common/program/verb.h"
#include "proto/client.h"

typedef struct child_daemon {
    pid_t pid; /* 0 = none */
    char folder[STATUS_PATH_MAX];
    char endpoint[STATUS_PATH_MAX + 16];
} child_daemon;

/* Starts `prepd serve` with the same options (args as the verb got them: -c FILE and
 * --section.key VALUE; c is what they mean) on an endpoint of its own, with workers of its own and
 * without metrics. */
WARN_UNUSED status child_start(const conf *c, char *const *args, int n_args, child_daemon *out);
/* Stops it and removes its folder. note: why the command failed, if it did: what the daemon has
 * told on stderr is taken out of it, and so is the daemon's address, which the user never gave. */
void child_stop(child_daemon *d, status_note *note);

/* The child and one consumer of a stream from the given row. Waits as long as the child lives. Of
 * one that failed by itself: its exit code as a status, and no note, as it has told why. */
WARN_UNUSED status child_open(child_daemon *d, const char *stream, int64_t from_row,
                              int64_t credit_bytes, client **out);

/* The same of the train stream, whose WELCOME then has what plan_report says ("report") and how
 * long planning took ("planning_ns"). No rows. */
WARN_UNUSED status child_report(child_daemon *d, client **out);

/* Options of options.def into c; anything left in argv is refused. The daemon's args are what was
 * given: args [n_args] borrowed from argv, heap array. */
WARN_UNUSED status verb_conf(int argc, char **argv, conf *c, char ***out_args, int *out_n_args);

/* ST_USAGE if the value of --connect is no endpoint. */
WARN_UNUSED status verb_endpoint(const char *text);

#endif
