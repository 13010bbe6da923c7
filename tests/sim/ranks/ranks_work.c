/* ranks_work.c: what a rank does besides watching the others: steps, in each of which it computes,
 * now and then waits for rows, and makes a collective call that all ranks make; now and then a
 * checkpoint is saved, which takes two more calls and goes on beside the next steps. It stands for
 * the engines' wait (trainer/parallel/mpi_exchange.c), the steps around it and the beginning of a
 * save (trainer/checkpoint/writer.c). */
#include <string.h>

#include "tests/sim/ranks/ranks_world.h"

/* The next time at which the rank's work goes on; earlier wishes are void. */
static void wish(world *all, int rank, int64_t after_ns)
{
    process *const at = &all->rank[rank];
    world_put(all, all->now_ns + after_ns, SIM_WORK, rank, ++at->work_wish);
}

/* How long a rank that is in a call waits before it looks again. */
static int64_t look_ns(const world *all)
{
    const int64_t part = all->call_ns / 8;
    return part < 500 * MS ? part : 500 * MS;
}

static call_state *call_of(world *all, int rank)
{
    const process *at = &all->rank[rank];
    return &all->call[at->step * CALLS + at->part];
}

static void enter_call(world *all, int rank)
{
    process *const at = &all->rank[rank];
    call_state *const call = call_of(all, rank);
    at->work = WORK_CALLS;
    at->call = call_deadline_begin(all->now_ns, all->call_ns);
    call->came[rank] = true;
    call->n_came++;
    call->last = rank;
    sim_log_note(&all->log, all->now_ns, 111, rank, (uint64_t)(at->step * CALLS + at->part));
    wish(all, rank, look_ns(all));
    work_look(all);
}

/* What a rank's micro-batch needs in a step. */
static uint8_t need_of(int rank, int step, int number)
{
    return (uint8_t)((rank * 37 + step * 11 + number * 101) % 251);
}

/* Asks for the shape of the step's micro-batch, which all ranks do. */
static void ask_shape(world *all, int rank)
{
    process *const at = &all->rank[rank];
    uint8_t need[LINK_NEEDS];
    for (int i = 0; i < LINK_NEEDS; i++)
        need[i] = need_of(rank, at->step, i);
    at->work = WORK_AGREES;
    wish(all, rank, look_ns(all));
    process_need(all, rank, need);
}

void work_agreed(world *all, int rank, const uint8_t most[LINK_NEEDS])
{
    process *const at = &all->rank[rank];
    if (at->work != WORK_AGREES) {
        world_broken(all, "rank %d hears an answer that it does not wait for", rank);
        return;
    }
    for (int i = 0; i < LINK_NEEDS; i++) {
        uint8_t want = 0;
        for (int other = 0; other < all->size; other++)
            want = need_of(other, at->step, i) > want ? need_of(other, at->step, i) : want;
        if (most[i] != want)
            world_broken(all, "rank %d, step %d: need %d is %d, and the largest is %d", rank,
                         at->step, i, most[i], want);
    }
    enter_call(all, rank);
}

/* Waits for the save under way, or goes on with work_saved at once. */
static void await_save(world *all, int rank)
{
    all->rank[rank].work = WORK_WAITS_SAVE;
    all->rank[rank].waits = true;
    work_saved(all, rank);
}

/* The rank's work has failed. */
static void fail_work(world *all, int rank, const char *why)
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
        enter_call(all, rank);
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
        wish(all, rank, rows->for_ns);
        return;
    }
    at->work = WORK_COMPUTES;
    wish(all, rank, computes + (slow ? slow->for_ns : 0));
}

