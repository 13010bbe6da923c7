/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_fault_plan.c: what goes wrong in a schedule, and when. */
#include "tests/sim/ranks/ranks_world.h"

static const char *const name[FAULT_KINDS] = {"is killed",
                                              "loses power",
                                              "is stopped",
                                              "is cut off",
                                              "fails",
                                              "hangs",
                                              "has its connection reset",
                                              "comes late",
                                              "never comes",
                                              "has other options",
                                              "meets a stranger",
                                              "waits for rows",
                                              "is slow"};

const char *faults_name(fault_kind kind)
{
    return name[kind];
}

fault *faults_find(world *all, fault_kind kind, int rank)
{
    for (int i = 0; i < all->n_faults; i++)
        if (all->fault[i].kind == kind && all->fault[i].rank == rank)
            return &all->fault[i];
    return NULL;
}

/* A time while ranks meet, or while they work. */
static int64_t draw_time(const world *all, sim_random *from)
{
    const int64_t work = all->steps * (all->compute_ns + 20 * MS);
    if (sim_random_chance(from, 1, 4))
        return sim_random_between(from, 0, 600 * MS);
    return sim_random_between(from, 300 * MS, 500 * MS + 2 * work);
}

/* A duration around the silence that counts as a loss. */
static int64_t draw_pause(const world *all, sim_random *from)
{
    switch (sim_random_below(from, 6)) {
    case 0:
        return sim_random_between(from, 10 * MS, all->silence_ns / 4);
    case 4: /* some ranks notice it, and others do not */
        return sim_random_between(from, all->silence_ns * 4 / 5, all->silence_ns * 5 / 4);
    case 3:
        return sim_random_between(from, all->silence_ns * 2 / 5, all->silence_ns * 3 / 5);
    case 1:
        return sim_random_between(from, all->silence_ns / 4, 2 * all->silence_ns);
    case 2:
        return sim_random_between(from, 2 * all->silence_ns, 4 * all->silence_ns);
    default:
        return 100000 * SECOND; /* for good */
    }
}

static fault draw_fault(const world *all, sim_random *from)
{
    fault made = {.kind = (fault_kind)sim_random_below(from, FAULT_KINDS),
                  .rank = (int)sim_random_below(from, (uint64_t)all->size),
                  .at_ns = draw_time(all, from),
                  .for_ns = draw_pause(all, from),
                  .step = (int)sim_random_between(from, 1, all->steps)};
    if (made.kind == FAULT_OPTIONS && made.rank == 0)
        made.rank = 1;
    if (made.kind == FAULT_ROWS) /* long beyond what a call may take */
        made.for_ns = sim_random_between(from, 0, 3 * all->call_ns);
    if (made.kind == FAULT_SLOW)
        made.for_ns = sim_random_between(from, 0, all->call_ns / 4);
    if (made.kind == FAULT_LATE)
        made.for_ns = sim_random_between(from, 0, 2 * (int64_t)all->timeout_s * SECOND);
    return made;
}

void faults_draw(world *all, sim_random *from)
{
    const uint64_t drawn = sim_random_below(from, 10);
    all->n_faults = drawn < 2 ? 0 : drawn < 7 ? 1 : drawn < 9 ? 2 : 3;
    for (int i = 0; i < all->n_faults; i++) {
        fault *const made = &all->fault[i];
        *made = draw_fault(all, from);
        all->stranger = (int)sim_random_below(from, 6);
        process *const rank = &all->rank[made->rank];
        if (made->kind == FAULT_LATE && rank->start_ns >= 0)
            rank->start_ns += made->for_ns;
        if (made->kind == FAULT_MISSING)
            rank->start_ns = -1;
        if (made->kind == FAULT_MISSING || made->kind == FAULT_OPTIONS || made->kind == FAULT_LATE)
            all->guilty[made->rank] = true;
        if (made->kind == FAULT_MISSING || made->kind == FAULT_OPTIONS)
            all->fatal = true;
        if (made->kind != FAULT_KILL && made->kind != FAULT_POWER && made->kind != FAULT_STOP &&
            made->kind != FAULT_CUT && made->kind != FAULT_RESET && made->kind != FAULT_STRANGER)
            made->at_ns = -1; /* it has no moment of its own */
    }
}

static void reset_wire(world *all, int rank)
{
    for (int i = 0; i < all->n_wires; i++)
        if (all->wire[i].end[0].rank == rank && all->wire[i].end[0].open)
            wires_reset(all, i);
}

void faults_begin(world *all, int number)
{
    fault *const at = &all->fault[number];
    process *const rank = &all->rank[at->rank];
    if (at->kind == FAULT_STRANGER) {
        all->stranger_wire = wires_connect(all, -1);
        sim_log_tell(&all->log, all->now_ns, "a stranger connects");
        world_put(all, all->now_ns + 10 * MS, SIM_STRANGER, 0, 0);
        return;
    }
    if (!rank->alive)
        return;
    sim_log_note(&all->log, all->now_ns, 120, at->rank, (uint64_t)at->kind);
    all->disturbed_ns = all->now_ns;
    verdict_fault(all, number);
    if (at->kind == FAULT_KILL || at->kind == FAULT_POWER) {
        process_kill(all, at->rank, at->kind == FAULT_POWER);
    } else if (at->kind == FAULT_RESET) {
        sim_log_tell(&all->log, all->now_ns, "the connection of rank %d breaks", at->rank);
        reset_wire(all, at->rank);
    } else if (at->kind == FAULT_STOP && !rank->stopped) {
        sim_log_tell(&all->log, all->now_ns, "rank %d is stopped", at->rank);
        rank->stopped = true;
        rank->stopped_at = all->now_ns;
        world_put(all, all->now_ns + at->for_ns, SIM_MEND, number, 0);
    } else if (at->kind == FAULT_CUT && !rank->cut) {
        sim_log_tell(&all->log, all->now_ns, "rank %d is cut off", at->rank);
        rank->cut = true;
        world_put(all, all->now_ns + at->for_ns, SIM_MEND, number, 0);
    }
}

void faults_end(world *all, int number)
{
    fault *const at = &all->fault[number];
    process *const rank = &all->rank[at->rank];
    all->disturbed_ns = all->now_ns;
    sim_log_note(&all->log, all->now_ns, 121, at->rank, (uint64_t)at->kind);
    if (at->kind == FAULT_CUT) {
        sim_log_tell(&all->log, all->now_ns, "rank %d is connected again", at->rank);
        rank->cut = false;
        wires_deliver_all(all);
        work_look(all);
    } else {
        process_continue(all, at->rank);
    }
}

/* A stranger says nothing, something that is no message, or one that is no greeting, and may hang
 * up or not. */
void faults_stranger(world *all)
{
    static const char request[] = "GET / HTTP/1.1\r\n\r\n";
    if (all->stranger_wire < 0 || !all->wire[all->stranger_wire].end[0].open)
        return;
    uint8_t beat[CONTROL_HEADER];
    rank_link_header_put(beat, CONTROL_BEAT, 0);
    if (all->stranger & 4) /* as from a rank that has lost its way */
        wires_send(all, all->stranger_wire, 0, beat, sizeof beat);
    else if (all->stranger & 1)
        wires_send(all, all->stranger_wire, 0, request, sizeof request - 1);
    if (all->stranger & 2)
        wires_close(all, all->stranger_wire, 0);
}
