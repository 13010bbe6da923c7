/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_watch.c: calls of NCCL, and the thread that watches them (nccl_world.h).
 *
 * Two threads are at work: the one that trains makes the calls, and the watcher looks every
 * LOOK_NS. `calling` is the turn to call NCCL, and `call` says what the thread that has the turn is
 * inside of. Whichever thread finds a failure first notes it (nccl_watch_end, once).
 *
 * Only a third thread, which the watcher starts, aborts. NCCL returns from an abort when nothing on
 * the GPU waits and when every captured graph that holds a call of the communicator has
 * been freed. The first is up to the kernels, the second to the thread that trains, so neither that
 * thread nor the watcher may be inside an abort. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "trainer/parallel/comm/nccl_world.h"

/* LOOK_NS: between two looks of the watcher. NAP_NS: between two looks for the turn. YIELD_NS: how
 * long a call may take to return by itself once everything has ended. END_NS: how long NCCL and the
 * thread that trains have, from then on, to let go. */
static const int64_t LOOK_NS = INT64_C(50) * 1000 * 1000;
static const int64_t NAP_NS = INT64_C(50) * 1000;
static const int64_t YIELD_NS = INT64_C(1000) * 1000 * 1000;
static const int64_t END_NS = INT64_C(10) * 1000 * 1000 * 1000;

static void sleep_ns(int64_t ns)
{
    nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
}

/* ---- kernels that wait for other ranks (ops/peers.h) ---- */

void nccl_watch_allow(nccl_world *world)
{
    enum { TIMEOUTS = 4 }; /* find_late ends everything after two at most */
    const int64_t longest_ns = TIMEOUTS * atomic_load(&world->timeout_ns) + END_NS;
    pthread_mutex_lock(&world->listing);
    if (world->watch)
        __atomic_store_n(&world->watch->longest_ns, longest_ns, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&world->listing);
}

/* To be called wherever find_late begins to count anew, so that kernels do too. */
static void begin_meetings_anew(nccl_world *world)
{
    pthread_mutex_lock(&world->listing);
    if (world->watch)
        __atomic_fetch_add(&world->watch->anew, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&world->listing);
}

/* ---- calls ---- */

status nccl_watch_ended(const nccl_world *world)
{
    return FAIL(world->cause, "%s", world->why);
}

void nccl_watch_end(nccl_world *world, status cause)
{
    if (atomic_exchange(&world->ending, true))
        return;
    world->cause = cause;
    snprintf(world->why, sizeof world->why, "%s", status_text());
    atomic_store(&world->over, true);
    pthread_mutex_lock(&world->listing);
    if (world->watch)
        __atomic_store_n(&world->watch->stop, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&world->listing);
}

/* Says whether this rank waits for the others. Once everything ends it stays as it was, since the
 * rank then leaves its wait through no doing of the others. */
static void say_held(const nccl_world *world, bool held)
{
    if (world->held && (held || !atomic_load(&world->over)))
        world->held(world->context, held);
}

status nccl_enter(nccl_world *world, const char *what)
{
    pthread_mutex_lock(&world->calling);
    atomic_store(&world->call_ns, clock_ns());
    atomic_store(&world->call, what);
    say_held(world, true);
    if (!atomic_load(&world->over))
        return ST_OK;
    atomic_store(&world->call, NULL);
    pthread_mutex_unlock(&world->calling);
    return nccl_watch_ended(world);
}

static status refused(ncclComm_t by, ncclResult_t result, const char *what)
{
    const char *more = nccl_api()->GetLastError(by);
    return FAIL(ST_UNAVAILABLE, "%s: NCCL: %s%s%s", what, nccl_api()->GetErrorString(result),
                more && *more ? ": " : "", more ? more : "");
}

status nccl_leave(const nccl_group *group, ncclResult_t result)
{
    nccl_world *world = group->world;
    const char *what = atomic_exchange(&world->call, NULL);
    long long none = 0;
    status st = ST_OK;
    say_held(world, false);
    if (atomic_load(&world->over)) /* group->comm may be gone */
        st = nccl_watch_ended(world);
    else if (result != ncclSuccess)
        st = refused(group->comm, result, what);
    if (st != ST_OK)
        nccl_watch_end(world, st);
    else if (atomic_compare_exchange_strong(&world->called_at, &none, clock_ns()))
        begin_meetings_anew(world);
    pthread_mutex_unlock(&world->calling);
    return st;
}

