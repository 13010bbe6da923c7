/* SPDX-License-Identifier: Apache-2.0 */
/* sim_faults.h: when something breaks, and what. */
#ifndef TESSERA_TESTS_SIM_PREPD_SIM_FAULTS_H
#define TESSERA_TESTS_SIM_PREPD_SIM_FAULTS_H

#include "tests/sim/prepd/sim.h"

/* Plans the first fault. */
void fault_plan(simulation *sim);
/* All jobs are done. True if nothing more is to be seen; otherwise the end goes on, by draining the
 * daemons. */
bool fault_end(simulation *sim);

/* Counts a fault that comes now, in each phase that the daemon is in which it hits. */
void fault_note(simulation *sim, sim_fault fault, const sim_daemon *hit);

/* Finds all phases that a daemon is in: out [N_PHASES]. */
void daemon_phases(const sim_daemon *daemon, bool *out);

/* The process that makes fingerprints would tell them now. True: it dies before that. A fault at
 * any other time seldom meets it, for it is soon done. */
bool fault_comes_before_prints(sim_daemon *daemon);

/* The daemon is about to look at a file. True: it cannot. Few daemons ever look at one. */
bool fault_comes_before_look(sim_daemon *daemon);

/* A rank is about to be told the end of its stream. True: it takes nothing from its socket from now
 * on, for a while. */
bool fault_comes_before_end(simulation *sim, sim_link *link);

/* fault_targets.c: chooses the worker, or the link, of a fault (-1: there is none), and does it. */
int fault_worker(simulation *sim, sim_fault fault);
void fault_do_worker(simulation *sim, sim_fault fault, int worker);
int fault_link(simulation *sim, sim_fault fault);
void fault_do_link(simulation *sim, sim_fault fault, int link);

#endif
