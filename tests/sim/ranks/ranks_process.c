/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_process.c: the shell of a simulated rank: gives its core what happens, and does what it
 * answers (ranks_actions.c). It stands for trainer/parallel/rank_link.c. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/ranks/ranks_world.h"

enum { PPM = 1000000 };

bool process_runs(const world *all, int rank)
{
    return all->rank[rank].alive && !all->rank[rank].stopped;
}

static int64_t local_time(const world *all, int rank)
{
    const process *at = &all->rank[rank];
    return at->clock_from + all->now_ns + all->now_ns / PPM * at->clock_ppm;
}

/* The first virtual time at which the local clock shows at least this. */
static int64_t virtual_time(const world *all, int rank, int64_t local)
{
    const process *at = &all->rank[rank];
    const int64_t left = local - local_time(all, rank);
    if (left <= 0)
        return all->now_ns;
    return all->now_ns + left + left / PPM * 400 - left / PPM * at->clock_ppm + 1000;
}

static link_now now_of(const world *all, int rank)
{
    const process *at = &all->rank[rank];
    return (link_now){.ns = local_time(all, rank),
                      .waits = at->waits,
                      .began = at->joined && at->step > 0,
                      .call_ns = all->call_ns};
}

/* After an event: does what the core answered and asks when it wants to hear the time. */
static void after_event(world *all, int rank)
{
    process *const at = &all->rank[rank];
    link_action action;
    all->events++;
    while (at->alive && link_core_next(at->core, &action))
        process_do(all, rank, &action);
    if (!at->alive)
        return;
    at->time_wish++;
    const int64_t due = link_core_due(at->core);
    if (due < INT64_MAX)
        world_put(all, virtual_time(all, rank, due), SIM_TIME, rank, at->time_wish);
}

void process_start(world *all, int rank)
{
    process *const at = &all->rank[rank];
    uint8_t id[CONTROL_ID_BYTES] = {0};
    char host[32];
    if (rank == 0)
        memcpy(id, "0123456789abcdef", 16);
    snprintf(host, sizeof host, "node%d", all->one_machine ? 0 : rank);
    const bool other = faults_find(all, FAULT_OPTIONS, rank) != NULL;
    const link_terms terms = {.me = {(uint32_t)rank, (uint32_t)all->size, (uint32_t)(1000 + rank),
                                     host, "trainer",
                                     other ? "a.x: 1\nb.y: 3\n" : "a.x: 1\nb.y: 2\n"},
                              .at_host = "node0",
                              .at_port = 29500,
                              .timeout_s = all->timeout_s,
                              .silence_s = all->silence_s,
                              .one_machine = all->one_machine,
                              .id = id};
    at->alive = true;
    at->work = WORK_JOINS;
    for (size_t i = 0; i < sizeof at->wire_of / sizeof *at->wire_of; i++)
        at->wire_of[i] = -1;
    sim_log_tell(&all->log, all->now_ns, "rank %d starts", rank);
    if (link_core_new(&terms, now_of(all, rank), &at->core) != ST_OK)
        abort();
    link_core_time(at->core, now_of(all, rank));
    after_event(all, rank);
}

void process_time(world *all, int rank, uint64_t wish)
{
    process *const at = &all->rank[rank];
    if (!process_runs(all, rank) || wish != at->time_wish)
        return;
    sim_log_note(&all->log, all->now_ns, SIM_TIME, rank, 0);
    link_core_time(at->core, now_of(all, rank));
    after_event(all, rank);
}

static int free_conn(const process *at)
{
    const int count = link_core_connections(at->core);
    for (int i = 0; i < count; i++)
        if (at->wire_of[i] < 0)
            return i;
    return -1;
}

