/* nccl_world.c: implements nccl_world.h.
 *
 * Two threads are at work: the one that trains makes the calls, and the watcher looks every
 * LOOK_NS. `calling` is the turn to call NCCL; `inside` says that the thread which has the turn is
 * in a call. Whichever thread finds a failure first notes it (note_end, once) and then aborts the
 * communicators while it has the turn, so that no call is inside one. */
#include "trainer/parallel/nccl_world.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/program/log.h"

/* LOOK_NS: between two looks of the watcher. NAP_NS: between two looks at a call in progress.
 * YIELD_NS: how long the watcher lets a call finish before it revokes or aborts while it is inside.
 */
static const int64_t LOOK_NS = INT64_C(50) * 1000 * 1000;
static const int64_t NAP_NS = INT64_C(50) * 1000;
static const int64_t YIELD_NS = INT64_C(1000) * 1000 * 1000;

struct nccl_world {
    int rank, size;
    ncclUniqueId id;
    status (*check)(void *context);
    bool (*patient)(void *context); /* NULL: never */
    void *context;
    device *device;
    nccl_stage stage;
    nccl_group *groups;      /* the first has all ranks */
    pthread_mutex_t calling; /* the turn to call NCCL */
    pthread_t watcher;
    bool watched; /* the watcher runs */
    atomic_llong timeout_ns;
    atomic_llong waits_since; /* when the host began to wait for the device; 0: it does not wait */
    atomic_llong called_at;   /* the first call after which no wait has ended; 0: there is none */
    atomic_bool closing;      /* the watcher is to end */
    atomic_bool ending;       /* a thread has noted the end */
    atomic_bool over;         /* cause and why are written; no call may begin */
    atomic_bool inside;       /* the thread that has the turn is in a call of NCCL's */
    status cause;
    char why[STATUS_MESSAGE_MAX];
};

static void sleep_ns(int64_t ns)
{
    nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
}

static status report_ended(const nccl_world *w)
{
    return FAIL(w->cause, "%s", w->why);
}

/* ---- the end ---- */

/* Ends everything with the failure that this thread has just reported: threads that call or wait
 * look for it. False: it had ended before. */
static bool note_end(nccl_world *w, status cause)
{
    if (atomic_exchange(&w->ending, true))
        return false;
    w->cause = cause;
    snprintf(w->why, sizeof w->why, "%s", status_text());
    atomic_store(&w->over, true);
    if (w->stage.stop)
        __atomic_store_n(w->stage.stop, 1, __ATOMIC_RELEASE);
    return true;
}

/* This also frees the communicators, so no call may be inside one. */
static void abort_all(nccl_world *w)
{
    for (nccl_group *g = w->groups; g; g = g->next) {
        if (g->comm)
            nccl_api()->CommAbort(g->comm);
        g->comm = NULL;
    }
}

/* Ends what is queued, without freeing anything. */
static void revoke_all(nccl_world *w)
{
    for (nccl_group *g = w->groups; g; g = g->next)
        if (g->comm)
            nccl_api()->CommRevoke(g->comm, 0);
}

/* Takes the turn from the thread that calls, which gives it up once it sees the end. False: NCCL
 * keeps that thread inside a call. */
static bool take_turn(nccl_world *w)
{
    int64_t until = clock_ns() + YIELD_NS;
    while (pthread_mutex_trylock(&w->calling) != 0) {
        if (clock_ns() > until && atomic_load(&w->inside))
            return false;
        sleep_ns(NAP_NS);
    }
    return true;
}

/* Called by the watcher. The other thread may be inside a call that waits for room in the GPU's
 * full queue and returns only when what is queued ends. If NCCL cannot end that by itself
 * (before 2.28.9), the communicators are aborted while the call is inside. */
static void end_beside(nccl_world *w, status cause)
{
    if (!note_end(w, cause))
        return;
    bool held = take_turn(w);
    if (!held && nccl_api()->CommRevoke) {
        revoke_all(w);
        held = take_turn(w);
    }
    abort_all(w);
    if (held)
        pthread_mutex_unlock(&w->calling);
}

/* ---- calls ---- */

