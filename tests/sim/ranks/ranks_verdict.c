/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_verdict.c: what must hold of every job:
 *
 * Nobody hangs: from the last disturbance on, every rank that runs ends within a time that follows
 * from the job's own limits. A job without faults ends well, and none of its ranks is forced.
 *
 * The culprit is named: whoever ends badly says whom it lost, and something did happen to that one.
 * A rank that was stopped or cut off itself sees the others end, and may name any of them; one that
 * was stopped for longer than the silence that counts as a loss names itself. How it was lost is
 * said too, and all others hear of it soon. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/ranks/ranks_world.h"

/* The longest that a save takes, with its tails; and that a rank waits for those of ranks that are
 * gone. */
static const int64_t SAVE_NS = 60 * SECOND, MARKS_NS = 35 * SECOND;

static int64_t longest(const world *all, fault_kind kind)
{
    int64_t most = 0;
    for (int i = 0; i < all->n_faults; i++)
        if (all->fault[i].kind == kind && all->fault[i].for_ns > most)
            most = all->fault[i].for_ns;
    return most;
}

/* How long the work can take if nothing ends it: the longest computations, with all their
 * tails. */
static int64_t work_ns(const world *all)
{
    int64_t step = 256 * all->compute_ns + 2 * MS;
    if (step > all->call_ns / 4)
        step = all->call_ns / 4;
    return all->steps * (step + longest(all, FAULT_SLOW) + SECOND + SAVE_NS) +
           2 * longest(all, FAULT_ROWS);
}

int64_t verdict_deadline(const world *all)
{
    const int64_t joining = 2 * (int64_t)(all->timeout_s * 1e9) + 10 * SECOND;
    /* A loss: noticed within the silence and a beat; passed on; five seconds for the work to end,
     * two for the last word, and beats between all of these. */
    const int64_t loss = 2 * all->silence_ns + 12 * SECOND;
    const int64_t call = 2 * all->call_ns + longest(all, FAULT_ROWS) * 2;
    int64_t last = all->disturbed_ns, start = 0;
    for (int i = 0; i < all->size; i++)
        if (all->rank[i].start_ns > start)
            start = all->rank[i].start_ns;
    for (int i = 0; i < all->n_faults; i++)
        if (all->fault[i].at_ns > last)
            last = all->fault[i].at_ns;
    /* Until the work would have ended, a fault may still lie ahead of its rank. */
    if (!all->fatal)
        last += work_ns(all);
    return (last > start ? last : start) + joining + loss + call + SAVE_NS + MARKS_NS +
           all->slow_disk_ns;
}

/* ---- faults ---- */

static bool is_pause(fault_kind kind)
{
    return kind == FAULT_STOP || kind == FAULT_CUT;
}

/* Whether a rank can be away for so long without anyone minding: the beats before and after it are
 * within the silence, and calls wait longer. A rank that is joining has less time to say who it is.
 */
static bool is_short(const world *all, const fault *pause)
{
    int64_t most = all->silence_ns * 3 / 5;
    if (most > all->call_ns / 2)
        most = all->call_ns / 2;
    for (int i = 0; i < all->size && most > SECOND; i++)
        if (!all->rank[i].joined)
            most = SECOND;
    return pause->for_ns < most;
}

/* How long the others may take to hear of a loss. */
static int64_t notice_ns(const world *all, fault_kind kind)
{
    const int64_t wires = 4 * (all->latency_ns * 257);
    return wires + SECOND + (kind == FAULT_KILL ? 0 : all->silence_ns * 6 / 5);
}

void verdict_fault(world *all, int number)
{
    fault *const at = &all->fault[number];
    const process *rank = &all->rank[at->rank];
    bool at_work = all->n_faults == 1;
    for (int i = 0; i < all->size; i++)
        at_work &= all->rank[i].joined && all->rank[i].alive && all->rank[i].work != WORK_LEAVES;
    if (is_pause(at->kind) && all->n_faults == 1 && is_short(all, at) && !rank->stopped)
        return;
    all->guilty[at->rank] = true;
    if (at->kind == FAULT_RESET)
        return;
    const int64_t notice = notice_ns(all, at->kind);
    at->at_work = at_work;
    if (!at_work || (is_pause(at->kind) && at->for_ns < notice))
        return;
    at->loses = true;
    world_put(all, all->now_ns + notice, SIM_PROMPT, number, 0);
}

void verdict_noticed(world *all, int number)
{
    const fault *at = &all->fault[number];
    for (int i = 0; i < all->size; i++)
        if (i != at->rank && all->rank[i].alive && !all->rank[i].lost[0])
            world_broken(all, "rank %d has not heard of rank %d, which %s at %.3f s", i, at->rank,
                         faults_name(at->kind), (double)at->at_ns * 1e-9);
}

