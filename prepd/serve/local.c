/* local.c: the local worker processes. They are spawned as `prepd worker` by exec, so that the
 * dispatcher never forks into image code; they are replaced when they die, and counted when they
 * cannot even start, so that the daemon gives up instead of trying for ever. */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "common/base/proc.h"
#include "prepd/serve/dispatch_state.h"

enum {
    /* Deaths in a row, before any work, after which the daemon gives up: */
    GIVE_UP_SAID = 3,   /* where the workers say why, since that reason will not pass */
    GIVE_UP_DEATHS = 8, /* where they do not say why: workers cannot start here */
    GIVE_UP_LATE = 60, /* where some have worked before: about a minute, since the cause may pass */
    FIRST_PAUSE_MS = 50,
    MAX_PAUSE_MS = 1000,
    JOIN_LIMIT_S = 60, /* a worker that has not joined by then hangs and is killed */
};

static const int64_t MS = 1000000;

int local_wanted(const conf *c)
{
    if (c->prepd_workers < 0)
        return 0;
    const int64_t wanted = c->prepd_workers ? c->prepd_workers : proc_cpus();
    return wanted > MAX_LOCAL ? MAX_LOCAL : (int)wanted;
}

status local_start(dispatch *d)
{
    local_pool *p = &d->local;
    TRY(proc_self_path(p->self, sizeof(p->self)));
    TRY(wire_reachable(d->workers_endpoint, &p->endpoint));
    p->target = local_wanted(d->options);
    local_tick(d, clock_ns());
    return ST_OK;
}

static status spawn_one(dispatch *d, local_child *child)
{
    const char *keys = wire_is_ipc(d->local.endpoint) ? "" : d->options->prepd_keys;
    char parent[16];
    snprintf(parent, sizeof(parent), "%d", (int)getpid());
    char *argv[] = {d->local.self,
                    (char[]){"worker"},
                    (char[]){"--connect"},
                    d->local.endpoint,
                    (char[]){"--parent"},
                    parent,
                    keys[0] ? (char[]){"--keys"} : NULL,
                    (char *)(uintptr_t)keys,
                    NULL};
    pid_t pid;
    TRY(proc_spawn(argv, &pid));
    *child = (local_child){.pid = pid, .started_ns = clock_ns()};
    return ST_OK;
}

int local_alive(const dispatch *d)
{
    int n = 0;
    for (int i = 0; i < MAX_LOCAL; i++)
        n += d->local.child[i].pid != 0;
    return n;
}

static int staying(const local_pool *p)
{
    int n = 0;
    for (int i = 0; i < MAX_LOCAL; i++)
        n += p->child[i].pid != 0 && !p->child[i].leaving;
    return n;
}

local_child *local_child_of(const dispatch *d, pid_t pid)
{
    for (int i = 0; i < MAX_LOCAL; i++)
        if (pid > 0 && d->local.child[i].pid == pid)
            return (local_child *)&d->local.child[i];
    return NULL;
}

bool local_is_child(const dispatch *d, pid_t pid)
{
    return local_child_of(d, pid) != NULL;
}

void local_joined(dispatch *d, pid_t pid)
{
    local_child *c = local_child_of(d, pid);
    if (c)
        c->joined = true;
}

void local_begun(dispatch *d, pid_t pid)
{
    local_child *c = local_child_of(d, pid);
    if (c)
        c->begun = true;
    d->local.any_begun = true;
    d->local.deaths_at_start = d->local.killed_at_start = 0;
    d->local.why.code = ST_OK;
}

void local_said_why(dispatch *d, pid_t pid)
{
    if (local_child_of(d, pid))
        d->local.why = *status_last();
}

void local_kill(dispatch *d, pid_t pid)
{
    if (local_child_of(d, pid))
        kill(pid, SIGKILL);
}

/* A worker that ends before it began any work is replaced after a pause, but not for ever. All that
 * end before the pause is over count as one, since they all die of the same cause. */
void local_failed_at_start(dispatch *d, const char *what)
{
    local_pool *p = &d->local;
    if (clock_ns() < p->not_before_ns)
        return;
    const bool said = p->why.code != ST_OK;
    const int limit = p->any_begun ? GIVE_UP_LATE : said ? GIVE_UP_SAID : GIVE_UP_DEATHS;
    p->deaths_at_start++;
    int64_t pause = (int64_t)FIRST_PAUSE_MS << (p->deaths_at_start < 7 ? p->deaths_at_start : 7);
    p->not_before_ns = clock_ns() + (pause < MAX_PAUSE_MS ? pause : MAX_PAUSE_MS) * MS;
    if (p->deaths_at_start < limit)
        return;
    if (said) {
        status_set(&p->why);
        dispatch_fail(d, p->why.code);
    } else {
        dispatch_fail(d,
                      FAIL(ST_UNAVAILABLE,
                           "workers died %d times in a row before they began any work (last: %s); "
                           "their own messages above say why",
                           p->deaths_at_start, what));
    }
}

/* The system has no process or descriptor left for one more worker. Those that are there continue.
 */
static void not_spawned(dispatch *d)
{
    const status_note why = *status_last();
    log_warn("worker not started: %s", status_text());
    if (local_alive(d) == 0) {
        d->local.why = why;
        local_failed_at_start(d, why.message);
        d->local.why.code = ST_OK; /* a worker that is started later dies of something else */
    }
    d->local.not_before_ns = clock_ns() + MAX_PAUSE_MS * MS;
}

void local_tick(dispatch *d, int64_t now)
{
    local_pool *p = &d->local;
    for (int i = 0; i < MAX_LOCAL; i++) {
        local_child *c = &p->child[i];
        if (c->pid && !c->joined && !c->leaving &&
            now - c->started_ns > (int64_t)JOIN_LIMIT_S * 1000 * MS) {
            log_warn("worker did not join, killed pid=%d seconds=%d", (int)c->pid, JOIN_LIMIT_S);
            kill(c->pid, SIGKILL);
        }
    }
    if (d->stopping || now < p->not_before_ns)
        return;
    int missing = p->target - staying(p);
    for (int i = 0; i < MAX_LOCAL && missing > 0; i++) {
        if (p->child[i].pid)
            continue;
        if (spawn_one(d, &p->child[i]) != ST_OK) {
            not_spawned(d);
            return;
        }
        missing--;
    }
}

/* Sets how many workers are wanted. The youngest go first: a worker that has joined is told to
 * leave when it has no work (seats_schedule), one that has not is sent SIGTERM. */
void local_scale(dispatch *d, int target)
{
    local_pool *p = &d->local;
    p->target = target > MAX_LOCAL ? MAX_LOCAL : target;
    p->not_before_ns = 0;
    for (int i = MAX_LOCAL - 1, over = staying(p) - p->target; i >= 0 && over > 0; i--) {
        local_child *c = &p->child[i];
        if (!c->pid || c->leaving)
            continue;
        c->leaving = true;
        if (!c->joined)
            kill(c->pid, SIGTERM);
        over--;
    }
}

bool local_is_leaving(const dispatch *d, pid_t pid)
{
    const local_child *c = local_child_of(d, pid);
    return c && c->leaving;
}