/* False if the job has ended, after which no call may begin. */
static bool go_inside(nccl_world *w)
{
    atomic_store(&w->inside, true);
    if (!atomic_load(&w->over))
        return true;
    atomic_store(&w->inside, false);
    return false;
}

status nccl_enter(nccl_world *world)
{
    pthread_mutex_lock(&world->calling);
    if (go_inside(world))
        return ST_OK;
    pthread_mutex_unlock(&world->calling);
    return report_ended(world);
}

static status failed(const nccl_group *g, ncclResult_t result, const char *what)
{
    const char *more = nccl_api()->GetLastError(g->comm);
    return FAIL(ST_UNAVAILABLE, "%s: NCCL: %s%s%s", what, nccl_api()->GetErrorString(result),
                more && *more ? ": " : "", more ? more : "");
}

/* Whether a rank waits for rows. The others then cannot go on either, and time limits begin anew.
 */
static bool is_patient(const nccl_world *w)
{
    return w->patient && w->patient(w->context);
}

/* The state of a call that has begun. */
static ncclResult_t ask_error(const nccl_group *g)
{
    ncclResult_t result = ncclInProgress, asked = ncclSuccess;
    if (go_inside(g->world))
        asked = nccl_api()->CommGetAsyncError(g->comm, &result);
    return asked == ncclSuccess ? result : asked;
}

/* Waits until a call that has returned is queued. */
static status settle_call(const nccl_group *g, ncclResult_t result, const char *what)
{
    nccl_world *w = g->world;
    int64_t timeout_ns = atomic_load(&w->timeout_ns), until = clock_ns() + timeout_ns;
    for (;;) {
        atomic_store(&w->inside, false);
        if (atomic_load(&w->over)) /* g->comm may be gone */
            return report_ended(w);
        if (result != ncclInProgress)
            return result == ncclSuccess ? ST_OK : failed(g, result, what);
        TRY(w->check ? w->check(w->context) : ST_OK);
        if (is_patient(w))
            until = clock_ns() + timeout_ns;
        if (clock_ns() > until)
            return FAIL(ST_TIMEOUT, "%s has not begun within %.1f s: a rank is missing", what,
                        (double)timeout_ns * 1e-9);
        sleep_ns(NAP_NS);
        result = ask_error(g);
    }
}

static status leave_call(nccl_world *w, status st)
{
    atomic_store(&w->inside, false);
    if (st != ST_OK && note_end(w, st))
        abort_all(w);
    else if (st == ST_OK && atomic_load(&w->called_at) == 0)
        atomic_store(&w->called_at, clock_ns());
    pthread_mutex_unlock(&w->calling);
    return st;
}

status nccl_leave(const nccl_group *group, ncclResult_t result, const char *what)
{
    return leave_call(group->world, settle_call(group, result, what));
}

/* ---- the thread ---- */

static status find_errors(nccl_world *w)
{
    status st = ST_OK;
    if (pthread_mutex_trylock(&w->calling) != 0)
        return ST_OK; /* a call is in progress, and looks for errors itself */
    for (nccl_group *g = w->groups; g && st == ST_OK; g = g->next) {
        ncclResult_t result = ncclSuccess;
        if (g->comm && nccl_api()->CommGetAsyncError(g->comm, &result) == ncclSuccess &&
            result != ncclSuccess && result != ncclInProgress)
            st = failed(g, result, "a collective");
    }
    pthread_mutex_unlock(&w->calling);
    return st;
}

/* Sets the time at which something began to now, unless the thread that calls has ended it
 * meanwhile. */
static void begin_anew(atomic_llong *since)
{
    long long was = atomic_load(since);
    if (was)
        atomic_compare_exchange_strong(since, &was, clock_ns());
}

/* Fails if the host has waited for the device for too long. The host may also be stuck before it
 * comes to a wait, when the GPU's queue is full of work that follows a collective; that gets twice
 * the time, since the host may just be busy. */
static status find_late(nccl_world *w)
{
    if (is_patient(w)) {
        begin_anew(&w->waits_since);
        begin_anew(&w->called_at);
    }
    int64_t timeout_ns = atomic_load(&w->timeout_ns), now = clock_ns();
    int64_t waits = atomic_load(&w->waits_since), called = atomic_load(&w->called_at);
    if (waits ? now - waits > timeout_ns : called && now - called > 2 * timeout_ns)
        return FAIL(ST_TIMEOUT,
                    "the device has not finished its collectives within %.1f s: a rank does not "
                    "answer",
                    (double)(now - (waits ? waits : called)) * 1e-9);
    return ST_OK;
}

