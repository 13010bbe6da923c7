/* SPDX-License-Identifier: Apache-2.0 */
/* sim_faults.c: breaks things, one after another, as the rules of the schedule say. */
#include "tests/sim/prepd/sim_faults.h"

#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/people.h"
#include "tests/sim/prepd/sim_twins.h"
#include "tests/sim/prepd/wanted.h"

static void plan_next(simulation *sim)
{
    const int64_t at_ns =
        sim->now_ns + sim_random_tail(&sim->faults, MS, sim->rules.fault_every_ns);
    if (at_ns < sim->calm_ns)
        sim_queue_put(&sim->queue, (sim_event){.at_ns = at_ns, .kind = EVENT_FAULT});
}

void fault_plan(simulation *sim)
{
    int all = 0;
    for (int i = 0; i < N_FAULTS; i++)
        all += sim->rules.weight[i];
    if (all > 0)
        plan_next(sim);
}

static sim_fault draw_fault(simulation *sim)
{
    int all = 0, i = 0;
    for (int k = 0; k < N_FAULTS; k++)
        all += sim->rules.weight[k];
    int drawn = (int)sim_random_below(&sim->faults, (uint64_t)all);
    while (drawn >= sim->rules.weight[i])
        drawn -= sim->rules.weight[i++];
    return (sim_fault)i;
}

void fault_note(simulation *sim, sim_fault fault, const sim_daemon *hit)
{
    bool phases[N_PHASES];
    daemon_phases(hit, phases);
    sim->stats->faults++;
    for (int i = 0; i < N_PHASES; i++)
        sim->stats->fault_in[fault][i] += phases[i];
    sim_log_tell(&sim->log, sim->now_ns, "FAULT: %s (daemon %d)", fault_words[fault], hit->number);
}

bool fault_comes_before_prints(sim_daemon *daemon)
{
    simulation *sim = daemon->sim;
    if (sim->rules.weight[FAULT_KILL_PRINTS] == 0 || sim->now_ns >= sim->calm_ns ||
        !daemon_may_lose_prints(daemon) || !sim_random_chance(&sim->faults, 1, 2))
        return false;
    fault_note(sim, FAULT_KILL_PRINTS, daemon);
    daemon_lose_prints(daemon);
    return true;
}

/* Whether this can happen to a daemon now. */
static bool can_happen(const simulation *sim, sim_fault fault, const sim_daemon *daemon)
{
    if (!daemon->state || daemon->for_good)
        return false;
    switch (fault) {
    case FAULT_KILL_PRINTS:
        return daemon_may_lose_prints(daemon);
    case FAULT_BAD_TIMES: /* before any has worked, or for ever, it would be a reason to give up */
        return daemon->any_worked && daemon->bad_until_ns <= 0 &&
               sim->rules.weight[FAULT_JUMP] == 0; /* its pauses would be over too soon */
    case FAULT_NO_PROCESS: /* again and again it would be a reason to give up */
        return !daemon->had_none;
    case FAULT_NO_STAT: /* an item that is alone in work must not be condemned for it */
    case FAULT_NO_SIGHT:
    case FAULT_NO_SHIP:
        return sim->options.prepd_solo_deaths >= 2 && !daemon->was_blind;
    default:
        return true;
    }
}

bool fault_comes_before_look(sim_daemon *daemon)
{
    simulation *sim = daemon->sim;
    if (sim->rules.weight[FAULT_NO_SIGHT] == 0 || sim->now_ns >= sim->calm_ns ||
        !can_happen(sim, FAULT_NO_SIGHT, daemon) || !sim_random_chance(&sim->faults, 1, 3))
        return false;
    fault_note(sim, FAULT_NO_SIGHT, daemon);
    return daemon->was_blind = true;
}

/* The daemon's clock jumps: forward, or back, which must look as if it stood still. */
static void jump(simulation *sim, sim_daemon *daemon)
{
    const int64_t by_ns = sim_random_tail(&sim->faults, MS, 20 * SECOND);
    if (daemon_now(daemon) - by_ns < SECOND || !sim_random_chance(&sim->faults, 1, 3)) {
        daemon->skew_ns += by_ns;
        return;
    }
    daemon->skew_ns -= by_ns;
    daemon->drain_by_ns += daemon->drain_by_ns ? by_ns : 0;
    daemon->leave_by_ns += by_ns;
}

