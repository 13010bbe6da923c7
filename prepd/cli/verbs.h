/* SPDX-License-Identifier: Apache-2.0 */
/* verbs.h: the functions that carry out `prepd VERB`.
 *
 * argv[0] is the verb. --help and options that the verb does not know are handled before
 * (common/program/verb.h). A verb takes its words out of argv, prints its result on standard output
 * and returns a status, which becomes the exit code. */
#ifndef TESSERA_PREPD_CLI_VERBS_H
#define TESSERA_PREPD_CLI_VERBS_H

#include "common/json/json.h"
#include "common/base/status.h"

WARN_UNUSED status verb_serve(int argc, char **argv);       /* serve/daemon.h */
WARN_UNUSED status verb_worker(int argc, char **argv);      /* worker/worker.h */
WARN_UNUSED status verb_check(int argc, char **argv);       /* verbs_check.c */
WARN_UNUSED status verb_plan(int argc, char **argv);        /* verbs_stream.c */
WARN_UNUSED status verb_sample(int argc, char **argv);      /* verbs_stream.c */
WARN_UNUSED status verb_tokenize(int argc, char **argv);    /* verbs_tokenize.c */
WARN_UNUSED status verb_fingerprint(int argc, char **argv); /* verbs_fingerprint.c */
WARN_UNUSED status verb_digest(int argc, char **argv);      /* verbs_stream.c */
WARN_UNUSED status verb_record(int argc, char **argv);      /* verbs_stream.c */
WARN_UNUSED status verb_synth(int argc, char **argv);       /* synth/synth_verb.c */
WARN_UNUSED status verb_keygen(int argc, char **argv);      /* verbs_control.c */
WARN_UNUSED status verb_status(int argc, char **argv);      /* verbs_control.c */
WARN_UNUSED status verb_scale(int argc, char **argv);
WARN_UNUSED status verb_drain(int argc, char **argv);
WARN_UNUSED status verb_admit(int argc, char **argv);

/* Sends one command (serve/operator_commands.c) to the daemon at an endpoint on this machine and
 * parses its answer, which the caller frees. */
WARN_UNUSED status verb_ask(const char *endpoint, const char *command, json_value **out);

#endif
