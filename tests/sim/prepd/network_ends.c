/* SPDX-License-Identifier: Apache-2.0 */
/* network_ends.c: how long a link takes, how it stalls, and how it ends. */
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/people.h"

static const int64_t NEVER = INT64_MAX;

int64_t link_delay(simulation *sim, const sim_link *link)
{
    return sim_random_tail(&sim->delays, link->latency_ns / 4, link->latency_ns);
}

void link_close(simulation *sim, int number)
{
    sim_link *link = &sim->link[number];
    const int64_t after_ns = sim->now_ns + link_delay(sim, link);
    if (link->closed)
        return;
    link->closed = true;
    if (link->gone_ns == NEVER)
        link->gone_ns = after_ns > link->up_ns ? after_ns : link->up_ns;
}

static void end_at(simulation *sim, int number, int64_t at_ns)
{
    sim_queue_put(&sim->queue, (sim_event){.at_ns = at_ns, .kind = EVENT_ENDED, .who = number});
}

void link_cut(simulation *sim, int number, bool silent)
{
    sim_link *link = &sim->link[number];
    int64_t seen_ns[2];
    if (link->cut || link->closed || !link->served)
        return;
    link->cut = true;
    if (link->kind == END_WORKER && !sim->worker[link->who]->local)
        sim->daemon[link->daemon].cut_deciders += worker_decides(sim, sim->worker[link->who]);
    for (int i = 0; i < 2; i++)
        seen_ns[i] =
            sim->now_ns + (silent ? sim_random_between(&sim->delays, 8 * SECOND, 12 * SECOND)
                                  : link_delay(sim, link));
    link->gone_ns = seen_ns[0];
    end_at(sim, number, seen_ns[1]);
}

void link_stall(simulation *sim, int number, int64_t for_ns)
{
    sim_link *link = &sim->link[number];
    const int64_t until_ns = sim->now_ns + for_ns;
    link->up_ns = until_ns > link->up_ns ? until_ns : link->up_ns;
    link->down_ns = until_ns > link->down_ns ? until_ns : link->down_ns;
}

void links_of_daemon_end(simulation *sim, const sim_daemon *gone, bool in_order)
{
    for (int i = 0; i < sim->n_links; i++) {
        sim_link *link = &sim->link[i];
        if (link->daemon != gone->number || link->incarnation != gone->incarnation || !link->served)
            continue;
        link->served = false;
        if (link->cut || link->closed)
            continue;
        const int64_t at_ns = sim->now_ns + link_delay(sim, link);
        link->cut = !in_order;
        end_at(sim, i, at_ns > link->down_ns || !in_order ? at_ns : link->down_ns);
    }
}