static void *watch_errors(void *of)
{
    nccl_world *w = of;
    while (!atomic_load(&w->closing) && !atomic_load(&w->over)) {
        status st = w->check ? w->check(w->context) : ST_OK;
        if (st == ST_OK)
            st = find_errors(w);
        if (st == ST_OK)
            st = find_late(w);
        if (st != ST_OK)
            end_beside(w, st);
        else
            sleep_ns(LOOK_NS);
    }
    return NULL;
}

static void wait_begins(void *of)
{
    nccl_world *w = of;
    atomic_store(&w->waits_since, clock_ns());
}

static status wait_ended(void *of, status how)
{
    nccl_world *w = of;
    atomic_store(&w->waits_since, 0);
    atomic_store(&w->called_at, 0);
    return atomic_load(&w->over) ? report_ended(w) : how;
}

static status start_watcher(nccl_world *w)
{
    sigset_t all, was;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    atomic_store(&w->closing, false);
    int rc = pthread_create(&w->watcher, NULL, watch_errors, w);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    w->watched = rc == 0;
    return w->watched
               ? ST_OK
               : FAIL(ST_OS, "the thread that watches NCCL cannot be started: %s", strerror(rc));
}

/* ---- opening and closing ---- */

static status add_group(nccl_world *w, const int *world_rank, int size, nccl_group **out)
{
    nccl_group *g = calloc(1, sizeof *g);
    if (g)
        g->world_rank = malloc((size_t)size * sizeof *g->world_rank);
    if (!g || !g->world_rank) {
        free(g);
        return FAIL(ST_NO_MEMORY, "no memory for a group of %d ranks", size);
    }
    g->world = w;
    g->size = size;
    for (int i = 0; i < size; i++)
        g->world_rank[i] = world_rank ? world_rank[i] : i;
    nccl_group **last = &w->groups;
    while (*last)
        last = &(*last)->next;
    *last = g;
    *out = g;
    return ST_OK;
}

/* Host values are real on every device: if the device has no storage they go through pinned
 * memory. */
static status open_stage(nccl_world *w)
{
    const backend_vtable *v = w->device->backend;
    const bool kept = device_has_storage(w->device);
    void *device_memory = NULL, *host = NULL, *stop = NULL;
    TRY(v->stream_new(w->device, &w->stage.stream));
    TRY((kept ? v->alloc : v->alloc_host)(w->device, COMM_STAGE_BYTES, &device_memory));
    w->stage.device = device_memory;
    TRY(v->alloc_host(w->device, COMM_STAGE_BYTES, &host));
    w->stage.host = host;
    TRY(v->alloc_host(w->device, sizeof *w->stage.stop, &stop));
    w->stage.stop = stop;
    return ST_OK;
}

static status join_all(nccl_world *w)
{
    static const char what[] = "the ranks' communicator (ncclCommInitRankConfig)";
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    nccl_group *g;
    config.blocking = 0;
    config.commName = "world";
    TRY(nccl_enter(w));
    status st = add_group(w, NULL, w->size, &g);
    if (st == ST_OK)
        st = settle_call(
            g, nccl_api()->CommInitRankConfig(&g->comm, w->size, w->id, w->rank, &config), what);
    return leave_call(w, st);
}

status nccl_world_attach(nccl_world *world, device *opened)
{
    world->device = opened;
    if (!world->groups)
        TRY(join_all(world));
    TRY(open_stage(world));
    opened->watch = (device_watch){world, wait_begins, wait_ended};
    return start_watcher(world);
}

void nccl_world_detach(nccl_world *world)
{
    if (!world->device)
        return;
    const backend_vtable *v = world->device->backend;
    if (world->stage.stream)
        v->stream_free(&world->stage.stream);
    if (world->stage.device)
        (device_has_storage(world->device) ? v->release : v->release_host)(world->device,
                                                                           world->stage.device);
    if (world->stage.host)
        v->release_host(world->device, world->stage.host);
    atomic_store(&world->closing, true);
    if (world->watched)
        pthread_join(world->watcher, NULL);
    world->watched = false;
    if (world->stage.stop) /* only now, since the watcher may have written to it */
        v->release_host(world->device, world->stage.stop);
    world->stage = (nccl_stage){0};
    world->device->watch = (device_watch){0};
    world->device = NULL;
}

