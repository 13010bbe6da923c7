/* SPDX-License-Identifier: Apache-2.0 */
/* daemons.c: the shell of a simulated daemon: it starts the core, hands it messages, lets it turn,
 * ends it, and starts it again as a service manager would. What the core asks for is in
 * daemon_world.c, and what comes of it later in daemon_events.c. */
#include <stdlib.h>

#include "tests/sim/common/sim_memory.h"

#include "tests/sim/prepd/daemon_world.h"
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/people.h"
#include "tests/sim/prepd/wanted.h"

static const int64_t TICK_NS = 100000000;

static void put_turn(sim_daemon *daemon, int64_t at_ns)
{
    if (daemon->turn_ns && daemon->turn_ns <= at_ns)
        return;
    daemon->turn_ns = at_ns;
    sim_queue_put(&daemon->sim->queue,
                  (sim_event){.at_ns = at_ns, .kind = EVENT_TURN, .who = daemon->number});
}

void daemon_wake(sim_daemon *daemon)
{
    put_turn(daemon, daemon->sim->now_ns + sim_random_tail(&daemon->sim->delays, 1, 200 * US));
}

int64_t daemon_now(const sim_daemon *daemon)
{
    return daemon->sim->now_ns + daemon->skew_ns;
}

void daemon_tell_time(sim_daemon *daemon)
{
    daemon->touched = true;
    dispatch_at(daemon->state, daemon_now(daemon));
}

void daemon_enter(sim_daemon *daemon)
{
    daemon_tell_time(daemon);
    sim_memory_refuse(daemon->short_in);
}

void daemon_leave(sim_daemon *daemon)
{
    const int64_t left = sim_memory_refuse(0);
    if (daemon->short_in > 0 && left == 0) {
        daemon->ran_short = true;
        daemon->short_ns = daemon->sim->now_ns;
    }
    daemon->short_in = left;
}

void daemon_start(simulation *sim, int number)
{
    sim_daemon *daemon = &sim->daemon[number];
    const daemon_place place = {.pid = 1000 + number,
                                .host = "host0",
                                .cpus = 2,
                                .build = sim_build,
                                .secret = sim->seed,
                                .trusted = sim->rules.trusted[0],
                                .for_command = sim->rules.for_command};
    const outside world = daemon_world(daemon);
    daemon->incarnation++;
    daemon->most_seats = 0;
    daemon->any_worked = false;
    daemon->taken_ns = daemon->waited_ns = sim->now_ns;
    daemon->bad_until_ns = 0;
    daemon->touched = true;
    daemon->options = sim->options;
    daemon->options.prepd_ranks = daemon->ranks;
    daemon->listens = daemon->stopping = daemon->for_good = daemon->draining_asked = false;
    daemon->saw_trouble = daemon->no_memory = daemon->ran_short = false;
    wanted_by_options(daemon, &daemon->options);
    daemon->turn_ns = daemon->prints_deaths = daemon->prints_pid = 0;
    daemon->drain_by_ns = daemon->short_in = daemon->short_ns = 0;
    daemon->had_none = daemon->unstarted = daemon->no_process = daemon->no_files =
        daemon->no_sight = daemon->no_ship = daemon->no_stat = false;
    if (sim->rules.bad_start_ns > 0) {
        daemon->bad_until_ns = sim->now_ns + sim->rules.bad_start_ns;
        daemon->bad_bent = BENT_DIES_EARLY;
    }
    sim->stats->lives++;
    sim_log_tell(&sim->log, sim->now_ns, "daemon %d starts", number);
    if (dispatch_new(&daemon->options, &place, &world, sim->now_ns + daemon->skew_ns,
                     &daemon->state) != ST_OK ||
        dispatch_open(daemon->state) != ST_OK)
        sim_break(sim, INV_GOES_ON, "a daemon cannot start: %s", status_text());
}

void daemons_start_others(simulation *sim)
{
    if (sim->rules.n_daemons > 1 && sim->daemon[1].incarnation == 0)
        sim->calm_ns = sim->now_ns + sim->rules.calm_ns;
    for (int i = 1; i < sim->rules.n_daemons; i++) {
        sim_daemon *daemon = &sim->daemon[i];
        if (daemon->incarnation > 0)
            continue;
        daemon->incarnation = 1;
        daemon->kept[0] = true;
        sim_queue_put(&sim->queue, (sim_event){.at_ns = sim->now_ns +
                                                        sim_random_tail(&sim->delays, MS, 500 * MS),
                                               .kind = EVENT_DAEMON,
                                               .who = i});
    }
}

void daemon_free(sim_daemon *daemon)
{
    if (!daemon->state)
        return;
    daemon->listens = false;
    daemon->stopping = true;
    daemon->incarnation++; /* nobody hears what it says now */
    dispatch_stop(daemon->state);
    dispatch_free(&daemon->state);
}

