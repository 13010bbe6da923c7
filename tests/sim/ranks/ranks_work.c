/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_work.c: what a rank does besides watching the others: steps, in each of which it computes,
 * now and then waits for rows, and makes a collective call that all ranks make; now and then a
 * checkpoint is saved, which takes two more calls and goes on beside the next steps. It stands for
 * the engines' wait (trainer/parallel/comm/mpi_exchange.c), the steps around it and the beginning of a
 * save (trainer/checkpoint/save/writer_save.c). */
#include <string.h>

#include "tests/sim/ranks/ranks_world.h"

/* The next time at which the rank's work goes on; earlier wishes are void. */
void work_wish_in(world *all, int rank, int64_t after_ns)
{
    process *const at = &all->rank[rank];
    world_put(all, all->now_ns + after_ns, SIM_WORK, rank, ++at->work_wish);
}

/* Waits for the save under way, or goes on with work_saved at once. */
static void await_save(world *all, int rank)
{
    all->rank[rank].work = WORK_WAITS_SAVE;
    all->rank[rank].waits = true;
    work_saved(all, rank);
}

/* The rank's work has failed. */
void work_fail(world *all, int rank, const char *why)
{
    process *const at = &all->rank[rank];
    const size_t length = strnlen(why, sizeof at->reason - 1);
    memcpy(at->reason, why, length);
    at->reason[length] = 0;
    at->leaves = at->leaves_badly = at->saving.leaving = true;
    await_save(all, rank);
}

void work_saved(world *all, int rank)
{
    process *const at = &all->rank[rank];
    if (at->work != WORK_WAITS_SAVE || at->saving.busy || !process_runs(all, rank))
        return;
    at->waits = false;
    if (at->leaves_badly)
        process_leave(all, rank, at->reason);
    else
        work_enter_call(all, rank);
}

static void begin_step(world *all, int rank)
{
    process *const at = &all->rank[rank];
    at->step++;
    at->part = 0;
    if (at->step > all->steps) {
        at->leaves = true;
        await_save(all, rank);
        return;
    }
    sim_log_note(&all->log, all->now_ns, 110, rank, (uint64_t)at->step);
    const fault *slow = faults_find(all, FAULT_SLOW, rank);
    const fault *rows = faults_find(all, FAULT_ROWS, rank);
    const int64_t computes = sim_random_tail(&all->works, MS, all->compute_ns) % (all->call_ns / 4);
    if (rows && rows->step == at->step) {
        at->work = WORK_WAITS_ROWS;
        at->waits = true;
        sim_log_tell(&all->log, all->now_ns, "rank %d waits for rows", rank);
        work_wish_in(all, rank, rows->for_ns);
        return;
    }
    at->work = WORK_COMPUTES;
    work_wish_in(all, rank, computes + (slow ? slow->for_ns : 0));
}

/* A call has completed. */
void work_end_call(world *all, int rank)
{
    process *const at = &all->rank[rank];
    const bool saves = all->save_every > 0 && at->step % all->save_every == 0;
    if (at->leaves) { /* a slow one has something to do at its end, too */
        const fault *slow = faults_find(all, FAULT_SLOW, rank);
        at->work = WORK_COMPUTES;
        work_wish_in(all, rank, slow ? slow->for_ns : 0);
    } else if (at->part == 0 && saves) {
        at->part = 1;
        await_save(all, rank);
    } else if (at->part == 1) {
        at->part = 2;
        at->work = WORK_MAKES_FOLDER;
        work_wish_in(all, rank, rank == 0 ? sim_random_tail(&all->works, MS, 20 * MS) : 1000);
    } else {
        if (at->part == 2)
            saves_begin(all, rank);
        begin_step(all, rank);
    }
}

static void end_computing(world *all, int rank)
{
    process *const at = &all->rank[rank];
    const fault *fails = faults_find(all, FAULT_FAILS, rank);
    const fault *hangs = faults_find(all, FAULT_HANGS, rank);
    at->waits = false;
    if (at->lost[0]) { /* it looks before it calls */
        work_fail(all, rank, at->lost);
    } else if (at->leaves) {
        process_leave(all, rank, NULL);
    } else if (fails && fails->step == at->step) {
        all->guilty[rank] = all->fatal = true;
        all->disturbed_ns = all->now_ns;
        work_fail(all, rank, "a NaN");
    } else if (hangs && hangs->step == at->step) {
        all->guilty[rank] = all->fatal = true;
        all->disturbed_ns = all->now_ns;
        at->work = WORK_HANGS;
        sim_log_tell(&all->log, all->now_ns, "rank %d hangs in its work", rank);
    } else {
        work_ask_shape(all, rank);
    }
}

void work_begin(world *all, int rank)
{
    all->rank[rank].step = 0;
    all->rank[rank].work = WORK_COMPUTES;
    work_wish_in(all, rank, sim_random_between(&all->works, 0, 200 * MS));
}

void work_go_on(world *all, int rank, uint64_t wished)
{
    process *const at = &all->rank[rank];
    if (!at->alive || (wished != 0 && wished != at->work_wish))
        return;
    if (at->stopped) {
        at->missed_work = true;
        return;
    }
    if (wished == 0 && at->work != WORK_CALLS && at->work != WORK_AGREES)
        return; /* the job is over; only those that wait for others look at once */
    if (at->work == WORK_CALLS)
        work_look_at_call(all, rank);
    else if (at->work == WORK_AGREES && at->lost[0])
        work_fail(all, rank, at->lost);
    else if (at->work == WORK_AGREES)
        work_wish_in(all, rank, work_look_ns(all));
    else if (at->work == WORK_COMPUTES && at->step == 0)
        begin_step(all, rank);
    else if (at->work == WORK_COMPUTES || at->work == WORK_WAITS_ROWS)
        end_computing(all, rank);
    else if (at->work == WORK_MAKES_FOLDER) {
        if (rank == 0)
            disk_make_folder(all, at->step);
        work_enter_call(all, rank);
    }
}
