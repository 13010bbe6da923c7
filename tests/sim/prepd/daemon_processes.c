/* SPDX-License-Identifier: Apache-2.0 */
/* daemon_processes.c: the processes that the core of a simulated daemon starts and ends. */
#include <string.h>

#include "tests/sim/prepd/daemon_world.h"
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/people.h"

static bool has_no_process(sim_daemon *daemon)
{
    const bool none = daemon->no_process;
    daemon->no_process = false;
    return none;
}

/* Whether one of its local workers is on bad memory. There is never a second one: what two of three
 * say is believed. */
static bool any_flips(const sim_daemon *daemon)
{
    const simulation *sim = daemon->sim;
    for (int i = 0; i < sim->n_workers; i++)
        if (sim->worker[i]->bent == BENT_FLIPS && sim->worker[i]->daemon == daemon->number &&
            sim->worker[i]->state != WORKER_GONE)
            return true;
    return false;
}

static worker_bent bent_of_local(const sim_daemon *daemon)
{
    static const worker_bent of[] = {[HOPELESS_WORKERS_SAY] = BENT_CANNOT_BEGIN,
                                     [HOPELESS_WORKERS_DIE] = BENT_DIES_EARLY,
                                     [HOPELESS_WORKERS_DIFFER] = BENT_OTHER_DECODER,
                                     [HOPELESS_PRINTS_DIE] = BENT_HONEST,
                                     [HOPELESS_PRINTS_SAY] = BENT_HONEST};
    if (daemon->sim->now_ns < daemon->bad_until_ns)
        return daemon->bad_bent;
    const sim_rules *rules = &daemon->sim->rules;
    if (rules->flips && !any_flips(daemon) && daemon->sim->now_ns < daemon->sim->calm_ns &&
        sim_random_chance(&daemon->sim->lies, 1, 2))
        return BENT_FLIPS;
    return rules->slow_local ? BENT_SLOW : of[rules->hopeless];
}

status daemon_start_worker(void *user, char out_ticket[TICKET_TEXT], pid_t *out_pid)
{
    OUTSIDE_CORE;
    sim_daemon *daemon = user;
    daemon->unstarted = has_no_process(daemon);
    if (daemon->unstarted)
        return FAIL(ST_OS, "no process is left");
    const int number = worker_start(daemon->sim, daemon->number, -1, 0, bent_of_local(daemon));
    sim_worker *made = daemon->sim->worker[number];
    const uint64_t luck = sim_random_mix(daemon->sim->seed ^ (uint64_t)made->pid << 20);
    snprintf(made->ticket, sizeof made->ticket, "%016llx%016llx", (unsigned long long)luck,
             (unsigned long long)sim_random_mix(luck));
    memcpy(out_ticket, made->ticket, sizeof made->ticket);
    *out_pid = made->pid;
    return ST_OK;
}

status daemon_start_prints(void *user, const char *only, pid_t *out_pid)
{
    OUTSIDE_CORE;
    sim_daemon *daemon = user;
    simulation *sim = daemon->sim;
    if (has_no_process(daemon))
        return FAIL(ST_OS, "no process is left");
    for (int k = 0; k < N_PRINTS; k++)
        daemon->prints_wanted[k] = strstr(only, print_names[k]) != NULL;
    *out_pid = daemon->prints_pid = ++sim->next_pid;
    sim_queue_put(&sim->queue,
                  (sim_event){.at_ns = sim->now_ns + sim_random_tail(&sim->delays, MS, 300 * MS),
                              .kind = EVENT_PRINTS,
                              .who = daemon->number,
                              .word = *out_pid});
    return ST_OK;
}

/* The core kills only a child that hangs, that someone stopped, or that is not to be waited for. */
static void check_kill(const sim_daemon *daemon, int number)
{
    const sim_worker *worker = daemon->sim->worker[number];
    const bool works = worker->state == WORKER_IDLE || worker->state == WORKER_BUSY;
    if (works && !worker->stopped && !worker->job.frozen && !worker->breached &&
        !daemon->stopping && !daemon->state->stopping &&
        daemon->sim->rules.weight[FAULT_JUMP] == 0 &&
        daemon->sim->rules.weight[FAULT_NO_MEMORY] == 0)
        sim_break(daemon->sim, INV_PROCESSES, "the core kills pid %d, which is at work",
                  (int)worker->pid);
    if (works && worker->asked_ns > 0 && daemon->sim->now_ns - worker->asked_ns < 2 * SECOND &&
        !worker->stopped && !daemon->state->stop_now && daemon->sim->rules.weight[FAULT_JUMP] == 0)
        sim_break(daemon->sim, INV_PROCESSES, "the core kills pid %d, which it has asked to leave",
                  (int)worker->pid);
}

void daemon_end_process(void *user, pid_t pid, bool at_once)
{
    OUTSIDE_CORE;
    sim_daemon *daemon = user;
    int number;
    if (pid > 0 && pid == daemon->prints_pid)
        return; /* it ends by itself */
    if (!worker_of_pid(daemon->sim, pid, &number)) {
        sim_break(daemon->sim, INV_PROCESSES, "the core ends process %d, which is not its own",
                  (int)pid);
        return;
    }
    if (at_once)
        check_kill(daemon, number);
    if (at_once)
        worker_end(daemon->sim, number, PROC_END_OUTSIDE, -1, "signal 9");
    else
        worker_ask_to_leave(daemon->sim, number);
}
