/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_disk_actions.c: what the real core of a save (trainer/checkpoint/core) has done to the
 * disk, and how that fails now and then. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/ranks/ranks_world.h"

enum { KEEPS = 2 }; /* checkpoint.keep_latest_k */

static bool rename_folder(world *all, int *from, int *to)
{
    if (*from < 0)
        return false;
    if (*to >= 0)
        world_broken(all, "a folder is renamed to a name that is taken");
    *to = *from;
    *from = -1;
    return true;
}

static status no_such_name(save_answer *out)
{
    out->absent = true;
    return FAIL(ST_IO, "rename: no such folder");
}

/* Whether the disk fails now. */
static bool disk_fails(world *all)
{
    if (!sim_random_chance(&all->chances, 1, 300))
        return false;
    errno = sim_random_chance(&all->chances, 1, 2) ? ENOSPC : EIO;
    return true;
}

static status do_commit(world *all, int step, commit_step what, save_answer *out)
{
    sim_disk *const disk = &all->disk;
    int *const named = &disk->named[step], *const writing = &disk->writing[step],
               *const trash = &disk->trash[step], other = *named;
    switch (what) {
    case COMMIT_CLEAR_TRASH:
    case COMMIT_DROP_OLD:
        if (disk_fails(all))
            return FAIL(ST_IO, "a folder cannot be deleted");
        disk_drop(all, trash);
        return ST_OK;
    case COMMIT_EXCHANGE:
        if (!disk->exchanges || *named < 0 || *writing < 0)
            return FAIL(ST_IO, "names are not exchanged");
        *named = *writing;
        *writing = other;
        return ST_OK;
    case COMMIT_TRASH_OLD:
        return rename_folder(all, writing, trash) ? ST_OK : no_such_name(out);
    case COMMIT_SET_ASIDE:
        return rename_folder(all, named, trash) ? ST_OK : no_such_name(out);
    case COMMIT_PLACE:
        if (sim_random_chance(&all->chances, 1, 50))
            return FAIL(ST_IO, "rename: an error of the disk");
        return rename_folder(all, writing, named) ? ST_OK : no_such_name(out);
    case COMMIT_PUT_BACK:
        rename_folder(all, trash, named);
        return ST_OK;
    default:
        return disk_fails(all) ? FAIL(ST_IO, "the folder cannot be synced") : ST_OK;
    }
}

static uint64_t own_digest(int rank, uint64_t files)
{
    return sim_random_mix((uint64_t)rank * 1000 + files);
}

/* Files of a rank that is full or broken, now and then. */
static status fill_part(world *all, int rank, save_folder *folder)
{
    process *const at = &all->rank[rank];
    if (!folder)
        return FAIL(ST_IO, "the folder is gone");
    if (sim_random_chance(&all->chances, 1, 40)) {
        errno = sim_random_chance(&all->chances, 1, 2) ? ENOSPC : EIO;
        return FAIL(ST_IO, "rank %d's file cannot be written", rank);
    }
    folder->torn[rank] = false;
    folder->digest[rank] = own_digest(rank, ++at->saving.files);
    return ST_OK;
}

/* Removes the oldest up to this step. */
static void prune_old(world *all, int newest, int keeps)
{
    int count = 0;
    for (int step = newest; step > 0; step--)
        if (all->disk.named[step] >= 0 && ++count > keeps && step != all->disk.last) {
            all->disk.had[step] = false;
            disk_drop(all, &all->disk.named[step]);
        }
}

/* The first rank waits no longer for a rank that has done, or told it, all that it can. */
static void check_wait(world *all, int writer)
{
    const save_state *save = &all->rank[writer].saving;
    const int64_t wires = 4 * (all->latency_ns * 257) + SECOND;
    if (all->n_faults == 0 && save->step == all->rank[0].saving.step && !save->busy &&
        all->now_ns - save->ended_ns > wires)
        world_broken(all, "rank 0 waits for rank %d, whose part of step %d's checkpoint has ended",
                     writer, save->step);
}

