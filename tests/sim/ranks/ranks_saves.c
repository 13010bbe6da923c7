/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_saves.c: the simulated ranks' saves. The real core of a save decides
 * (trainer/checkpoint/save/save_core.h), and the disk does what it says (ranks_disk.c), one action after the
 * other, so that a process can die between any two, or within one that takes long. */
#include "tests/sim/ranks/ranks_world.h"

/* An action has an effect at once if it can be cut short, and ends after a while. */
static void begin_action(world *all, int rank)
{
    save_state *const save = &all->rank[rank].saving;
    save_folder *const folder = disk_written(all, save->step);
    int64_t takes = sim_random_tail(&all->works, 100000, MS);
    if (save->action.kind == SAVE_FILL) {
        takes = sim_random_tail(&all->works, MS, 200 * MS);
        if (all->size <= 8 &&
            sim_random_chance(&all->chances, 1, 4000)) /* longer than rank 0 waits, or about so */
            all->slow_disk_ns += takes = sim_random_between(&all->works, SECOND, 4000 * SECOND);
        if (folder)
            folder->part[rank] = folder->torn[rank] = true;
    } else if (save->action.kind == SAVE_NAP) {
        takes = 50 * MS;
    }
    sim_log_note(&all->log, all->now_ns, 130 + (int)save->action.kind, rank,
                 (uint64_t)save->action.commit);
    world_put(all, all->now_ns + takes, SIM_SAVE, rank, ++save->wish);
}

void saves_begin(world *all, int rank)
{
    save_state *const save = &all->rank[rank].saving;
    const save_answer answer = {.now_ns = all->now_ns};
    save->busy = true;
    save->step = all->rank[rank].step;
    if (rank == 0)
        all->disk.had[save->step] = all->disk.named[save->step] >= 0;
    save_core_begin(&save->core, rank, rank, all->size);
    save->action = save_core_next(&save->core, &answer);
    sim_log_tell(&all->log, all->now_ns, "rank %d begins its part of step %d's checkpoint", rank,
                 save->step);
    begin_action(all, rank);
}

static void end_save(world *all, int rank)
{
    save_state *const save = &all->rank[rank].saving;
    save->busy = false;
    save->ended_ns = all->now_ns;
    if (rank != 0)
        return;
    sim_log_tell(&all->log, all->now_ns, "the checkpoint of step %d is %s%s", save->step,
                 save->action.code == ST_OK ? "whole" : "not written: ",
                 save->action.code == ST_OK ? "" : status_text());
    disk_check_saved(all, save->step, save->action.code == ST_OK);
}

void saves_go_on(world *all, int rank, uint64_t wish)
{
    process *const at = &all->rank[rank];
    save_state *const save = &at->saving;
    save_answer answer = {0};
    if (!at->alive || wish != save->wish)
        return;
    if (at->stopped) {
        save->missed = true;
        return;
    }
    answer.code = disk_do(all, rank, &save->action, &answer);
    answer.now_ns = all->now_ns;
    answer.leaving = save->leaving;
    disk_check(all);
    save->action = save_core_next(&save->core, &answer);
    all->events++;
    if (save->action.kind == SAVE_END)
        end_save(all, rank);
    else
        begin_action(all, rank);
}