static void do_daemon(simulation *sim, sim_fault fault, sim_daemon *daemon)
{
    static const worker_bent bents[] = {BENT_DIES_EARLY, BENT_CANNOT_BEGIN, BENT_KILLED_EARLY};
    switch (fault) {
    case FAULT_KILL_DAEMON:
    case FAULT_KILL_DAEMON_KEPT:
        daemon_kill(daemon, fault == FAULT_KILL_DAEMON_KEPT);
        break;
    case FAULT_STOP_DAEMON:
    case FAULT_DRAIN_DAEMON:
        daemon_signal(daemon, fault == FAULT_STOP_DAEMON ? SIGNAL_STOP : SIGNAL_DRAIN);
        break;
    case FAULT_RELOAD:
        daemon_reload(daemon);
        break;
    case FAULT_SCALE:
        scale_at_random(daemon);
        break;
    case FAULT_STATUS:
        if (sim->rules.for_command && sim_random_chance(&sim->faults, 1, 2)) {
            daemon_ask_for_report(daemon);
            break;
        }
        if (sim_random_chance(&sim->faults, 1, 3))
            daemon_command(daemon,
                           sim->rules.keyed ? "{\"command\":\"admit\",\"name\":\"crew%d\"}"
                                            : "{\"command\":\"admit\",\"name\":\"10.0.0.%d\"}",
                           (int)sim_random_below(&sim->faults, 5));
        else
            daemon_command(daemon, "{\"command\":\"status\"}%.0d", 0);
        break;
    case FAULT_JUMP:
        jump(sim, daemon);
        break;
    case FAULT_KILL_PRINTS:
        daemon_lose_prints(daemon);
        break;
    case FAULT_BAD_TIMES:
        daemon->bad_until_ns = sim->now_ns + sim_random_between(&sim->faults, SECOND, 10 * SECOND);
        daemon->bad_bent = bents[sim_random_below(&sim->faults, 3)];
        break;
    case FAULT_NO_PROCESS:
        daemon->no_process = daemon->had_none = true;
        break;
    case FAULT_NO_FILES:
        daemon->no_files = true;
        break;
    case FAULT_NO_SIGHT:
        daemon->no_sight = daemon->was_blind = true;
        break;
    case FAULT_NO_STAT:
        daemon->no_stat = true;
        break;
    case FAULT_NO_MEMORY:
        daemon->short_in = sim_random_between(&sim->faults, 1, 40);
        break;
    case FAULT_NO_SHIP:
        daemon->no_memory = sim_random_chance(&sim->faults, 1, 4);
        daemon->no_ship = !daemon->no_memory;
        daemon->was_blind = true;
        break;
    default:
        daemon_rude_peer(daemon);
    }
}

/* A rank of some job that is not done; -1: there is none. */
static int pick_job(simulation *sim)
{
    if (sim->n_jobs == 0)
        return -1;
    const sim_stream_job *job = &sim->job[sim_random_below(&sim->faults, (uint64_t)sim->n_jobs)];
    for (int i = job->first; i < job->first + job->ranks; i++)
        if (sim->rank[i]->state != RANK_ENDED)
            return i;
    return -1;
}

/* Chooses who is hit, and does it. */
static void strike(simulation *sim, sim_fault fault, sim_daemon *daemon)
{
    int target;
    if (fault <= FAULT_CUT_WORKER) {
        if ((target = fault_worker(sim, fault)) < 0)
            return;
        fault_note(sim, fault, &sim->daemon[sim->worker[target]->daemon]);
        fault_do_worker(sim, fault, target);
    } else if (fault <= FAULT_CLOG) {
        if ((target = fault_link(sim, fault)) < 0)
            return;
        fault_note(sim, fault, &sim->daemon[sim->link[target].daemon]);
        fault_do_link(sim, fault, target);
    } else if (fault == FAULT_RESTART_JOB) {
        if ((target = pick_job(sim)) < 0)
            return;
        fault_note(sim, fault, &sim->daemon[sim->rank[target]->daemon]);
        job_restart(sim, sim->rank[target]->job);
    } else if (fault == FAULT_TWIN) {
        if ((target = twin_pick(sim)) < 0)
            return;
        fault_note(sim, fault, &sim->daemon[sim->link[sim->rank[target]->link].daemon]);
        twin_come(sim, target);
    } else if (can_happen(sim, fault, daemon)) {
        fault_note(sim, fault, daemon);
        do_daemon(sim, fault, daemon);
    }
}

void fault_event(simulation *sim, const sim_event *event)
{
    const sim_fault fault = draw_fault(sim);
    (void)event;
    strike(sim, fault,
           &sim->daemon[sim_random_below(&sim->faults, (uint64_t)sim->rules.n_daemons)]);
    plan_next(sim);
}

bool fault_end(simulation *sim)
{
    bool gone = true;
    if (sim->rules.hopeless) /* drained before it knows, it would rightly end as if all were well */
        return false;
    if (!sim->rules.drain_at_end)
        return true;
    for (int i = 0; i < sim->rules.n_daemons; i++) {
        sim_daemon *daemon = &sim->daemon[i];
        if (daemon->listens && !daemon->draining_asked) {
            daemon->draining_asked = true;
            daemon->drain_by_ns = sim->now_ns + 600 * SECOND;
            daemon_command(daemon, "{\"command\":\"drain\"}%.0d", 0);
        }
        gone &= daemon->for_good && !daemon->state;
    }
    return gone;
}
