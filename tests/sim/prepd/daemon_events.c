/* SPDX-License-Identifier: Apache-2.0 */
/* daemon_events.c: what a simulated daemon hears, other than messages: its loop turns, its files
 * are open, its fingerprints are made, its children have ended. */
#include "tests/sim/prepd/daemon_world.h"
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/people.h"
#include "tests/sim/prepd/sim_faults.h"

static void open_section(sim_daemon *daemon, int which)
{
    source *section = which == 0 ? &daemon->state->train : &daemon->state->eval;
    daemon_tell_time(daemon);
    if (which == 1 && daemon->no_files) {
        daemon->no_files = false;
        section_opened(daemon->state, section, FAIL(ST_IO, "the held-out data cannot be read"));
        daemon_wake(daemon);
        return;
    }
    section->data = &daemon->sim->data[which].base;
    section->index = daemon->kept[which] ? reference_index(&daemon->sim->data[which]) : NULL;
    daemon_enter(daemon);
    section_opened(daemon->state, section, ST_OK);
    daemon_leave(daemon);
    if (which == 0) { /* what the shell does before it binds its sockets */
        if (dispatch_begin(daemon->state) != ST_OK)
            sim_break(daemon->sim, INV_GOES_ON, "a daemon cannot begin: %s", status_text());
        daemon->listens = true;
    }
    daemon_wake(daemon);
}

/* The process that makes fingerprints tells them one by one. */
static void go_on_printing(sim_daemon *daemon, int64_t pid)
{
    char line[64];
    if (pid != daemon->prints_pid)
        return;
    if (fault_comes_before_prints(daemon))
        return;
    daemon_tell_time(daemon);
    const hopeless why = daemon->sim->rules.hopeless;
    if (why == HOPELESS_PRINTS_SAY) {
        fingerprinting_line(daemon->state, "error 3 there is no tokenizer");
    } else if (why != HOPELESS_PRINTS_DIE) {
        for (int k = 0; k < N_PRINTS; k++) {
            if (!daemon->prints_wanted[k])
                continue;
            snprintf(line, sizeof line, "%s %s", print_names[k], sim_prints[k]);
            fingerprinting_line(daemon->state, line);
        }
        daemon->prints_deaths = 0;
    }
    daemon->prints_pid = 0;
    fingerprinting_ended(daemon->state);
    daemon_wake(daemon);
}

static void hear_of_child(sim_daemon *daemon, const sim_worker *child)
{
    if (child->state != WORKER_GONE)
        return;
    check_death(daemon->sim, daemon, child);
    daemon_enter(daemon);
    child_ended(daemon->state, child->pid, &child->end);
    daemon_leave(daemon);
    daemon_wake(daemon);
}

void daemon_event(simulation *sim, const sim_event *event)
{
    sim_daemon *daemon =
        &sim->daemon[event->kind == EVENT_CHILD ? sim->worker[event->word]->daemon : event->who];
    if (event->kind == EVENT_DAEMON) {
        daemon_start(sim, event->who);
        return;
    }
    if (!daemon->state)
        return;
    if (event->kind == EVENT_TURN && event->at_ns == daemon->turn_ns)
        daemon_turn(daemon);
    else if (event->kind == EVENT_CHILD && event->who == daemon->incarnation)
        hear_of_child(daemon, sim->worker[event->word]);
    else if (event->kind == EVENT_SECTION && event->word >> 8 == daemon->incarnation)
        open_section(daemon, (int)(event->word & 0xff));
    else if (event->kind == EVENT_PRINTS)
        go_on_printing(daemon, event->word);
}