void nccl_watch_wait_begins(void *world)
{
    nccl_world *nccl = world;
    atomic_store(&nccl->waits_since, clock_ns());
    begin_meetings_anew(nccl);
    say_held(nccl, true);
}

status nccl_watch_wait_ended(void *world, status how)
{
    nccl_world *nccl = world;
    atomic_store(&nccl->waits_since, 0);
    atomic_store(&nccl->called_at, 0);
    begin_meetings_anew(nccl);
    say_held(nccl, false);
    return atomic_load(&nccl->over) ? nccl_watch_ended(nccl) : how;
}

/* ---- the end ---- */

/* Copies the communicators that exist, and returns how many. */
static int list_comms(nccl_world *world, ncclComm_t out[NCCL_GROUPS_MAX])
{
    int count = 0;
    pthread_mutex_lock(&world->listing);
    for (const nccl_group *group = world->groups; group; group = group->next)
        if (group->comm)
            out[count++] = group->comm;
    pthread_mutex_unlock(&world->listing);
    return count;
}

/* Takes the turn from the thread that calls, which gives it up once its call returns. False: NCCL
 * keeps that thread inside a call. */
static bool take_turn(nccl_world *world)
{
    int64_t until = clock_ns() + YIELD_NS;
    while (pthread_mutex_trylock(&world->calling) != 0) {
        if (clock_ns() > until && atomic_load(&world->call))
            return false;
        sleep_ns(NAP_NS);
    }
    return true;
}

/* Ends what is queued without freeing anything, so that a call that waits for it returns. */
static void revoke_all(nccl_world *world)
{
    ncclComm_t listed[NCCL_GROUPS_MAX];
    const int count = list_comms(world, listed);
    for (int i = 0; i < count; i++)
        nccl_api()->CommRevoke(listed[i], 0);
}

/* An abort frees memory of the GPU, for which its kernels must have ended, also those of other
 * communicators, which wait for a rank that is lost. So all are aborted in one group, in which NCCL
 * asks the kernels of all to quit before it frees anything.
 *
 * A call may still be inside. It may wait for room in the GPU's full queue, and then returns only
 * when what is queued ends. Where NCCL cannot end that by itself (before 2.28.9), the communicators
 * are aborted while the call is inside. */
static void *abort_all(void *of)
{
    nccl_world *world = of;
    ncclComm_t listed[NCCL_GROUPS_MAX];
    bool held = take_turn(world);
    if (!held && nccl_api()->CommRevoke) {
        revoke_all(world);
        held = take_turn(world);
    }
    if (held) /* no further call begins, and the thread that trains must not wait for the turn */
        pthread_mutex_unlock(&world->calling);
    const int count = list_comms(world, listed);
    nccl_api()->GroupStart();
    for (int i = 0; i < count; i++)
        nccl_api()->CommAbort(listed[i]);
    nccl_api()->GroupEnd();
    atomic_store(&world->aborted, true);
    return NULL;
}

static void end_process(const nccl_world *world)
{
    const char *call = atomic_load(&world->call);
    log_error("the run ends: %s; %s%s did not end within %.0f s, so the process is ended",
              world->why, call ? "the call of " : "", call ? call : "NCCL's abort",
              (double)END_NS * 1e-9);
    fflush(NULL);
    _exit(status_exit_code(world->cause));
}

static int start_thread(pthread_t *thread, void *(*body)(void *), nccl_world *world)
{
    sigset_t all, was;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    const int rc = pthread_create(thread, NULL, body, world);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    return rc;
}

/* Lets the communicators be aborted, and ends the process if they, or a call that is inside one, do
 * not end. */
