/* reaping.c: what is done when a local worker's process has ended: its last messages are read, the
 * loss is judged by how it ended, and the pool is told whether to start another (local.c). */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/proc.h"
#include "common/program/log.h"
#include "prepd/serve/dispatch_state.h"

enum {
    LAST_WORDS_MS = 200,
    LEAVE_LIMIT_MS = 3000,
    KILLED_AT_START =
        16, /* after so many in a row that are killed before they begin, there is a pause */
    KILLED_PAUSE_MS = 1000,
};

static const int64_t MS = 1000000;

static loss loss_of(const local_child *child, int wstatus, char *what, size_t size)
{
    switch (proc_end_of(wstatus, what, size)) {
    case PROC_END_OUTSIDE:
        return LOSS_OUTSIDE;
    case PROC_END_TIME:
        return LOSS_TIMEOUT;
    case PROC_END_LEFT:
        return child->leaving || WEXITSTATUS(wstatus) == PROC_EXIT_AGAIN ? LOSS_OUTSIDE
                                                                         : LOSS_CRASH;
    default:
        return LOSS_CRASH;
    }
}

/* Reads messages until the seat of a worker whose process has ended is gone, for a short while:
 * what it said before it ended may still be on its way. */
static void hear_last_words(dispatch *state, pid_t pid)
{
    const int64_t end_ns = clock_ns() + LAST_WORDS_MS * 1000000LL;
    while (seat_of_pid(state, pid) && clock_ns() < end_ns) {
        wire_wait wait = {.socket = state->workers};
        status st = wire_poll(&wait, 1, 5);
        if (st == ST_OK)
            st = seats_read(state);
        if (st != ST_OK) {
            dispatch_fail(state, st);
            return;
        }
    }
}

static void died(dispatch *state, local_child *child, int wstatus)
{
    char what[80];
    local_pool *pool = &state->local;
    loss how = loss_of(child, wstatus, what, sizeof(what));
    if (how == LOSS_CRASH && WIFEXITED(wstatus)) /* it exited by itself, so it knew why */
        hear_last_words(state, child->pid);
    local_child was = *child;
    *child = (local_child){0};
    worker_seat *seat = seat_of_pid(state, was.pid);
    if (seat)
        seat_gone(state, seat, how, what);
    if (state->stopping || was.leaving)
        return;
    pool->respawned++;
    if (WIFEXITED(wstatus) && WEXITSTATUS(wstatus) == PROC_EXIT_AGAIN)
        return; /* it was told to start anew */
    if (was.begun || how == LOSS_OUTSIDE) {
        log_info("worker replaced pid=%d cause=\"%s\"", (int)was.pid, what);
        if (!was.begun && ++pool->killed_at_start > KILLED_AT_START)
            pool->not_before_ns = clock_ns() + KILLED_PAUSE_MS * MS;
        return;
    }
    log_warn("worker died at start pid=%d cause=\"%s\"", (int)was.pid, what);
    local_failed_at_start(state, what);
}

void local_reap(dispatch *state)
{
    int wstatus;
    pid_t pid;
    while ((pid = waitpid(-1, &wstatus, WNOHANG | WUNTRACED)) > 0) {
        local_child *child = local_child_of(state, pid);
        if (WIFSTOPPED(wstatus) && (child || pid == state->maker.pid))
            kill(pid, SIGKILL); /* someone stopped it; its lease must not wait for it to continue */
        else if (child)
            died(state, child, wstatus);
    }
}

void local_stop(dispatch *state)
{
    local_pool *pool = &state->local;
    int64_t limit = clock_ns() + LEAVE_LIMIT_MS * MS;
    for (int i = 0; i < MAX_LOCAL; i++) {
        if (!pool->child[i].pid)
            continue;
        pool->child[i].leaving = true;
        kill(pool->child[i].pid, state->stop_now ? SIGKILL : SIGTERM);
    }
    while (local_alive(state) > 0) {
        local_reap(state);
        dispatch_signals(state); /* a second signal ends the wait */
        if (state->stop_now || clock_ns() > limit)
            for (int i = 0; i < MAX_LOCAL; i++)
                if (pool->child[i].pid)
                    kill(pool->child[i].pid, SIGKILL);
        if (local_alive(state) > 0)
            usleep(5000);
    }
    free(pool->endpoint);
    pool->endpoint = NULL;
}
