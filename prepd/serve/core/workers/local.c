/* SPDX-License-Identifier: Apache-2.0 */
/* local.c: how many local worker processes there are to be. They are replaced when they die, and
 * counted when they cannot even start, so that the daemon gives up instead of trying for ever. */
#include <string.h>

#include "prepd/serve/core/workers/core_workers.h"

enum {
    /* Deaths in a row, before any work, after which the daemon gives up: */
    GIVE_UP_SAID = 3,   /* where the workers say why, since that reason will not pass */
    GIVE_UP_DEATHS = 8, /* where they do not say why: workers cannot start here */
    GIVE_UP_LATE = 60, /* where some have worked before: about a minute, since the cause may pass */
    FIRST_PAUSE_MS = 50,
    MAX_PAUSE_MS = 1000,
    OPERATOR_PAUSE_MS = 10000, /* where only an operator can help */
    JOIN_LIMIT_S = 60,         /* a worker that has not joined by then hangs and is killed */
};

static const int64_t MS = 1000000;

local_child *local_child_of(const dispatch *state, pid_t pid)
{
    for (int i = 0; i < state->local.n_places; i++)
        if (pid > 0 && state->local.child[i].pid == pid)
            return (local_child *)&state->local.child[i];
    return NULL;
}

void local_end(dispatch *state, const local_child *child, bool at_once)
{
    if (child && child->pid && !child->ended)
        state->outside.end_process(state->outside.shell, child->pid, at_once);
}

/* How many local workers the options ask for. */
static int wanted(const dispatch *state)
{
    const int64_t asked = state->options->prepd_workers;
    if (asked < 0)
        return 0;
    const int64_t count = asked ? asked : state->place.cpus;
    return count > MAX_LOCAL ? MAX_LOCAL : (int)count;
}

static status start_one(dispatch *state, local_child *child)
{
    local_child started = {.started_ns = state->now_ns};
    TRY(state->outside.start_worker(state->outside.shell, started.ticket, &started.pid));
    *child = started;
    return ST_OK;
}

int local_alive(const dispatch *state)
{
    int count = 0;
    for (int i = 0; i < state->local.n_places; i++)
        count += state->local.child[i].pid != 0;
    return count;
}

static int staying(const local_pool *pool)
{
    int count = 0;
    for (int i = 0; i < pool->n_places; i++)
        count += pool->child[i].pid != 0 && !pool->child[i].leaving;
    return count;
}

const local_child *local_child_with(const dispatch *state, const char *ticket)
{
    for (int i = 0; i < state->local.n_places; i++) {
        const local_child *one = &state->local.child[i];
        if (one->pid && one->ticket[0] && strcmp(one->ticket, ticket) == 0)
            return one;
    }
    return NULL;
}

/* How many there are to be: what was asked for, or what is needed to decide. */
static int wanted_now(const local_pool *pool)
{
    return pool->needed > pool->target ? pool->needed : pool->target;
}

void local_joined(dispatch *state, pid_t pid)
{
    local_child *one = local_child_of(state, pid);
    if (one)
        one->joined = true;
}

void local_begun(dispatch *state, pid_t pid)
{
    local_child *one = local_child_of(state, pid);
    if (one)
        one->begun = true;
    state->local.any_begun = true;
    state->local.deaths_at_start = state->local.killed_at_start = 0;
    state->local.killed_ns = 0;
    state->local.why.code = ST_OK;
}

void local_note_cause(dispatch *state, pid_t pid)
{
    if (local_child_of(state, pid))
        state->local.why = *status_last();
}

void local_kill(dispatch *state, pid_t pid)
{
    local_end(state, local_child_of(state, pid), true);
}

/* Workers that are started now decode differently from the daemon, although others have worked: a
 * library was changed beneath it. Rows of both would be another stream, and to end would lose the
 * run, so the workers are tried at times until an operator has acted. */
static void wait_for_operator(dispatch *state)
{
    local_pool *pool = &state->local;
    const bool known = pool->deaths_at_start >= GIVE_UP_SAID;
    pool->not_before_ns = state->now_ns + (known ? OPERATOR_PAUSE_MS : MAX_PAUSE_MS) * MS;
    if (pool->deaths_at_start == GIVE_UP_SAID)
        core_warn(state,
                  "local workers no longer make this daemon's rows, and the run waits: %s. A "
                  "library was changed beneath the daemon: install the earlier one again, or "
                  "restart the daemon and raise data.generation",
                  pool->why.message);
}

/* A worker that ends before it began any work is replaced after a pause, but not for ever. All that
 * end before the pause is over count as one, since they all die of the same cause. */
