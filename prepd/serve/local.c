/* local.c: local worker processes: spawned by exec, replaced when they die, counted when they can
 * not even start. The dispatcher never forks into image code: a worker is `prepd worker`. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "common/base/proc.h"
#include "prepd/serve/dispatch_state.h"

enum {
    GIVE_UP_SAID = 3,   /* deaths in a row before any work, with a reason given: it will not pass */
    GIVE_UP_DEATHS = 8, /* the same without a reason: workers can not start here */
    GIVE_UP_LATE = 60,  /* once some have worked: about a minute, the cause may pass */
    FIRST_PAUSE_MS = 50,
    MAX_PAUSE_MS = 1000,
    KILLED_AT_START = 16, /* so many in a row that somebody kills before they begin: a pause */
    JOIN_LIMIT_S = 60,    /* a worker that has not joined by then hangs */
    LEAVE_LIMIT_MS = 3000,
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
    p->target = local_wanted(d->c);
    local_tick(d, clock_ns());
    return ST_OK;
}

static status spawn_one(dispatch *d, local_child *child)
{
    const char *keys = wire_is_ipc(d->local.endpoint) ? "" : d->c->prepd_keys;
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

static local_child *child_of(const dispatch *d, pid_t pid)
{
    for (int i = 0; i < MAX_LOCAL; i++)
        if (pid > 0 && d->local.child[i].pid == pid)
            return (local_child *)&d->local.child[i];
    return NULL;
}

bool local_is_child(const dispatch *d, pid_t pid)
{
    return child_of(d, pid) != NULL;
}

void local_joined(dispatch *d, pid_t pid)
{
    local_child *c = child_of(d, pid);
    if (c)
        c->joined = true;
}

void local_begun(dispatch *d, pid_t pid)
{
    local_child *c = child_of(d, pid);
    if (c)
        c->begun = true;
    d->local.any_begun = true;
    d->local.deaths_at_start = d->local.killed_at_start = 0;
    d->local.why.code = ST_OK;
}

void local_said_why(dispatch *d, pid_t pid)
{
    if (child_of(d, pid))
        d->local.why = *status_last();
}

void local_kill(dispatch *d, pid_t pid)
{
    if (child_of(d, pid))
        kill(pid, SIGKILL);
}

static loss loss_of(const local_child *c, int wstatus, char *what, size_t size)
{
    switch (proc_end_of(wstatus, what, size)) {
    case PROC_END_OUTSIDE:
        return LOSS_OUTSIDE;
    case PROC_END_TIME:
        return LOSS_TIMEOUT;
    case PROC_END_LEFT:
        return c->leaving || WEXITSTATUS(wstatus) == PROC_EXIT_AGAIN ? LOSS_OUTSIDE : LOSS_CRASH;
    default:
        return LOSS_CRASH;
    }
}

/* One that ends before it began any work is tried again after a while, but not for ever. All that
 * end before that while is over count as one: of what many have in common there is no more than of
 * what one has. */
static void failed_at_start(dispatch *d, const char *what)
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
                           "%d times in a row workers died before they began any work (last: %s); "
                           "their own messages above say why",
                           p->deaths_at_start, what));
    }
}

/* No process or descriptor is left for one more: those that are there go on meanwhile. */
static void not_spawned(dispatch *d)
{
    const status_note why = *status_last();
    log_warn("worker not started: %s", status_text());
    if (local_alive(d) == 0) {
        d->local.why = why;
        failed_at_start(d, why.message);
        d->local.why.code = ST_OK; /* not what a worker that is started later dies of */
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

static void died(dispatch *d, local_child *c, int wstatus)
{
    char what[80];
    local_pool *p = &d->local;
    loss how = loss_of(c, wstatus, what, sizeof(what));
    if (how == LOSS_CRASH && WIFEXITED(wstatus)) /* it knew why */
        dispatch_last_words(d, c->pid);
    local_child was = *c;
    *c = (local_child){0};
    worker_seat *seat = seat_of_pid(d, was.pid);
    if (seat)
        seat_gone(d, seat, how, what);
    if (d->stopping || was.leaving)
        return;
    p->respawned++;
    if (WIFEXITED(wstatus) && WEXITSTATUS(wstatus) == PROC_EXIT_AGAIN)
        return; /* as it was told to */
    if (was.begun || how == LOSS_OUTSIDE) {
        log_info("worker replaced pid=%d cause=\"%s\"", (int)was.pid, what);
        if (!was.begun && ++p->killed_at_start > KILLED_AT_START)
            p->not_before_ns = clock_ns() + MAX_PAUSE_MS * MS;
        return;
    }
    log_warn("worker died at start pid=%d cause=\"%s\"", (int)was.pid, what);
    failed_at_start(d, what);
}

void local_reap(dispatch *d)
{
    int wstatus;
    pid_t pid;
    while ((pid = waitpid(-1, &wstatus, WNOHANG | WUNTRACED)) > 0) {
        local_child *c = child_of(d, pid);
        if (WIFSTOPPED(wstatus) && (c || pid == d->maker.pid))
            kill(pid, SIGKILL); /* by somebody outside: what it has in work must not wait for him */
        else if (c)
            died(d, c, wstatus);
    }
}

/* The youngest go first; the seat is told to leave when it has no work, see seats_schedule. */
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
    const local_child *c = child_of(d, pid);
    return c && c->leaving;
}

void local_stop(dispatch *d)
{
    local_pool *p = &d->local;
    int64_t limit = clock_ns() + LEAVE_LIMIT_MS * MS;
    for (int i = 0; i < MAX_LOCAL; i++) {
        if (!p->child[i].pid)
            continue;
        p->child[i].leaving = true;
        kill(p->child[i].pid, d->stop_now ? SIGKILL : SIGTERM);
    }
    while (local_alive(d) > 0) {
        local_reap(d);
        dispatch_signals(d); /* a second one: at once */
        if (d->stop_now || clock_ns() > limit)
            for (int i = 0; i < MAX_LOCAL; i++)
                if (p->child[i].pid)
                    kill(p->child[i].pid, SIGKILL);
        if (local_alive(d) > 0)
            usleep(5000);
    }
    free(p->endpoint);
    p->endpoint = NULL;
}