static void look_for_mark(world *all, const save_folder *folder, int writer, save_answer *out)
{
    const process *other = &all->rank[writer];
    save_state *const own = &all->rank[0].saving;
    out->mark = folder->mark[writer];
    memcpy(own->text, folder->text[writer], sizeof own->text);
    if (other->told_step == own->step) {
        out->mark = other->told;
        memcpy(own->text, other->told_text, sizeof own->text);
    }
    if (out->mark == MARK_NONE)
        check_wait(all, writer);
}

static status do_mark(world *all, int rank, save_folder *folder, const save_action *action,
                      save_answer *out)
{
    save_state *const save = &all->rank[rank].saving;
    out->text = save->text;
    if (!folder)
        return FAIL(ST_IO, "the folder is gone");
    switch (action->kind) {
    case SAVE_DIGEST:
        if (disk_fails(all))
            return FAIL(ST_IO, "rank %d's file cannot be read", rank);
        snprintf(save->text, sizeof save->text, "%016" PRIx64, folder->digest[rank]);
        return ST_OK;
    case SAVE_REMOVE_OWN:
        folder->part[rank] = false;
        return ST_OK;
    case SAVE_MARK:
        if (sim_random_chance(&all->chances, 1, 60)) {
            errno = ENOSPC;
            return FAIL(ST_IO, "the mark of rank %d cannot be written", rank);
        }
        folder->mark[rank] = action->mark;
        snprintf(folder->text[rank], sizeof folder->text[rank], "%s", action->text);
        return ST_OK;
    case SAVE_LOOK:
        look_for_mark(all, folder, action->writer, out);
        save->known[action->writer] = strtoull(save->text, NULL, 16);
        return ST_OK;
    default:
        if (disk_fails(all))
            return FAIL(ST_IO, "the mark of rank %d cannot be deleted", action->writer);
        folder->mark[action->writer] = MARK_NONE;
        return ST_OK;
    }
}

status disk_do(world *all, int rank, const save_action *action, save_answer *out)
{
    save_state *const save = &all->rank[rank].saving;
    sim_disk *const disk = &all->disk;
    save_folder *const folder = disk_written(all, save->step);
    switch (action->kind) {
    case SAVE_FILL:
        return fill_part(all, rank, folder);
    case SAVE_SEAL:
        if (!folder)
            return FAIL(ST_IO, "the folder is gone");
        if (disk_fails(all))
            return FAIL(ST_IO, "the manifest cannot be written");
        folder->sealed = true;
        for (int i = 0; i < all->size; i++)
            folder->seal[i] = i == rank ? folder->digest[i] : save->known[i];
        return ST_OK;
    case SAVE_COMMIT:
        return do_commit(all, save->step, action->commit, out);
    case SAVE_DISCARD:
        disk_drop(all, &disk->writing[save->step]);
        return ST_OK;
    case SAVE_MAKE_ROOM:
        out->gone = sim_random_chance(&all->chances, 1, 2);
        if (out->gone)
            prune_old(all, save->step, 1);
        return ST_OK;
    case SAVE_MAKE_FOLDER:
        disk_make_folder(all, save->step);
        return ST_OK;
    case SAVE_PRUNE:
        prune_old(all, save->step, KEEPS);
        return ST_OK;
    case SAVE_NAP:
        return ST_OK;
    case SAVE_POST:
        process_tell(all, rank, action->mark, action->text);
        return ST_OK;
    default:
        return do_mark(all, rank, folder, action, out);
    }
}

void disk_check_saved(world *all, int step, bool whole)
{
    const save_folder *made = disk_folder(all, all->disk.named[step]);
    if (!made && all->disk.had[step])
        world_broken(all, "step-%d is gone after its save", step);
    if (whole && (!made || made->digest[0] != own_digest(0, all->rank[0].saving.files)))
        world_broken(all, "step-%d is not what was saved", step);
    if (whole)
        all->disk.last = step;
    disk_check(all);
}
