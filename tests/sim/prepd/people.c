/* people.c: hands what reaches the far end of a link to whoever is there. */
#include "tests/sim/prepd/people.h"

void people_message(simulation *sim, int link, wire_msg *message)
{
    const sim_link *at = &sim->link[link];
    if (at->kind == END_WORKER && sim->worker[at->who]->link == link)
        worker_message(sim, at->who, message);
    else if (at->kind == END_SUPERVISOR && sim->supervisor[at->who].link == link)
        supervisor_message(sim, at->who, message);
    else if (at->kind == END_RANK && sim->rank[at->who]->link == link)
        rank_message(sim, at->who, message);
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