void local_failed_at_start(dispatch *state, const char *what)
{
    local_pool *pool = &state->local;
    if (state->now_ns < pool->not_before_ns)
        return;
    const bool said = pool->why.code != ST_OK;
    const int limit = pool->any_begun ? GIVE_UP_LATE : said ? GIVE_UP_SAID : GIVE_UP_DEATHS;
    pool->deaths_at_start++;
    if (pool->why.code == ST_MISMATCH && pool->any_begun) {
        wait_for_operator(state);
        return;
    }
    int64_t pause = (int64_t)FIRST_PAUSE_MS
                    << (pool->deaths_at_start < 7 ? pool->deaths_at_start : 7);
    pool->not_before_ns = state->now_ns + (pause < MAX_PAUSE_MS ? pause : MAX_PAUSE_MS) * MS;
    if (pool->deaths_at_start < limit)
        return;
    if (said) {
        status_set(&pool->why);
        dispatch_fail(state, pool->why.code);
    } else {
        dispatch_fail(state,
                      FAIL(ST_UNAVAILABLE,
                           "workers died %d times in a row before they began any work (last: %s); "
                           "their own messages above say why",
                           pool->deaths_at_start, what));
    }
}

/* Whether a worker that is to be can be expected: for a minute the system has not refused to start
 * one, nor has every one been killed before it began. */
static bool is_expected(const dispatch *state)
{
    const int64_t patience_ns = INT64_C(60) * 1000 * MS, unstarted = state->local.unstarted_ns,
                  killed = state->local.killed_ns;
    return (unstarted == 0 || state->now_ns - unstarted < patience_ns) &&
           (killed == 0 || state->now_ns - killed < patience_ns);
}

/* The system has no process or descriptor left for one more worker.
 * Those that are there continue. */
static void not_spawned(dispatch *state)
{
    const status_note why = *status_last();
    core_warn(state, "worker not started: %s", status_text());
    if (state->local.unstarted_ns == 0)
        state->local.unstarted_ns = state->now_ns;
    if (local_alive(state) == 0) {
        state->local.why = why;
        local_failed_at_start(state, why.message);
        state->local.why.code = ST_OK; /* a worker that is started later dies of something else */
    }
    state->local.not_before_ns = state->now_ns + MAX_PAUSE_MS * MS;
}

void local_tick(dispatch *state, int64_t now)
{
    local_pool *pool = &state->local;
    for (int i = 0; i < pool->n_places; i++) {
        local_child *one = &pool->child[i];
        if (one->pid && !one->joined && !one->leaving && !one->ended &&
            now - one->started_ns > (int64_t)JOIN_LIMIT_S * 1000 * MS) {
            core_warn(state, "worker did not join, killed pid=%d seconds=%d", (int)one->pid,
                      JOIN_LIMIT_S);
            local_end(state, one, true);
        }
    }
    if (state->stopping || now < pool->not_before_ns)
        return;
    int missing = wanted_now(pool) - staying(pool);
    for (int i = 0; i < MAX_LOCAL && missing > 0; i++) {
        if (pool->child[i].pid)
            continue;
        if (start_one(state, &pool->child[i]) != ST_OK) {
            not_spawned(state);
            return;
        }
        pool->unstarted_ns = 0;
        if (i == pool->n_places)
            pool->n_places++;
        missing--;
    }
}

/* Has those leave that are more than there are to be, the youngest first: a worker that has joined
 * is told to leave when it has no work (seats_schedule), one that has not is sent SIGTERM. */
static void send_home(dispatch *state)
{
    local_pool *pool = &state->local;
    for (int i = pool->n_places - 1, over = staying(pool) - wanted_now(pool); i >= 0 && over > 0;
         i--) {
        local_child *one = &pool->child[i];
        if (!one->pid || one->leaving)
            continue;
        one->leaving = true;
        if (!one->joined)
            local_end(state, one, false);
        over--;
    }
}

/* Whether workers of this machine decide. With prepd.workers -1 trusted ones of other machines do,
 * unless an operator has scaled this one up. */
static bool decides_here(const dispatch *state)
{
    return state->options->prepd_workers >= 0 || !state->place.trusted || state->local.target > 0;
}

bool local_may_decide(const dispatch *state)
{
    return decides_here(state) && is_expected(state);
}

void local_need(dispatch *state, int deciders)
{
    static const int64_t KEEP_NS = INT64_C(60) * 1000 * 1000000;
    local_pool *pool = &state->local;
    if (!decides_here(state))
        return;
    if (deciders >= pool->needed)
        pool->needed_ns = state->now_ns;
    if (deciders > pool->needed) {
        pool->needed = deciders < MAX_LOCAL ? deciders : MAX_LOCAL;
    } else if (deciders < pool->needed && state->now_ns - pool->needed_ns > KEEP_NS) {
        pool->needed = deciders;
        pool->needed_ns = state->now_ns;
        send_home(state);
    }
}

void local_follow_options(dispatch *state)
{
    local_scale(state, wanted(state));
}

void local_scale(dispatch *state, int target)
{
    local_pool *pool = &state->local;
    pool->target = target > MAX_LOCAL ? MAX_LOCAL : target;
    pool->not_before_ns = 0;
    send_home(state);
}

bool local_is_leaving(const dispatch *state, pid_t pid)
{
    const local_child *one = local_child_of(state, pid);
    return one && one->leaving;
}