static void finish(nccl_world *world)
{
    const int64_t until = clock_ns() + END_NS;
    pthread_t aborts;
    if (start_thread(&aborts, abort_all, world) != 0)
        end_process(world);
    while (!atomic_load(&world->aborted) || atomic_load(&world->call)) {
        if (clock_ns() > until)
            end_process(world);
        sleep_ns(NAP_NS);
    }
    pthread_join(aborts, NULL);
}

/* ---- the watcher ---- */

static status find_errors(nccl_world *world)
{
    ncclComm_t listed[NCCL_GROUPS_MAX];
    status st = ST_OK;
    if (pthread_mutex_trylock(&world->calling) != 0)
        return ST_OK; /* a call is in progress, and will say so itself */
    const int count = list_comms(world, listed);
    for (int i = 0; i < count && st == ST_OK; i++) {
        ncclResult_t result = ncclSuccess;
        if (nccl_api()->CommGetAsyncError(listed[i], &result) == ncclSuccess &&
            result != ncclSuccess && result != ncclInProgress)
            st = refused(listed[i], result, "a collective");
    }
    pthread_mutex_unlock(&world->calling);
    return st;
}

/* Whether a rank waits for rows.
 * The others then cannot go on either, and time limits begin anew. */
static bool is_patient(const nccl_world *world)
{
    return world->patient && world->patient(world->context);
}

/* Sets the time at which something began to now, unless the thread that calls has ended it
 * meanwhile. */
static void begin_anew(atomic_llong *since)
{
    long long was = atomic_load(since);
    if (was)
        atomic_compare_exchange_strong(since, &was, clock_ns());
}

static status find_late_call(const nccl_world *world, int64_t now, int64_t timeout_ns)
{
    const char *call = atomic_load(&world->call);
    const int64_t since = now - atomic_load(&world->call_ns);
    return call && since > timeout_ns
               ? FAIL(ST_TIMEOUT, "%s has not returned within %.1f s: a rank does not answer", call,
                      (double)since * 1e-9)
               : ST_OK;
}

/* Fails if the host has waited for the device, or a call has lasted, for too long. The host may
 * also be stuck before it comes to either, when the GPU's queue is full of work that follows a
 * collective; that gets twice the time, since the host may just be busy. */
static status find_late(nccl_world *world)
{
    if (is_patient(world)) {
        begin_anew(&world->waits_since);
        begin_anew(&world->called_at);
        begin_anew(&world->call_ns);
        begin_meetings_anew(world);
    }
    const int64_t timeout_ns = atomic_load(&world->timeout_ns), now = clock_ns();
    const int64_t waits = atomic_load(&world->waits_since), called = atomic_load(&world->called_at);
    TRY(find_late_call(world, now, timeout_ns));
    if (waits ? now - waits > timeout_ns : called && now - called > 2 * timeout_ns)
        return FAIL(ST_TIMEOUT,
                    "the device has not finished its collectives within %.1f s: a rank does not "
                    "answer",
                    (double)(now - (waits ? waits : called)) * 1e-9);
    return ST_OK;
}

static void *watch_calls(void *of)
{
    nccl_world *world = of;
    while (!atomic_load(&world->over) && !atomic_load(&world->closing)) {
        status st = world->check ? world->check(world->context) : ST_OK;
        if (st == ST_OK)
            st = find_errors(world);
        if (st == ST_OK)
            st = find_late(world);
        if (st == ST_TIMEOUT && world->late)
            world->late(world->context, status_text());
        if (st != ST_OK)
            nccl_watch_end(world, st);
        else
            sleep_ns(LOOK_NS);
    }
    if (atomic_load(&world->over))
        finish(world);
    return NULL;
}

status nccl_watch_start(nccl_world *world)
{
    if (world->watched)
        return ST_OK;
    const int rc = start_thread(&world->watcher, watch_calls, world);
    world->watched = rc == 0;
    return world->watched
               ? ST_OK
               : FAIL(ST_OS, "the thread that watches NCCL cannot be started: %s", strerror(rc));
}

void nccl_watch_stop(nccl_world *world)
{
    atomic_store(&world->closing, true);
    if (world->watched)
        pthread_join(world->watcher, NULL);
    world->watched = false;
}
