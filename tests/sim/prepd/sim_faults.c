/* sim_faults.c: breaks things, one after another, as the rules of the schedule say. */
#include "tests/sim/prepd/sim_faults.h"

#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/people.h"

static sim_phase phase_of(const sim_daemon *daemon)
{
    const dispatch *state = daemon->state;
    sim_phase phase = PHASE_IDLE;
    if (!state)
        return PHASE_IDLE;
    if (state->draining || state->stopping)
        return PHASE_DRAIN;
    if (state->train.build.active || state->eval.build.active)
        return PHASE_INDEX;
    if (!state->train.ready)
        return PHASE_GREETING;
    for (const consumer_seat *consumer = state->consumer_seats; consumer;
         consumer = consumer->next) {
        if (!consumer->welcomed)
            return PHASE_GREETING;
        for (int i = 0; i < consumer->n_slots; i++) {
            const bool made =
                consumer->slots[(consumer->first_slot + i) % SESSION_SLOTS].msg != NULL;
            phase = made ? PHASE_DELIVERY : phase == PHASE_IDLE ? PHASE_LEASE : phase;
        }
    }
    return phase;
}

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

static bool fault_daemon(simulation *sim, sim_fault fault, sim_daemon *daemon)
{
    if (!daemon->state || daemon->for_good)
        return false;
    switch (fault) {
    case FAULT_KILL_DAEMON:
    case FAULT_KILL_DAEMON_KEPT:
        daemon_kill(daemon, fault == FAULT_KILL_DAEMON_KEPT);
        return true;
    case FAULT_STOP_DAEMON:
    case FAULT_DRAIN_DAEMON:
        daemon_signal(daemon, fault == FAULT_STOP_DAEMON ? SIGNAL_STOP : SIGNAL_DRAIN);
        return true;
    case FAULT_RELOAD:
        daemon_reload(daemon);
        return true;
    case FAULT_SCALE:
        daemon_command(daemon, "{\"command\":\"scale\",\"workers\":%d}",
                       (int)sim_random_between(&sim->faults, 1, 6));
        return true;
    case FAULT_STATUS:
        if (sim->rules.for_command && sim_random_chance(&sim->faults, 1, 2)) {
            daemon_ask_for_report(daemon);
            return true;
        }
        daemon_command(daemon, "{\"command\":\"status\"}%.0d", 0);
        return true;
    case FAULT_JUMP:
        daemon->skew_ns += sim_random_tail(&sim->faults, MS, 20 * SECOND);
        return true;
    case FAULT_KILL_PRINTS:
        return daemon_kill_prints(daemon);
    case FAULT_BAD_TIMES: /* before any has worked, or for ever, it would be a reason to give up */
        if (!daemon->any_worked || daemon->bad_until_ns > 0)
            return false;
        daemon->bad_until_ns = sim->now_ns + sim_random_between(&sim->faults, SECOND, 25 * SECOND);
        daemon->bad_bent =
            sim_random_chance(&sim->faults, 1, 2) ? BENT_DIES_EARLY : BENT_CANNOT_BEGIN;
        return true;
    case FAULT_NO_PROCESS: /* again and again it would be a reason to give up */
        if (daemon->had_none)
            return false;
        daemon->no_process = daemon->had_none = true;
        return true;
    case FAULT_NO_FILES:
        daemon->no_files = true;
        return true;
    case FAULT_NO_SIGHT: /* an item that is alone in work must not be condemned for it */
        if (sim->options.prepd_solo_deaths < 2 || daemon->was_blind)
            return false;
        daemon->no_sight = daemon->was_blind = true;
        return true;
    default:
        daemon_rude_peer(daemon);
        return true;
    }
}

static bool restart_some_job(simulation *sim)
{
    if (sim->n_jobs == 0)
        return false;
    const int job = (int)sim_random_below(&sim->faults, (uint64_t)sim->n_jobs);
    for (int i = 0; i < sim->job[job].ranks; i++)
        if (sim->rank[sim->job[job].first + i]->state != RANK_ENDED) {
            job_restart(sim, job);
            return true;
        }
    return false;
}

void fault_event(simulation *sim, const sim_event *event)
{
    const sim_fault fault = draw_fault(sim);
    sim_daemon *daemon =
        &sim->daemon[sim_random_below(&sim->faults, (uint64_t)sim->rules.n_daemons)];
    const sim_phase phase = phase_of(daemon);
    bool done;
    (void)event;
    if (fault <= FAULT_CUT_WORKER)
        done = fault_worker(sim, fault);
    else if (fault <= FAULT_CLOG)
        done = fault_link(sim, fault);
    else if (fault == FAULT_RESTART_JOB)
        done = restart_some_job(sim);
    else
        done = fault_daemon(sim, fault, daemon);
    if (done) {
        sim->stats->faults++;
        sim->stats->fault_in[fault][phase]++;
        sim_log_tell(&sim->log, sim->now_ns, "FAULT: %s", fault_words[fault]);
    }
    plan_next(sim);
}

bool fault_end(simulation *sim)
{
    bool gone = true;
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
