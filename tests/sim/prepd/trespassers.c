/* SPDX-License-Identifier: Apache-2.0 */
/* trespassers.c: peers that ask, in the right words, for what their roles do not allow. */
#include "tests/sim/prepd/trespassers.h"

#include <stdio.h>

#include "tests/sim/prepd/daemon_world.h"
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/network.h"

/* What a peer can ask for, and the roles of which it needs one. */
static const struct {
    door at;
    int kind;
    unsigned roles;
    const char *json;
} wishes[] = {
    {DOOR_CONSUMERS, KIND_HELLO, WIRE_ROWS,
     "{\"version\":3,\"stream\":\"train\",\"rank\":0,\"ranks\":1,\"credit_bytes\":1000000,"
     "\"prefixes\":true}"},
    {DOOR_WORKERS, KIND_JOIN, WIRE_WORK,
     "{\"version\":\"" TESSERA_VERSION "\",\"build\":\"b0000000000000000000000000000000\","
     "\"fingerprints\":{\"images\":\"11111111111111111111111111111111\"},\"host\":\"host9\","
     "\"pid\":99,\"supervisor\":\"s9\",\"ship\":false}"},
    {DOOR_WORKERS, KIND_JOIN, WIRE_WORK, "{\"keeps\":\"s9\"}"},
    {DOOR_CONTROL, KIND_COMMAND, WIRE_STATUS | WIRE_CONTROL, "{\"command\":\"status\"}"},
    {DOOR_CONTROL, KIND_COMMAND, WIRE_STATUS | WIRE_CONTROL, "{\"command\":\"damaged\"}"},
    {DOOR_CONTROL, KIND_COMMAND, WIRE_CONTROL, "{\"command\":\"scale\",\"workers\":0}"},
    {DOOR_CONTROL, KIND_COMMAND, WIRE_CONTROL, "{\"command\":\"drain\"}"}};

void trespass(sim_daemon *daemon)
{
    simulation *sim = daemon->sim;
    const size_t at = sim_random_below(&sim->faults, sizeof wishes / sizeof *wishes);
    const unsigned given = (unsigned)sim_random_below(&sim->faults, 16);
    const int link = link_open(sim, END_STRANGER, 0, daemon->number, wishes[at].at, MS);
    if (link < 0)
        return;
    sim->link[link].trespasses = true;
    sim->link[link].peer.roles = given & ~wishes[at].roles;
    link_say(sim, link, wishes[at].kind, 0, wishes[at].json);
}

obedience obedience_of(const sim_daemon *daemon)
{
    const dispatch *state = daemon->state;
    return (obedience){.consumers = state->n_consumers,
                       .seats = state->n_seats,
                       .supervisors = state->n_supervisors,
                       .target = state->local.target,
                       .draining = state->draining};
}

void check_is_turned_away(simulation *sim, const sim_daemon *daemon, const sim_link *link,
                          const obedience *before, int errors_before)
{
    const obedience after = obedience_of(daemon);
    if (after.consumers != before->consumers || after.seats != before->seats ||
        after.supervisors != before->supervisors || after.target != before->target ||
        after.draining != before->draining)
        sim_break(sim, INV_ROLES, "a peer with the roles %x gets what it has no role for",
                  link->peer.roles);
    if (link->n_errors == errors_before && !daemon->state->stopping)
        sim_break(sim, INV_ROLES, "a peer with the roles %x is not told what it has no role for",
                  link->peer.roles);
}

void check_is_meant_for(simulation *sim, const sim_link *link, frame_kind kind)
{
    const bool granted = kind == KIND_WELCOME || kind == KIND_ROW || kind == KIND_END ||
                         kind == KIND_TERMS || kind == KIND_LEASE || kind == KIND_ANSWER;
    if (link->trespasses && granted)
        sim_break(sim, INV_ROLES, "a peer with the roles %x is sent %s", link->peer.roles,
                  frame_kind_name(kind));
}

void check_roles(simulation *sim, const dispatch *state)
{
    for (const consumer_seat *seat = state->consumer_seats; seat; seat = seat->next)
        if (!(seat->peer.roles & WIRE_ROWS))
            sim_break(sim, INV_ROLES, "a peer that may have no rows is a consumer");
    for (const worker_seat *seat = state->seats; seat; seat = seat->next)
        if (!(seat->peer.roles & WIRE_WORK))
            sim_break(sim, INV_ROLES, "a peer that may not work is a worker");
    for (const supervisor_seat *seat = state->supervisors; seat; seat = seat->next)
        if (!(seat->peer.roles & WIRE_WORK))
            sim_break(sim, INV_ROLES, "a peer that may not work is a supervisor");
}
