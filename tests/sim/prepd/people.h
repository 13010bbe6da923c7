/* SPDX-License-Identifier: Apache-2.0 */
/* people.h: those who take part in a schedule, as the network and the event loop call them. */
#ifndef TESSERA_TESTS_SIM_PREPD_PEOPLE_H
#define TESSERA_TESTS_SIM_PREPD_PEOPLE_H

#include "tests/sim/prepd/sim.h"

/* A message has reached the far end of a link; it may move the message's parts out. */
void people_message(simulation *sim, int link, wire_msg *message);
/* The far end of a link sees that the connection has ended. */
void people_ended(simulation *sim, int link);

/* --- daemons.c, daemon_events.c --- */
void daemon_start(simulation *sim, int number);
/* The first daemon has built the index: the others find it in the cache that they share. */
void daemons_start_others(simulation *sim);
void daemon_message(sim_daemon *to, const sim_link *link, wire_msg *message);
void daemon_event(simulation *sim, const sim_event *event);
void daemon_turn(sim_daemon *daemon);
/* The process ends at once; it comes back later. */
void daemon_kill(sim_daemon *daemon, bool keep_cache);
void daemon_signal(sim_daemon *daemon, signal_kind kind);
void daemon_reload(sim_daemon *daemon);
/* An operator's command. */
void daemon_command(sim_daemon *daemon, const char *format, int number);
void daemon_child_paused(sim_daemon *daemon, pid_t pid);
/* A command asks what the stream looks like. */
void daemon_ask_for_report(sim_daemon *daemon);
/* The process that makes fingerprints dies, where it runs and has not died too often in a row. */
bool daemon_may_lose_prints(const sim_daemon *daemon);
void daemon_lose_prints(sim_daemon *daemon);
void daemon_rude_peer(sim_daemon *daemon);
int64_t daemon_now(const sim_daemon *daemon); /* by its own clock */
/* Tells the core what time it is, before anything is given to it. */
void daemon_tell_time(sim_daemon *daemon);
/* The core is given something; it is done with it. In between it may be refused memory. */
void daemon_enter(sim_daemon *daemon);
void daemon_leave(sim_daemon *daemon);
/* Has the daemon's loop turn after what was just given to it. */
void daemon_wake(sim_daemon *daemon);
void daemon_free(sim_daemon *daemon);

/* --- workers.c --- */
/* Starts a worker process; returns its number. supervisor -1: a child of the daemon. */
int worker_start(simulation *sim, int daemon, int supervisor, int place, worker_bent bent);
void worker_message(simulation *sim, int number, wire_msg *message);
void worker_event(simulation *sim, const sim_event *event);
/* The process ends. */
void worker_end(simulation *sim, int number, proc_end how, int code, const char *what);
/* SIGTERM. */
void worker_ask_to_leave(simulation *sim, int number);
int worker_find(const simulation *sim, pid_t pid); /* its number; -1: it is no worker's */
/* The worker that has this seat, whatever it says that it is; NULL: it is none. */
sim_worker *worker_of_seat(const simulation *sim, const worker_seat *seat, int *out_number);
/* Whether what the worker says decides: a local one, or one of a trusted key. */
bool worker_decides(const simulation *sim, const sim_worker *worker);
sim_worker *worker_of_pid(simulation *sim, pid_t pid, int *out_number); /* NULL: no local one */

/* Has it go on after a while; what was planned for it before does not happen. */
void worker_go_on_after(simulation *sim, int number, int64_t ns);
/* Its connection has ended. */
void worker_lost(simulation *sim, int number);
/* Reads the messages that wait, unless it is at work. */
void worker_read(simulation *sim, int number);
/* It has answered its lease. */
void worker_done(simulation *sim, int number);

/* --- worker_joining.c --- */
/* Connects, and says JOIN; or tries again later. */
void worker_connect(simulation *sim, int number);
void worker_send_join(simulation *sim, sim_worker *worker);
/* Joins and leaves a few times. False if it has done so often enough. */
bool worker_floods(simulation *sim, int number);
/* Loads what TERMS name; other TERMS than before make it start anew. */
void worker_take_terms(simulation *sim, int number, const heard *text);

/* --- work.c --- */
/* Takes up a lease; takes its text, and the parts of the message. */
void work_begin(simulation *sim, int number, const frame *head, heard *text, wire_msg *message);
void work_go_on(simulation *sim, int number);

/* --- sim_supervisors.c --- */
void supervisor_start(simulation *sim, int number);
void supervisor_event(simulation *sim, const sim_event *event);
void supervisor_message(simulation *sim, int number, const wire_msg *message);
void supervisor_worker_ended(simulation *sim, int worker);
void supervisor_start_again(simulation *sim, int number); /* the workers that are missing */

/* --- sim_consumers.c, jobs.c --- */
void jobs_start(simulation *sim);
void rank_message(simulation *sim, int number, const wire_msg *message);
void rank_event(simulation *sim, const sim_event *event);
void rank_lost(simulation *sim, int number); /* its connection has ended */
/* The job's processes end and start again with other ranks, where all have come to. */
void job_restart(simulation *sim, int job);
bool jobs_are_done(const simulation *sim);
void jobs_free(simulation *sim);

/* --- sim_faults.c --- */
void fault_event(simulation *sim, const sim_event *event);

#endif
