/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch.h: the dispatcher as a machine: it takes events and answers through outside.h.
 *
 * The shell sets the time before each event (dispatch_at) and calls dispatch_turn after those that
 * came together. Given the same events at the same times, the machine does the same, whatever runs
 * it: that is what the simulator (tests/sim) rests on. No function here waits or fails; a failure
 * that ends the run is found in `stopping` and `outcome` (dispatch_state.h). */
#ifndef TESSERA_PREPD_SERVE_CORE_STATE_DISPATCH_H
#define TESSERA_PREPD_SERVE_CORE_STATE_DISPATCH_H

#include <sys/types.h>

#include "common/base/proc.h"
#include "common/conf/conf.h"
#include "prepd/serve/core/state/outside.h"

typedef struct dispatch dispatch;

/* How a process that the core had started has ended. */
typedef struct child_end {
    proc_end how;
    int code;      /* its exit code; -1 if a signal ended it */
    char what[80]; /* in words */
} child_end;

/* What an operator asks for by a signal. */
typedef enum signal_kind {
    SIGNAL_DRAIN, /* finish what is in work, within a time limit */
    SIGNAL_STOP,
} signal_kind;

/* --- from start to end --- */

/* What the machine is like that the daemon runs on. */
typedef struct daemon_place {
    pid_t pid;           /* the daemon's */
    const char *host;    /* the machine's name */
    int cpus;            /* so many local workers if prepd.workers is 0 */
    const char *build;   /* the build id (prepd_build) */
    uint64_t secret;     /* draws the rows that are made twice (prepd.audit) */
    bool trusted;        /* some allowed key has the role trusted */
    bool for_command;    /* it serves the command that started it, and nobody else */
    bool on_one_machine; /* nothing comes or goes over a network */
} daemon_place;

/* Makes the dispatcher of these options, which it borrows and changes on options_again. */
WARN_UNUSED status dispatch_new(conf *options, const daemon_place *place, const outside *world,
                                int64_t now_ns, dispatch **out);
/* Wants the training data. section_opened tells when it is there. */
WARN_UNUSED status dispatch_open(dispatch *state);
/* The training data is open, or waited for: starts the local workers. */
WARN_UNUSED status dispatch_begin(dispatch *state);
/* Does what time and the events before demand: sends, plans, greets, gives work. */
void dispatch_turn(dispatch *state);
/* How long the turn has taken, and how much CPU time of it, for the figures. */
void dispatch_note_turn_time(dispatch *state, int64_t ns, int64_t cpu_ns);
/* Tells everyone to leave, because of state->outcome. */
void dispatch_stop(dispatch *state);
/* Whether all children have ended after that; kills those that take too long. */
bool dispatch_stopped(dispatch *state);
void dispatch_free(dispatch **out);

/* --- events --- */

void dispatch_at(dispatch *state, int64_t now_ns); /* the time; it never falls */
/* A message has come from a peer of an endpoint; its parts may be moved out of it. */
void peer_message(dispatch *state, door at, const wire_peer *from, wire_msg *message);
/* A message has come that breaks the limits of its endpoint, as the thread's note says. */
void message_refused(dispatch *state, door at, const wire_peer *from, status st);
/* The files of a section are open, its data and perhaps its index are set; or that failed, as the
 * thread's note says. */
void section_opened(dispatch *state, source *section, status st);
/* For close_section: frees what the core keeps of a section. */
void section_clear(source *section);
/* A local worker has ended. Its messages that came before are to be handled first. */
void child_ended(dispatch *state, pid_t pid, const child_end *end);
/* Someone has stopped a process (SIGSTOP). */
void child_paused(dispatch *state, pid_t pid);
/* The process that makes fingerprints: a line of its output, and its end. */
void fingerprinting_line(dispatch *state, const char *line);
void fingerprinting_ended(dispatch *state);
void signal_came(dispatch *state, signal_kind kind, const char *name);
/* The options have been read again. Those that a running daemon may change are taken over. */
void options_again(dispatch *state, const conf *now);
/* The allowed keys have been read again: whether some of them have the role trusted. */
void trust_again(dispatch *state, bool trusted);

#endif