/* What the others say of it, if it is the only fault and all ranks were at work. */
static const char *how_lost(const world *all, fault_kind kind)
{
    switch (kind) {
    case FAULT_KILL:
        return " died"; /* a reset says less than a connection that is closed */
    case FAULT_POWER:
    case FAULT_STOP:
    case FAULT_CUT: /* a call may end before */
        return all->call_ns > all->silence_ns * 2 ? "has said nothing for" : "";
    default:
        return "";
    }
}

/* ---- how a rank may end ---- */

/* Whether this rank can tell which end of a silent link is the cause: rank 0 hears several, and
 * tells those whom it reaches. */
static bool must_know(const world *all, int rank, const fault *lost)
{
    bool several = all->size > 2 && how_lost(all, lost->kind)[0] && lost->at_work;
    for (int i = 1; i < all->size; i++)
        several &= !all->rank[i].left_well;
    if (lost->kind == FAULT_CUT && lost->rank == 0)
        return several && rank == 0;
    return several && (lost->loses || lost->kind == FAULT_CUT) && lost->kind != FAULT_KILL &&
           lost->rank != 0 && rank != lost->rank;
}

/* The shortest stop for which a rank may take the end of the others upon itself: for these to find
 * it silent, or to give up before they have met. */
static int64_t least_still(const world *all)
{
    const int64_t silence = all->silence_ns * 3 / 4, timeout = (int64_t)all->timeout_s * SECOND;
    return silence < timeout ? silence : timeout - MS * 100;
}

/* What a rank says that names the right one. */
static void check_words(world *all, int rank)
{
    const process *at = &all->rank[rank];
    const fault *only = all->n_faults == 1 ? &all->fault[0] : NULL;
    if (only && only->loses && only->rank != rank && !strstr(at->words, how_lost(all, only->kind)))
        world_broken(all, "rank %d does not say how rank %d was lost: %s", rank, only->rank,
                     at->words);
    if (only && must_know(all, rank, only) && !names_alone(all, rank, only->rank))
        world_broken(all, "rank %d could know that it is rank %d alone: %s", rank, only->rank,
                     at->words);
    if (only && only->loses && only->rank == rank && only->kind == FAULT_STOP &&
        how_lost(all, only->kind)[0] && at->work != WORK_LEAVES && at->lost[0] &&
        !names_itself(all, rank))
        world_broken(all, "rank %d, which was stopped, names another: %s", rank, at->words);
    if (at->forced && all->now_ns - at->lost_at < LINK_GRACE_S * (SECOND - MS))
        world_broken(all, "rank %d is forced to end before its time", rank);
}

void verdict_process(world *all, int rank)
{
    const process *at = &all->rank[rank];
    bool any = false;
    for (int i = 0; i < all->size; i++)
        any |= all->guilty[i];
    if (at->well && at->step <= all->steps)
        world_broken(all, "rank %d ends well in step %d of %d", rank, at->step, all->steps);
    for (int i = 0; i < all->size && at->well && rank == 0; i++)
        if (!all->rank[i].left_well)
            world_broken(all, "rank 0 ends well, and rank %d has not done its work", i);
    if (at->well)
        return;
    if (!any)
        world_broken(all, "rank %d ends though nothing happened to any rank: %s", rank, at->words);
    else if (names_itself(all, rank) && (!all->guilty[rank] || at->still_ns < least_still(all)))
        world_broken(all, "rank %d, which was not stopped for long, names itself: %s", rank,
                     at->words);
    else if (!names_cause(all, rank))
        world_broken(all, "rank %d names another than the culprit: %s", rank, at->words);
    else
        check_words(all, rank);
}

void verdict_all(world *all)
{
    bool harmless = true, all_hang = true;
    for (int i = 0; i < all->size; i++) {
        harmless &= !all->guilty[i];
        all_hang &= all->rank[i].work == WORK_HANGS;
    }
    if (all_hang) /* nobody is left who could miss another */
        return;
    for (int i = 0; i < all->size; i++) {
        const process *at = &all->rank[i];
        if (at->alive && !at->stopped)
            world_broken(all, "rank %d hangs: it has not ended by %.1f s (it %s)", i,
                         (double)all->now_ns * 1e-9, at->joined ? "had joined" : "was joining");
        if (harmless && (!at->ended || !at->well))
            world_broken(all, "rank %d has not ended well, and nothing happened", i);
    }
}