void process_reach(world *all, int rank)
{
    process *const at = &all->rank[rank];
    at->missed_reach = at->stopped;
    if (!process_runs(all, rank))
        return;
    const bool silent = at->cut || all->rank[0].cut || all->rank[0].lost_power;
    if (silent && local_time(all, rank) < at->reach_until) { /* it tries again by itself */
        world_put(all, all->now_ns + SECOND, SIM_REACH, rank, 0);
        return;
    }
    const int wire = silent ? -1 : wires_connect(all, rank);
    if (wire < 0) {
        link_core_not_connected(at->core, now_of(all, rank),
                                silent ? "Connection timed out" : "Connection refused");
        after_event(all, rank);
        return;
    }
    const int conn = free_conn(at);
    at->wire_of[conn] = wire;
    all->wire[wire].end[0].conn = conn;
    link_core_connected(at->core, now_of(all, rank), conn);
    after_event(all, rank);
}

void process_accept(world *all)
{
    process *const at = &all->rank[0];
    for (int i = 0; i < all->n_wires && process_runs(all, 0); i++) {
        wire_end *const end = &all->wire[i].end[1];
        const int conn = end->open && end->conn < 0 ? free_conn(at) : -1;
        if (conn < 0)
            continue;
        end->conn = conn;
        at->wire_of[conn] = i;
        sim_log_note(&all->log, all->now_ns, 101, 0, (uint64_t)conn);
        link_core_connected(at->core, now_of(all, 0), conn);
        after_event(all, 0);
        wires_deliver(all, i, 1);
    }
}

void process_bytes(world *all, int rank, int conn, const void *bytes, size_t size)
{
    process *const at = &all->rank[rank];
    sim_log_note(&all->log, all->now_ns, SIM_ARRIVE, rank, (uint64_t)conn);
    link_core_bytes(at->core, now_of(all, rank), conn, bytes, size);
    after_event(all, rank);
}

void process_gone(world *all, int rank, int conn, bool reset)
{
    process *const at = &all->rank[rank];
    sim_log_note(&all->log, all->now_ns, 102, rank, (uint64_t)conn);
    link_core_gone(at->core, now_of(all, rank), conn, reset ? "Connection reset by peer" : NULL);
    after_event(all, rank);
    if (process_runs(all, rank) && at->wire_of[conn] >= 0)
        world_broken(all, "rank %d keeps connection %d, which is gone", rank, conn);
}

void process_need(world *all, int rank, const uint8_t need[LINK_NEEDS])
{
    link_core_need(all->rank[rank].core, now_of(all, rank), need);
    after_event(all, rank);
}

void process_tell(world *all, int rank, save_mark mark, const char *text)
{
    char note[160];
    snprintf(note, sizeof note, "%d %d %s", all->rank[rank].saving.step, (int)mark, text);
    link_core_tell(all->rank[rank].core, now_of(all, rank), note);
    after_event(all, rank);
}

void process_leave(world *all, int rank, const char *failed)
{
    process *const at = &all->rank[rank];
    at->work = WORK_LEAVES;
    at->left_well = failed == NULL;
    at->waits = false;
    if (failed)
        snprintf(at->words, sizeof at->words, "rank %d failed: %s", rank, failed);
    sim_log_note(&all->log, all->now_ns, 103, rank, failed != NULL);
    sim_log_tell(&all->log, all->now_ns, "rank %d leaves%s%s", rank, failed ? ": " : "",
                 failed ? failed : "");
    link_core_leave(at->core, now_of(all, rank), failed);
    after_event(all, rank);
}

void process_continue(world *all, int rank)
{
    process *const at = &all->rank[rank];
    if (!at->alive || !at->stopped)
        return;
    at->stopped = false;
    at->still_ns = all->now_ns - at->stopped_at;
    sim_log_tell(&all->log, all->now_ns, "rank %d goes on", rank);
    wires_deliver_all(all);
    if (process_runs(all, rank)) {
        link_core_time(at->core, now_of(all, rank));
        after_event(all, rank);
    }
    if (at->missed_reach)
        process_reach(all, rank);
    if (process_runs(all, rank) && at->saving.missed) {
        at->saving.missed = false;
        saves_go_on(all, rank, at->saving.wish);
        work_saved(all, rank);
    }
    if (process_runs(all, rank) && at->missed_work) {
        at->missed_work = false;
        work_go_on(all, rank, at->work_wish);
    }
}

void process_free(world *all, int rank)
{
    link_core_free(&all->rank[rank].core);
}
