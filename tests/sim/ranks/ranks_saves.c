/* ranks_saves.c: checkpoints of the simulated ranks, on a disk that all of them share. The real
 * core of a save decides (trainer/checkpoint/core); this file does what it says to a disk in
 * memory, one action after the other, so that a process can die between any two, or within one that
 * takes long.
 *
 * After every action: what has the name step-N is whole, which means that it is sealed and has
 * every writer's file of the attempt that the seal is of; and the last whole checkpoint is there.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/ranks/ranks_world.h"

enum { KEEPS = 2 }; /* checkpoint.keep_latest_k */

/* ---- the disk ---- */

static save_folder *folder_at(world *all, int number)
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

static void drop_folder(world *all, int *name)
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

static void check_disk(world *all)
{
    const sim_disk *disk = &all->disk;
    for (int step = 1; step <= all->steps; step++) {
        const save_folder *folder = folder_at(all, disk->named[step]);
        if (folder && !is_whole(all, folder))
            world_broken(all, "step-%d has its name and is not whole", step);
        if (!folder && disk->had[step] && disk->exchanges)
            world_broken(all, "step-%d is missing, on a disk that can exchange two names", step);
    }
    if (disk->last > 0 && disk->named[disk->last] < 0)
        world_broken(all, "the checkpoint of step %d, the last whole one, is gone", disk->last);
}

void saves_prepare(world *all)
{
    sim_disk *const disk = &all->disk;
    for (int step = 0; step <= STEPS_MOST; step++)
        disk->named[step] = disk->writing[step] = disk->trash[step] = -1;
    disk->exchanges = sim_random_chance(&all->chances, 2, 3);
    for (int step = 1; step <= all->steps; step++) {
        /* what an earlier run has left: a checkpoint, or something half made */
        if (sim_random_chance(&all->chances, 1, 8)) {
            save_folder *old = folder_at(all, disk->named[step] = new_folder(all));
            old->sealed = true;
            for (int i = 0; i < all->size; i++)
                old->part[i] = true;
        }
        if (sim_random_chance(&all->chances, 1, 16))
            disk->trash[step] = new_folder(all);
    }
}

/* ---- what the core says ---- */

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
        drop_folder(all, trash);
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
            drop_folder(all, &all->disk.named[step]);
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

static status do_action(world *all, int rank, const save_action *action, save_answer *out)
{
    save_state *const save = &all->rank[rank].saving;
    sim_disk *const disk = &all->disk;
    save_folder *const folder = folder_at(all, disk->writing[save->step]);
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
        drop_folder(all, &disk->writing[save->step]);
        return ST_OK;
    case SAVE_MAKE_ROOM:
        out->gone = sim_random_chance(&all->chances, 1, 2);
        if (out->gone)
            prune_old(all, save->step, 1);
        return ST_OK;
    case SAVE_MAKE_FOLDER:
        saves_make_folder(all, save->step);
        return ST_OK;
    case SAVE_PRUNE:
        prune_old(all, save->step, KEEPS);
        return ST_OK;
    case SAVE_NAP:
        return ST_OK;
    case SAVE_TELL:
        process_tell(all, rank, action->mark, action->text);
        return ST_OK;
    default:
        return do_mark(all, rank, folder, action, out);
    }
}

/* ---- a save ---- */

void saves_make_folder(world *all, int step)
{
    drop_folder(all, &all->disk.writing[step]);
    all->disk.writing[step] = new_folder(all);
}

/* An action has an effect at once if it can be cut short, and ends after a while. */
static void begin_action(world *all, int rank)
{
    save_state *const save = &all->rank[rank].saving;
    save_folder *const folder = folder_at(all, all->disk.writing[save->step]);
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
    const save_folder *made = folder_at(all, all->disk.named[save->step]);
    if (!made && all->disk.had[save->step])
        world_broken(all, "step-%d is gone after its save", save->step);
    if (save->action.code == ST_OK && (!made || made->digest[0] != own_digest(0, save->files)))
        world_broken(all, "step-%d is not what was saved", save->step);
    if (save->action.code == ST_OK)
        all->disk.last = save->step;
    check_disk(all);
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
    answer.code = do_action(all, rank, &save->action, &answer);
    answer.now_ns = all->now_ns;
    answer.leaving = save->leaving;
    check_disk(all);
    save->action = save_core_next(&save->core, &answer);
    all->events++;
    if (save->action.kind == SAVE_END)
        end_save(all, rank);
    else
        begin_action(all, rank);
}
