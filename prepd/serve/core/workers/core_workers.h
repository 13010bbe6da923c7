/* SPDX-License-Identifier: Apache-2.0 */
/* core_workers.h: who works here: seats of workers, JOIN, local processes, fingerprints. */
#ifndef TESSERA_PREPD_SERVE_CORE_WORKERS_CORE_WORKERS_H
#define TESSERA_PREPD_SERVE_CORE_WORKERS_CORE_WORKERS_H

#include "prepd/serve/core/state/dispatch_state.h"

/* seats.c */
/* Makes TERMS from the options as they are now. */
WARN_UNUSED status dispatch_make_terms(dispatch *state);
/* The same, and sends them to all workers. A worker whose terms change starts anew. */
WARN_UNUSED status dispatch_new_terms(dispatch *state);
WARN_UNUSED status seat_send_terms(dispatch *state, const wire_peer *to);
worker_seat *seat_find(dispatch *state, const wire_peer *peer);      /* NULL if there is none */
worker_seat *seat_of_number(const dispatch *state, uint64_t number); /* NULL: it has left */
/* Whether a worker was asked to start anew so lately that it will be back. */
bool seat_is_awaited(const dispatch *state);
/* Whether the worker may be given work: it is there and has shown what it is. */
bool seat_can_work(const worker_seat *worker);
worker_seat *seat_of_pid(dispatch *state, pid_t pid); /* a local one; NULL */
/* Removes a worker that has gone. Its leases are given again, and its item in work is judged by how
 * it went; `what` is the cause in words. */
void seat_gone(dispatch *state, worker_seat *worker, loss how, const char *what);
/* The worker takes too long: its leases are given again, and nothing is blamed. Its seat stays,
 * marked late, until its connection ends or it leaves. Its answer may still arrive, behind a JOIN
 * that it sent while it was idle, and must not be taken for the answer of a new worker. */
void seat_set_aside(dispatch *state, worker_seat *worker, const char *what);
/* The sample is bad from here on, for this reason, in the rows of all who have been welcomed. */
void quarantine_sample(dispatch *state, source *section, int64_t id, const char *cause);
/* Quarantines the sample that an item of a row lease is, or all branches of a prefix. */
void quarantine_item(dispatch *state, const lease *leased, int64_t item, const char *cause);
/* The worker's connection has ended after it sent what was just read, which is no breach. */
void seat_unreachable(worker_seat *worker);
/* The worker has left, or its connection has ended. If that is all that it did, it counts as a
 * breach of its key, whose other seats may go with it. */
void seat_left(dispatch *state, worker_seat *worker, loss how, const char *what);
/* Takes the lease in work from a worker that still may answer for it. */
lease *seat_take_away(worker_seat *worker);
/* Tells a worker to come back after this time, and why. */
WARN_UNUSED status seat_send_wait(dispatch *state, const wire_peer *to, int64_t wait_ns,
                                  const char *why);
void seats_send_off(dispatch *state, account *of); /* all workers of an excluded key */
/* Counts a breach of its key. True if that excludes the key: then call seats_send_off. */
bool seat_breach(const dispatch *state, const worker_seat *worker, const char *why);
/* Sends BYE to a worker that has no seat, or a supervisor: it is to come back, or not. */
#define BYE_AGAIN    "{\"again\":true}"
#define BYE_FOR_GOOD "{\"again\":false}"
void seat_send_bye(dispatch *state, const wire_peer *to, const char *json);
/* Has a worker that holds no lease leave, to come back (`again`) or for good. */
void seat_retire(dispatch *state, worker_seat *worker, bool again);
source *lease_source(const lease *leased);

/* Tells a worker, and the log, why it is dismissed: the thread's note, with this code. */
void seat_send_dismissal(dispatch *state, const worker_seat *worker, status st);
/* Sends away a worker that broke the protocol. Its lease is given again and no sample is blamed,
 * however often this happens, since such a worker proves nothing. A local worker is killed. */
void seat_dismiss(dispatch *state, worker_seat *worker, const char *what);

/* A supervisor has said that it is there. */
WARN_UNUSED status supervisor_note(dispatch *state, const wire_peer *from, const char *name);
void supervisors_tick(dispatch *state, int64_t now);
/* Forgets all supervisors; `tell`: they are to leave for good. */
void supervisors_leave(dispatch *state, bool tell);

/* joining.c */
/* Handles JOIN, a first or a further one. */
WARN_UNUSED status seat_join(dispatch *state, const wire_peer *from, const char *name,
                             const json_value *said);
/* Compares the fingerprints that a worker told with this daemon's. Sends TERMS once those of
 * pictures agree, and allows work once all do. MISMATCH: the seat is removed, and the caller tells
 * the worker. */
WARN_UNUSED status seat_prove(dispatch *state, worker_seat *worker, const char *name);

/* local.c */
void local_tick(dispatch *state, int64_t now);
void local_scale(dispatch *state, int target);
/* So many deciders are needed now; a minute after that they may leave. */
void local_need(dispatch *state, int deciders);
/* Whether local workers decide, or will once they have started. */
bool local_may_decide(const dispatch *state);
void local_follow_options(dispatch *state); /* as many as prepd.workers says */
void local_joined(dispatch *state, pid_t pid);
void local_begun(dispatch *state, pid_t pid);
/* The thread's note says why this child cannot begin. */
void local_note_cause(dispatch *state, pid_t pid);
/* The child with this ticket; NULL if there is none. */
const local_child *local_child_with(const dispatch *state, const char *ticket);
void local_kill(dispatch *state, pid_t pid); /* a child that does not keep its own time limit */
bool local_is_leaving(const dispatch *state, pid_t pid);
int local_alive(const dispatch *state);
local_child *local_child_of(const dispatch *state, pid_t pid);           /* NULL: not one of ours */
void local_end(dispatch *state, const local_child *child, bool at_once); /* if it runs */
/* A child ended before it began any work. The pool waits before it starts another, or gives up. */
void local_failed_at_start(dispatch *state, const char *what);

/* reaping.c */
/* Judges the children that have ended once their last messages were read. */
void local_reap(dispatch *state);
void local_leave(dispatch *state); /* tells all children to leave */
/* Whether all have. Those that take too long are killed. */
bool local_has_left(dispatch *state);

/* fingerprinting.c */
/* Starts the process, unless one is running or nothing is missing. */
WARN_UNUSED status fingerprinting_start(dispatch *state);
void fingerprinting_tick(
    dispatch *state); /* kills one that hangs, and starts it again where needed */

#endif
