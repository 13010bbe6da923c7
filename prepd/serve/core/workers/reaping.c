/* SPDX-License-Identifier: Apache-2.0 */
/* reaping.c: what is done when a local worker's process has ended: the loss is judged by how it
 * ended, and the pool is told whether to start another (local.c). */
#include <sys/types.h>

#include "prepd/serve/core/workers/core_workers.h"

enum {
    LAST_WORDS_MS = 200,
    LEAVE_LIMIT_MS = 3000,
    KILLED_AT_START =
        16, /* after so many in a row that are killed before they begin, there is a pause */
    KILLED_PAUSE_MS = 1000,
};

static const int64_t MS = 1000000;

static loss loss_of(const local_child *child)
{
    const child_end *end = &child->end;
    switch (end->how) {
    case PROC_END_OUTSIDE:
        return LOSS_OUTSIDE;
    case PROC_END_TIME:
        return LOSS_TIMEOUT;
    case PROC_END_LEFT:
        return child->leaving || end->code == PROC_EXIT_AGAIN ? LOSS_OUTSIDE : LOSS_CRASH;
    default:
        return LOSS_CRASH;
    }
}

static void free_place(local_pool *pool, local_child *child)
{
    *child = (local_child){0};
    while (pool->n_places > 0 && !pool->child[pool->n_places - 1].pid)
        pool->n_places--;
}

/* Removes the child, judges what its worker had in work, and decides about another one. */
static void bury_child(dispatch *state, local_child *child)
{
    local_pool *pool = &state->local;
    const local_child was = *child;
    const loss how = loss_of(&was);
    free_place(pool, child);
    worker_seat *seat = seat_of_pid(state, was.pid);
    if (seat)
        seat_gone(state, seat, how, was.end.what);
    if (state->stopping || was.leaving)
        return;
    pool->respawned++;
    if (was.end.code == PROC_EXIT_AGAIN)
        return; /* it was told to start anew */
    if (was.begun || how == LOSS_OUTSIDE) {
        core_info(state, "worker replaced pid=%d cause=\"%s\"", (int)was.pid, was.end.what);
        if (!was.begun && ++pool->killed_at_start > KILLED_AT_START) {
            pool->not_before_ns = state->now_ns + KILLED_PAUSE_MS * MS;
            if (pool->killed_ns == 0)
                pool->killed_ns = state->now_ns;
        }
        return;
    }
    core_warn(state, "worker died at start pid=%d cause=\"%s\"", (int)was.pid, was.end.what);
    local_failed_at_start(state, was.end.what);
}

void child_ended(dispatch *state, pid_t pid, const child_end *end)
{
    local_child *child = local_child_of(state, pid);
    if (!child || child->ended)
        return;
    child->ended = true;
    child->end = *end;
    worker_seat *seat = seat_of_pid(state, pid);
    if (seat && loss_of(child) == LOSS_CRASH && end->code >= 0) {
        /* It exited by itself, so it knew why. What it said before may still be on its way. */
        child->bury_ns = state->now_ns + LAST_WORDS_MS * MS;
        seat->ended = true;
        return;
    }
    bury_child(state, child);
}

void child_paused(dispatch *state, pid_t pid)
{
    /* Its lease must not wait until someone continues it. */
    local_end(state, local_child_of(state, pid), true);
    if (pid == state->maker.pid)
        state->outside.end_process(state->outside.shell, pid, true);
}

void local_reap(dispatch *state)
{
    for (int i = 0; i < state->local.n_places; i++) {
        local_child *child = &state->local.child[i];
        if (child->ended && (!seat_of_pid(state, child->pid) || state->now_ns >= child->bury_ns))
            bury_child(state, child);
    }
}

void local_leave(dispatch *state)
{
    local_pool *pool = &state->local;
    pool->leave_by_ns = state->now_ns + LEAVE_LIMIT_MS * MS;
    for (int i = 0; i < pool->n_places; i++) {
        pool->child[i].leaving = pool->child[i].pid != 0;
        local_end(state, &pool->child[i], state->stop_now);
    }
}

bool local_has_left(dispatch *state)
{
    local_pool *pool = &state->local;
    const bool at_once = state->stop_now || state->now_ns > pool->leave_by_ns;
    for (int i = 0; i < pool->n_places; i++) {
        local_child *child = &pool->child[i];
        if (child->ended)
            free_place(pool, child);
        else if (at_once)
            local_end(state, child, true);
    }
    return local_alive(state) == 0;
}