/* The process is gone: so are its children, and its connections. */
static void has_ended(sim_daemon *daemon, bool in_order)
{
    simulation *sim = daemon->sim;
    links_of_daemon_end(sim, daemon, in_order);
    for (int i = 0; i < sim->n_workers; i++) {
        sim_worker *worker = sim->worker[i];
        if (worker->local && worker->daemon == daemon->number && worker->state != WORKER_GONE)
            worker_end(sim, i, PROC_END_OUTSIDE, -1, "its daemon has ended");
    }
    daemon_free(daemon);
    if (daemon->for_good)
        return;
    sim_queue_put(
        &sim->queue,
        (sim_event){.at_ns = sim->now_ns + sim_random_between(&sim->delays, 100 * MS, 3 * SECOND),
                    .kind = EVENT_DAEMON,
                    .who = daemon->number});
}

/* An index that is made again has the files that have appeared since. */
static void lose_cache(sim_daemon *daemon)
{
    simulation *sim = daemon->sim;
    for (int i = 0; i < 2; i++)
        sim->other_data[i] |=
            sim->rules.appear && daemon->kept[i] && sim_data_appear(&sim->data[i]);
    daemon->kept[0] = daemon->kept[1] = false;
}

void daemon_kill(sim_daemon *daemon, bool keep_cache)
{
    if (!daemon->state)
        return;
    if (!keep_cache)
        lose_cache(daemon);
    has_ended(daemon, false);
}

/* How long its time stands still, because its clock was set back. */
static int64_t stands_still(const sim_daemon *daemon)
{
    const int64_t still_ns = daemon->state->now_ns - daemon_now(daemon);
    return still_ns > 0 ? still_ns : 0;
}

void daemon_signal(sim_daemon *daemon, signal_kind kind)
{
    if (!daemon->state || daemon->stopping)
        return;
    daemon_tell_time(daemon);
    daemon->drain_by_ns = daemon->sim->now_ns + 25 * SECOND + stands_still(daemon);
    signal_came(daemon->state, kind, "SIM");
    daemon_wake(daemon);
}

/* The daemon's core wants to end: everyone is told, and it waits for its children. */
static void wind_down(sim_daemon *daemon)
{
    dispatch *state = daemon->state;
    simulation *sim = daemon->sim;
    if (state->stopping && !daemon->stopping) {
        check_end(sim, daemon);
        daemon->stopping = true;
        daemon->for_good |= state->draining && state->drain_ns == 0;
        if (daemon->for_good && !daemon->draining_asked)
            sim_break(sim, INV_ROLES,
                      "a daemon is drained and nobody who may do so has asked for it");
        daemon->leave_by_ns = sim->now_ns + 10 * SECOND + stands_still(daemon);
        sim_log_tell(&sim->log, sim->now_ns, "daemon %d stops", daemon->number);
        dispatch_stop(state);
    }
    if (!daemon->stopping)
        return;
    if (sim->now_ns > daemon->leave_by_ns)
        sim_break(sim, INV_DRAIN, "daemon %d has not ended 10 s after it began to stop",
                  daemon->number);
    if (dispatch_stopped(state))
        has_ended(daemon, true);
}

/* Whoever runs a daemon that had no memory starts it again:
 * something may have been lost for good. */
static bool is_started_again(sim_daemon *daemon)
{
    if (daemon->short_ns == 0 || daemon->sim->now_ns - daemon->short_ns < 10 * SECOND)
        return false;
    daemon_kill(daemon, true);
    return true;
}

void daemon_turn(sim_daemon *daemon)
{
    if (is_started_again(daemon))
        return;
    daemon->turn_ns = 0;
    daemon_enter(daemon);
    daemon->sim->stats->turns++;
    if (!daemon->listens) /* as the shell does while it opens the data */
        daemon->state->stopping |= daemon->state->draining;
    else if (!daemon->stopping)
        dispatch_turn(daemon->state);
    daemon_leave(daemon);
    dispatch_note_turn_time(daemon->state, MS, MS);
    if (daemon->drain_by_ns && !daemon->stopping && daemon->sim->now_ns > daemon->drain_by_ns &&
        !daemon->state->stopping)
        sim_break(daemon->sim, INV_DRAIN, "daemon %d is drained and does not end", daemon->number);
    if (daemon->state->stopping || daemon->stopping)
        wind_down(daemon);
    if (!daemon->state)
        return;
    put_turn(daemon, daemon->sim->now_ns + (daemon->state->plans_wait ? 100 * US : TICK_NS));
}

void daemon_message(sim_daemon *to, const sim_link *link, wire_msg *message)
{
    peer_limits *limits = &to->state->peer_limits;
    if (to->stopping || peer_limits_ignores(limits, &link->peer))
        return;
    daemon_enter(to);
    peer_message(to->state, link->at, &link->peer, message);
    daemon_leave(to);
    daemon_wake(to);
}
