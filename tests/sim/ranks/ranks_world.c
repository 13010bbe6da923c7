/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_world.c: the world's loop; see ranks_world.h. */
#include "tests/sim/ranks/ranks_world.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void world_put(world *all, int64_t at_ns, sim_kind kind, int who, uint64_t word)
{
    sim_queue_put(&all->queue,
                  (sim_event){.at_ns = at_ns, .kind = kind, .who = who, .word = (int64_t)word});
}

void world_broken(world *all, const char *format, ...)
{
    va_list values;
    if (all->broken[0])
        return;
    va_start(values, format);
    vsnprintf(all->broken, sizeof all->broken, format, values);
    va_end(values);
    sim_log_tell(&all->log, all->now_ns, "BROKEN: %s", all->broken);
}

static int draw_size(sim_random *from)
{
    if (sim_random_chance(from, 1, 20))
        return (int)sim_random_between(from, 17, RANKS_MOST);
    return (int)sim_random_between(from, 2, sim_random_chance(from, 1, 3) ? 12 : 5);
}

static void draw_world(world *all, uint64_t seed)
{
    const sim_random root = sim_random_of(seed);
    sim_random shape = sim_random_split(&root, 0), faults = sim_random_split(&root, 1);
    all->wires = sim_random_split(&root, 2);
    all->works = sim_random_split(&root, 3);
    all->chances = sim_random_split(&root, 4);
    all->size = draw_size(&shape);
    all->steps = (int)sim_random_between(&shape, 1, STEPS_MOST);
    all->silence_s = (double)sim_random_between(&shape, 2, 20);
    all->timeout_s = (double)sim_random_between(&shape, 5, 60);
    all->silence_ns = (int64_t)all->silence_s * SECOND;
    all->call_ns = sim_random_between(&shape, 5, 60) * SECOND;
    all->compute_ns = sim_random_between(&shape, 1, 400) * MS;
    all->latency_ns = sim_random_between(&shape, 20, 2000) * 1000;
    all->one_machine = sim_random_chance(&shape, 1, 2);
    for (int i = 0; i < all->size; i++) {
        process *rank = &all->rank[i];
        rank->start_ns =
            sim_random_tail(&shape, 0, 300 * MS) % ((int64_t)all->timeout_s * SECOND / 2);
        rank->clock_from = sim_random_between(&shape, 0, SECOND * 1000000);
        rank->clock_ppm = sim_random_between(&shape, -300, 300);
    }
    all->save_every = (int)sim_random_below(&shape, 4);
    faults_draw(all, &faults);
    disk_prepare(all);
}

static void tell_world(const world *all)
{
    sim_log_tell(
        &all->log, 0,
        "%d ranks, %d steps, a checkpoint every %d, silence %g s, joining %g s, calls %g s%s",
        all->size, all->steps, all->save_every, all->silence_s, all->timeout_s,
        (double)all->call_ns / (double)SECOND, all->one_machine ? ", one machine" : "");
    for (int i = 0; i < all->n_faults; i++)
        sim_log_tell(&all->log, 0, "fault: rank %d %s at %.3f s for %.3f s, step %d",
                     all->fault[i].rank, faults_name(all->fault[i].kind),
                     (double)all->fault[i].at_ns / 1e9, (double)all->fault[i].for_ns / 1e9,
                     all->fault[i].step);
}

static void give(world *all, const sim_event *event)
{
    switch ((sim_kind)event->kind) {
    case SIM_START:
        process_start(all, event->who);
        break;
    case SIM_TIME:
        process_time(all, event->who, (uint64_t)event->word);
        break;
    case SIM_REACH:
        process_reach(all, event->who);
        break;
    case SIM_ARRIVE:
        wires_deliver(all, event->who / 2, event->who % 2);
        break;
    case SIM_WORK:
        work_go_on(all, event->who, (uint64_t)event->word);
        break;
    case SIM_SAVE:
        saves_go_on(all, event->who, (uint64_t)event->word);
        work_saved(all, event->who);
        break;
    case SIM_FAULT:
        faults_begin(all, event->who);
        break;
    case SIM_MEND:
        faults_end(all, event->who);
        break;
    case SIM_STRANGER:
        faults_stranger(all);
        break;
    case SIM_PROMPT:
        verdict_noticed(all, event->who);
        break;
    case SIM_JUDGE:
        break;
    }
    process_accept(all);
}

static bool all_ended(const world *all)
{
    for (int i = 0; i < all->size; i++)
        if (all->rank[i].alive && !all->rank[i].stopped)
            return false;
    return true;
}

static void play_events(world *all)
{
    sim_event event;
    enum { EVENTS_MOST = 2000000 };
    while (!all->broken[0] && sim_queue_take(&all->queue, &event)) {
        all->now_ns = event.at_ns;
        if (event.kind == SIM_JUDGE) {
            const int64_t deadline = verdict_deadline(all);
            if (deadline > all->now_ns)
                world_put(all, deadline, SIM_JUDGE, 0, 0);
            else
                break;
            continue;
        }
        give(all, &event);
        if (all->log.events > EVENTS_MOST)
            world_broken(all, "more than %d events: something goes round in a circle", EVENTS_MOST);
    }
    if (!all->broken[0])
        verdict_all(all);
    sim_log_tell(&all->log, all->now_ns, "the end: %s", all_ended(all) ? "all ended" : "not all");
}

sim_played world_play(uint64_t seed, FILE *trace)
{
    world *all = calloc(1, sizeof *all);
    sim_played played = {0};
    if (!all)
        abort();
    all->log = sim_log_begin(seed, trace);
    all->stranger_wire = -1;
    draw_world(all, seed);
    tell_world(all);
    for (int i = 0; i < all->size; i++)
        if (all->rank[i].start_ns >= 0)
            world_put(all, all->rank[i].start_ns, SIM_START, i, 0);
    for (int i = 0; i < all->n_faults; i++)
        if (all->fault[i].at_ns >= 0)
            world_put(all, all->fault[i].at_ns, SIM_FAULT, i, 0);
    world_put(all, 0, SIM_JUDGE, 0, 0);
    play_events(all);
    played.events = all->events;
    played.hash = all->log.hash;
    snprintf(played.broken, sizeof played.broken, "%s", all->broken);
    for (int i = 0; i < all->size; i++)
        process_free(all, i);
    wires_free(all);
    sim_queue_done(&all->queue);
    free(all);
    return played;
}
