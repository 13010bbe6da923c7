/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_disk.c: the disk that all simulated ranks share, in memory, and what the real core of a
 * save (trainer/checkpoint/core) has done to it, one action after the other.
 *
 * After every action: what has the name step-N is whole, which means that it is sealed and has
 * every writer's file of the attempt that the seal is of; and the last whole checkpoint is there.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/ranks/ranks_world.h"

save_folder *disk_folder(world *all, int number)
{
    return number < 0 ? NULL : &all->disk.folder[number];
}

static int new_folder(world *all)
{
    sim_disk *const disk = &all->disk;
    for (int i = 0; i < FOLDERS_MOST; i++)
        if (!disk->folder[i].used) {
            memset(&disk->folder[i], 0, sizeof disk->folder[i]);
            disk->folder[i].used = true;
            return i;
        }
    abort();
}

void disk_drop(world *all, int *name)
{
    if (*name >= 0)
        all->disk.folder[*name].used = false;
    *name = -1;
}

static bool is_whole(const world *all, const save_folder *folder)
{
    bool whole = folder->sealed;
    for (int i = 0; i < all->size && whole; i++)
        whole = folder->part[i] && !folder->torn[i] && folder->digest[i] == folder->seal[i];
    return whole;
}

void disk_check(world *all)
{
    const sim_disk *disk = &all->disk;
    for (int step = 1; step <= all->steps; step++) {
        const save_folder *folder = disk_folder(all, disk->named[step]);
        if (folder && !is_whole(all, folder))
            world_broken(all, "step-%d has its name and is not whole", step);
        if (!folder && disk->had[step] && disk->exchanges)
            world_broken(all, "step-%d is missing, on a disk that can exchange two names", step);
    }
    if (disk->last > 0 && disk->named[disk->last] < 0)
        world_broken(all, "the checkpoint of step %d, the last whole one, is gone", disk->last);
}

save_folder *disk_written(world *all, int step)
{
    return disk_folder(all, all->disk.writing[step]);
}

void disk_make_folder(world *all, int step)
{
    disk_drop(all, &all->disk.writing[step]);
    all->disk.writing[step] = new_folder(all);
}

void disk_prepare(world *all)
{
    sim_disk *const disk = &all->disk;
    for (int step = 0; step <= STEPS_MOST; step++)
        disk->named[step] = disk->writing[step] = disk->trash[step] = -1;
    disk->exchanges = sim_random_chance(&all->chances, 2, 3);
    for (int step = 1; step <= all->steps; step++) {
        /* what an earlier run has left: a checkpoint, or something half made */
        if (sim_random_chance(&all->chances, 1, 8)) {
            save_folder *old = disk_folder(all, disk->named[step] = new_folder(all));
            old->sealed = true;
            for (int i = 0; i < all->size; i++)
                old->part[i] = true;
        }
        if (sim_random_chance(&all->chances, 1, 16))
            disk->trash[step] = new_folder(all);
    }
}