/* A call has completed. */
static void end_call(world *all, int rank)
{
    process *const at = &all->rank[rank];
    const bool saves = all->save_every > 0 && at->step % all->save_every == 0;
    if (at->leaves) { /* a slow one has something to do at its end, too */
        const fault *slow = faults_find(all, FAULT_SLOW, rank);
        at->work = WORK_COMPUTES;
        wish(all, rank, slow ? slow->for_ns : 0);
    } else if (at->part == 0 && saves) {
        at->part = 1;
        await_save(all, rank);
    } else if (at->part == 1) {
        at->part = 2;
        at->work = WORK_MAKES_FOLDER;
        wish(all, rank, rank == 0 ? sim_random_tail(&all->works, MS, 20 * MS) : 1000);
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
        fail_work(all, rank, at->lost);
    } else if (at->leaves) {
        process_leave(all, rank, NULL);
    } else if (fails && fails->step == at->step) {
        all->guilty[rank] = all->fatal = true;
        all->disturbed_ns = all->now_ns;
        fail_work(all, rank, "a NaN");
    } else if (hangs && hangs->step == at->step) {
        all->guilty[rank] = all->fatal = true;
        all->disturbed_ns = all->now_ns;
        at->work = WORK_HANGS;
        sim_log_tell(&all->log, all->now_ns, "rank %d hangs in its work", rank);
    } else {
        ask_shape(all, rank);
    }
}

/* The message of a call that is too late: who has not come, cannot be heard, or came so late that
 * its bytes are still under way. */
static void fail_late(world *all, int rank)
{
    char words[256];
    const call_state *call = call_of(all, rank);
    int used = snprintf(words, sizeof words, "no answer within %.1f s from ranks",
                        (double)all->call_ns * 1e-9);
    for (int i = 0; i < all->size && used < (int)sizeof words - 16; i++)
        if (!call->came[i] || (call->complete && i == call->last) ||
            (i != rank && (all->rank[i].cut || all->rank[i].lost_power)))
            used += snprintf(words + used, sizeof words - (size_t)used, " %d", i);
    fail_work(all, rank, words);
}

static void look_at_call(world *all, int rank)
{
    process *const at = &all->rank[rank];
    const call_state *call = call_of(all, rank);
    if (call->complete && all->now_ns >= call->complete_ns && !at->cut)
        end_call(all, rank);
    else if (at->lost[0])
        fail_work(all, rank, at->lost);
    else if (call_deadline_passed(&at->call, all->now_ns,
                                  at->waits || link_core_others_wait(at->core)))
        fail_late(all, rank);
    else
        wish(all, rank, look_ns(all));
}

void work_begin(world *all, int rank)
{
    all->rank[rank].step = 0;
    all->rank[rank].work = WORK_COMPUTES;
    wish(all, rank, sim_random_between(&all->works, 0, 200 * MS));
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
        look_at_call(all, rank);
    else if (at->work == WORK_AGREES && at->lost[0])
        fail_work(all, rank, at->lost);
    else if (at->work == WORK_AGREES)
        wish(all, rank, look_ns(all));
    else if (at->work == WORK_COMPUTES && at->step == 0)
        begin_step(all, rank);
    else if (at->work == WORK_COMPUTES || at->work == WORK_WAITS_ROWS)
        end_computing(all, rank);
    else if (at->work == WORK_MAKES_FOLDER) {
        if (rank == 0)
            saves_make_folder(all, at->step);
        enter_call(all, rank);
    }
}

void work_look(world *all)
{
    for (int number = 0; number < (all->steps + 2) * CALLS; number++) {
        call_state *const call = &all->call[number];
        bool cut = false;
        if (call->complete || call->n_came < all->size)
            continue;
        for (int i = 0; i < all->size; i++)
            cut |= all->rank[i].cut || all->rank[i].lost_power;
        if (cut)
            continue;
        call->complete = true;
        call->complete_ns = all->now_ns + sim_random_tail(&all->works, 10000, MS);
        for (int i = 0; i < all->size; i++)
            if (all->rank[i].work == WORK_CALLS && call_of(all, i) == call)
                world_put(all, call->complete_ns, SIM_WORK, i, all->rank[i].work_wish);
    }
}
