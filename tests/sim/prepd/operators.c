/* SPDX-License-Identifier: Apache-2.0 */
/* operators.c: what people and strangers do to a daemon: commands, new options, nonsense. */
#include <stdio.h>

#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/people.h"
#include "tests/sim/prepd/trespassers.h"
#include "tests/sim/prepd/wanted.h"

enum { MOST_PRINTS_DEATHS = 2 }; /* in a row; at the third, the core gives up */

void daemon_command(sim_daemon *daemon, const char *format, int number)
{
    char json[96];
    simulation *sim = daemon->sim;
    const int link = link_open(sim, END_OPERATOR, 0, daemon->number, DOOR_CONTROL, 200 * US);
    if (link < 0)
        return;
    snprintf(json, sizeof json, format, number);
    link_say(sim, link, KIND_COMMAND, 0, json);
}

void daemon_ask_for_report(sim_daemon *daemon)
{
    char json[200];
    simulation *sim = daemon->sim;
    const int link = link_open(sim, END_STRANGER, 0, daemon->number, DOOR_CONSUMERS, 200 * US);
    if (link < 0)
        return;
    sim->link[link].peer.roles = WIRE_ROWS;
    sim->link[link].wants_report = true;
    snprintf(json, sizeof json,
             "{\"version\":%d,\"stream\":\"train\",\"rank\":0,\"ranks\":1,\"credit_bytes\":%lld,"
             "\"prefixes\":true,\"report\":true}",
             SESSION_VERSION, (long long)sim->rules.credit);
    link_say(sim, link, KIND_HELLO, 0, json);
}

void daemon_reload(sim_daemon *daemon)
{
    simulation *sim = daemon->sim;
    conf now = daemon->options;
    if (!daemon->listens || daemon->stopping)
        return;
    daemon->reloads++;
    now.prepd_workers =
        sim->options.prepd_workers < 0 ? -1 : sim_random_between(&sim->faults, 1, 5);
    now.prepd_buffer_bytes = sim_random_between(&sim->faults, 1 << 20, 1 << 24);
    now.prepd_solo_deaths = sim->options.prepd_solo_deaths;
    if (sim_random_chance(&sim->faults, 1, 3))
        now.prepd_worker_bytes += 1 << 20; /* workers start anew */
    daemon_tell_time(daemon);
    if (now.prepd_workers != daemon->options.prepd_workers)
        wanted_by_options(daemon, &now);
    options_again(daemon->state, &now);
    daemon_wake(daemon);
}

void daemon_child_paused(sim_daemon *daemon, pid_t pid)
{
    if (!daemon->state)
        return;
    daemon_tell_time(daemon);
    child_paused(daemon->state, pid);
    daemon_wake(daemon);
}

bool daemon_may_lose_prints(const sim_daemon *daemon)
{
    return daemon->prints_pid && daemon->prints_deaths < MOST_PRINTS_DEATHS;
}

void daemon_lose_prints(sim_daemon *daemon)
{
    daemon->prints_deaths++;
    daemon->prints_pid = 0;
    daemon_tell_time(daemon);
    fingerprinting_ended(daemon->state);
    daemon_wake(daemon);
}

/* A message that breaks the limits of its endpoint, which the shell hands on.
 * Who sent it is told. */
static void send_too_much(sim_daemon *daemon, int number, door at)
{
    const sim_link *link = &daemon->sim->link[number];
    const int64_t before_ns = link->down_ns;
    if (daemon->stopping)
        return;
    daemon_tell_time(daemon);
    message_refused(daemon->state, at, &link->peer, FAIL(ST_PROTOCOL, "the message is too long"));
    if (daemon->sim->link[number].down_ns == before_ns)
        sim_break(daemon->sim, INV_ROLES, "a stranger is not told that its message is too long");
    daemon_wake(daemon);
}

void daemon_rude_peer(sim_daemon *daemon)
{
    simulation *sim = daemon->sim;
    static const struct {
        door at;
        int kind;
        const char *json;
    } rude[] = {{DOOR_CONSUMERS, KIND_HELLO, "{}"},
                {DOOR_CONSUMERS, KIND_CREDIT, "{\"bytes\":5}"},
                {DOOR_CONSUMERS, KIND_HELLO,
                 "{\"version\":3,\"stream\":\"train\",\"rank\":0,\"ranks\":1,\"credit_bytes\":-1}"},
                {DOOR_CONSUMERS, KIND_JOIN, "{}"},
                {DOOR_WORKERS, KIND_JOIN, "{\"version\":7}"},
                {DOOR_WORKERS, KIND_RECORDS, "{\"records\":[]}"},
                {DOOR_WORKERS, KIND_WELCOME, "{}"},
                {DOOR_CONTROL, KIND_COMMAND, "{\"command\":\"dance\"}"},
                {DOOR_CONTROL, KIND_COMMAND, "{\"command\":\"drain\"}"},
                {DOOR_CONTROL, KIND_COMMAND, "{\"command\":\"scale\",\"workers\":0}"},
                {DOOR_CONTROL, KIND_HELLO, "[]"}};
    if (sim_random_chance(&sim->faults, 1, 2)) {
        trespass(daemon);
        return;
    }
    /* A stranger has no role; one with all of them is refused for what it says. */
    const bool may = sim_random_chance(&sim->faults, 1, 2);
    const size_t at = sim_random_below(&sim->faults, sizeof rude / sizeof *rude);
    const int link = link_open(sim, END_STRANGER, 0, daemon->number, rude[at].at, MS);
    if (link >= 0 && sim_random_chance(&sim->faults, 1, 6)) {
        send_too_much(daemon, link, rude[at].at);
        return;
    }
    const bool commands = rude[at].kind == KIND_COMMAND;
    if (link >= 0 && may && !commands)
        sim->link[link].peer.roles = WIRE_GIVEN;
    const int times = sim_random_chance(&sim->faults, 1, 12) ? 130 : 1;
    for (int i = 0; link >= 0 && i < times; i++)
        link_say(sim, link, rude[at].kind, 0, rude[at].json);
}
