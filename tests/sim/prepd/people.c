/* SPDX-License-Identifier: Apache-2.0 */
/* people.c: hands what reaches the far end of a link to whoever is there. */
#include "tests/sim/prepd/people.h"

#include <string.h>

#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/network.h"

enum { MOST_REFUSED = 100 }; /* as in outside.c */

/* Reads the report that it has asked for, and leaves. */
static void take_report(simulation *sim, int number, const wire_msg *message)
{
    const span text = wire_msg_part(message, 1);
    frame head;
    if (frame_decode(wire_msg_part(message, 0), "core", &head) != ST_OK || head.kind == KIND_CREDIT)
        return;
    if (head.kind != KIND_ERROR && !memmem(text.data, text.size, "\"report\":\"", 10))
        sim_break(sim, INV_WORDS, "who asks for a report gets %s without one",
                  frame_kind_name(head.kind));
    link_say(sim, number, KIND_BYE, 0, "{}");
    link_close(sim, number);
}

static void be_refused(simulation *sim, sim_link *link, const wire_msg *message)
{
    frame head;
    if (frame_decode(wire_msg_part(message, 0), "core", &head) == ST_OK &&
        head.kind == KIND_ERROR && ++link->n_refused > MOST_REFUSED)
        sim_break(sim, INV_MEMORY, "a stranger is still listened to after %d refusals",
                  MOST_REFUSED);
}

void people_message(simulation *sim, int link, wire_msg *message)
{
    const sim_link *at = &sim->link[link];
    if (at->kind == END_WORKER && sim->worker[at->who]->link == link)
        worker_message(sim, at->who, message);
    else if (at->kind == END_SUPERVISOR && sim->supervisor[at->who].link == link)
        supervisor_message(sim, at->who, message);
    else if (at->kind == END_RANK && sim->rank[at->who]->link == link)
        rank_message(sim, at->who, message);
    else if (at->kind == END_STRANGER && at->wants_report)
        take_report(sim, link, message);
    else if (at->kind == END_STRANGER)
        be_refused(sim, &sim->link[link], message);
}

void people_ended(simulation *sim, int link)
{
    const sim_link *at = &sim->link[link];
    if (at->kind == END_WORKER && sim->worker[at->who]->link == link)
        worker_lost(sim, at->who);
    else if (at->kind == END_SUPERVISOR && sim->supervisor[at->who].link == link)
        sim->supervisor[at->who].link = -1;
    else if (at->kind == END_RANK && sim->rank[at->who]->link == link)
        rank_lost(sim, at->who);
}
