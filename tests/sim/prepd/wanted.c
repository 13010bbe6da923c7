/* SPDX-License-Identifier: Apache-2.0 */
/* wanted.c: see wanted.h. */
#include "tests/sim/prepd/wanted.h"

#include <stdio.h>
#include <string.h>

#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/people.h"
#include "tests/sim/prepd/sim_faults.h"

static void set_wanted(sim_daemon *daemon, int64_t count)
{
    daemon->wanted = count > 0 ? (int)count : 0;
}

void wanted_by_options(sim_daemon *daemon, const conf *options)
{
    set_wanted(daemon, options->prepd_workers);
}

/* Nothing holds against whom an operator has admitted. */
static void check_admitted(sim_daemon *daemon, const char *name)
{
    const dispatch *state = daemon->state;
    for (int i = 0; i < state->accounts.used; i++) {
        const account *of = state->accounts.of[i];
        if (strcmp(of->name, name) == 0 &&
            (account_is_excluded(of, state->now_ns) || of->watched > 0 ||
             penalty_holds(&of->refused, state->now_ns)))
            sim_break(daemon->sim, INV_WORDS, "the key %s is admitted, and is still kept out",
                      name);
    }
}

void operator_message_arrives(sim_daemon *to, const sim_link *link, wire_msg *message)
{
    const span text = wire_msg_part(message, 1);
    const bool listens =
        !to->stopping && !peer_limits_ignores(&to->state->peer_limits, &link->peer);
    json_value *said = NULL;
    if (json_parse((const char *)text.data, text.size, "operator", &said) != ST_OK)
        said = NULL;
    const int64_t count = json_int(json_find(said, "workers"), -1);
    const char *admitted = json_text(json_find(said, "name"), NULL);
    daemon_message(to, link, message);
    if (listens && admitted)
        check_admitted(to, admitted);
    json_free(&said);
    if (listens && count >= 0 && count <= MAX_LOCAL)
        set_wanted(to, count);
}

static bool any_waits(const dispatch *state)
{
    bool any = state->train.build.active || state->eval.build.active;
    for (const lease *lost = state->book.lost; lost; lost = lost->next)
        any |= lease_needs_decider(lost);
    for (const worker_seat *seat = state->seats; seat; seat = seat->next)
        any |= seat->work && lease_needs_decider(seat->work); /* it may not have waited for long */
    for (const consumer_seat *seat = state->consumer_seats; seat; seat = seat->next)
        any |= penalty_holds(&seat->of->suspected, state->now_ns);
    return any;
}

/* Those that were started to decide go home a minute after the last has been decided. */
static void check_needed(simulation *sim, sim_daemon *daemon)
{
    static const int64_t KEPT_NS = 65000000000;
    const dispatch *state = daemon->state;
    if (any_waits(state) || state->local.needed == 0 || sim->rules.weight[FAULT_JUMP] > 0) {
        daemon->waited_ns = sim->now_ns;
        return;
    }
    if (sim->now_ns - daemon->waited_ns > KEPT_NS)
        sim_break(sim, INV_PROCESSES, "%d local workers are kept to decide, and nothing waits",
                  state->local.needed);
}

/* Once a local worker has begun, those that were killed before they had no longer count. */
static void check_killed(simulation *sim, const local_pool *pool)
{
    for (int i = 0; i < pool->n_places; i++)
        if (pool->child[i].begun && pool->killed_ns > 0 &&
            pool->child[i].started_ns > pool->killed_ns)
            sim_break(sim, INV_PROCESSES, "pid %d has begun, and local workers count as killed",
                      (int)pool->child[i].pid);
}

void check_wanted(simulation *sim, sim_daemon *daemon)
{
    check_killed(sim, &daemon->state->local);
    check_needed(sim, daemon);
    const int target = daemon->state->local.target;
    if (daemon->listens && target != daemon->wanted)
        sim_break(sim, INV_PROCESSES, "%d local workers are to be there, and %d are wanted", target,
                  daemon->wanted);
}

/* most_first: the most that there may be, before that,
 * for a moment in which few of them have come. */
static void scale(sim_daemon *daemon, bool most_first)
{
    static const int64_t MOMENT_NS = 15000000;
    simulation *sim = daemon->sim;
    const int link = link_open(sim, END_OPERATOR, 0, daemon->number, DOOR_CONTROL, 200 * US);
    char json[64];
    if (link < 0)
        return;
    if (most_first) {
        snprintf(json, sizeof json, "{\"command\":\"scale\",\"workers\":%d}", MAX_LOCAL);
        link_say(sim, link, KIND_COMMAND, 0, json);
        sim->link[link].up_ns += MOMENT_NS;
    }
    snprintf(json, sizeof json, "{\"command\":\"scale\",\"workers\":%d}",
             (int)sim_random_between(&sim->faults, 1, 6));
    link_say(sim, link, KIND_COMMAND, 0, json);
}

void scale_at_random(sim_daemon *daemon)
{
    scale(daemon, sim_random_chance(&daemon->sim->faults, 1, 100));
}