static nccl_group *find_group(const nccl_world *w, const int *world_rank, int size)
{
    for (nccl_group *g = w->groups; g; g = g->next)
        if (g->size == size && memcmp(g->world_rank, world_rank, (size_t)size * sizeof(int)) == 0)
            return g;
    return NULL;
}

/* All ranks split the world's communicator at the same time, each into its own group of the same
 * size. The groups of a mesh are arithmetic series over the ranks, all with the same step and
 * length, so if one rank finds that it has the group already, all do. */
status nccl_world_group(nccl_world *world, const int *world_rank, int size, nccl_group **out)
{
    static const char what[] = "a group's communicator (ncclCommSplit)";
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int place = 0;
    nccl_group *g = find_group(world, world_rank, size);
    if (!g) {
        config.blocking = 0;
        while (world_rank[place] != world->rank)
            place++;
        TRY(nccl_enter(world));
        status st = add_group(world, world_rank, size, &g);
        if (st == ST_OK)
            st = settle_call(
                world->groups,
                nccl_api()->CommSplit(world->groups->comm, world_rank[0], place, &g->comm, &config),
                what);
        if (st == ST_OK) /* NCCL writes the child only when its parent has settled */
            st = settle_call(g, ncclInProgress, what);
        TRY(leave_call(world, st));
    }
    *out = g;
    return ST_OK;
}

const nccl_stage *nccl_world_stage(const nccl_world *world)
{
    return &world->stage;
}

/* Sets a variable of NCCL unless the user has set it. */
static void set_unless(const char *name, const char *value, bool tell)
{
    if (!getenv(name) && setenv(name, value, 1) == 0 && tell)
        log_info("%s=%s is set for NCCL", name, value);
}

status nccl_world_new(const comm_join *options, nccl_world **out)
{
    TRY(nccl_open());
    nccl_world *w = calloc(1, sizeof *w);
    if (!w)
        return FAIL(ST_NO_MEMORY, "no memory for the NCCL engine");
    w->rank = options->rank;
    w->size = options->size;
    w->check = options->check;
    w->patient = options->patient;
    w->context = options->context;
    memcpy(&w->id, options->id, sizeof w->id);
    pthread_mutex_init(&w->calling, NULL);
    nccl_world_set_timeout(w, options->timeout_s);
    /* The NVLink switch sums in an order that differs from call to call. NVLS is its use inside one
     * machine, NVLSTree the one between several. */
    if (options->deterministic)
        set_unless("NCCL_ALGO", "^NVLS,NVLSTree", w->rank == 0);
    /* Communicators that share a GPU then run in the order in which the host calls them. */
    set_unless("NCCL_LAUNCH_ORDER_IMPLICIT", "1", w->rank == 0);
    *out = w;
    return ST_OK;
}

void nccl_world_set_timeout(nccl_world *world, double seconds)
{
    atomic_store(&world->timeout_ns, (int64_t)(seconds * 1e9));
}

/* Closes the last group first: communicators that were split off go before their parent. */
static void close_groups(nccl_group *g, bool well)
{
    static const char what[] = "closing a communicator";
    if (!g)
        return;
    close_groups(g->next, well);
    g->next = NULL; /* a failure below aborts all groups that are still listed */
    if (g->comm && well && nccl_enter(g->world) == ST_OK) {
        if (nccl_leave(g, nccl_api()->CommFinalize(g->comm), what) == ST_OK)
            nccl_api()->CommDestroy(g->comm);
        else
            log_warn("%s", status_text());
    } else if (g->comm) {
        nccl_api()->CommAbort(g->comm);
    }
    free(g->world_rank);
    free(g);
}

void nccl_world_free(nccl_world *world, bool well)
{
    if (!world)
        return;
    nccl_world_detach(world);
    close_groups(world->groups, well && !atomic_load(&world->over));
    pthread_mutex_destroy(&world->calling);
    free(world);
}
