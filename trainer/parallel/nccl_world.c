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
#include "trainer/parallel/core/call_deadline.h"

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

static status report_ended(const nccl_world *nccl)
{
    return FAIL(nccl->cause, "%s", nccl->why);
}

/* ---- the end ---- */

/* Ends everything with the failure that this thread has just reported: threads that call or wait
 * look for it. False: it had ended before. */
static bool note_end(nccl_world *nccl, status cause)
{
    if (atomic_exchange(&nccl->ending, true))
        return false;
    nccl->cause = cause;
    snprintf(nccl->why, sizeof nccl->why, "%s", status_text());
    atomic_store(&nccl->over, true);
    if (nccl->stage.stop)
        __atomic_store_n(nccl->stage.stop, 1, __ATOMIC_RELEASE);
    return true;
}

/* This also frees the communicators, so no call may be inside one. */
static void abort_all(nccl_world *nccl)
{
    for (nccl_group *group = nccl->groups; group; group = group->next) {
        if (group->comm)
            nccl_api()->CommAbort(group->comm);
        group->comm = NULL;
    }
}

/* Ends what is queued, without freeing anything. */
static void revoke_all(nccl_world *nccl)
{
    for (nccl_group *group = nccl->groups; group; group = group->next)
        if (group->comm)
            nccl_api()->CommRevoke(group->comm, 0);
}

/* Takes the turn from the thread that calls, which gives it up once it sees the end. False: NCCL
 * keeps that thread inside a call. */
static bool take_turn(nccl_world *nccl)
{
    int64_t until = clock_ns() + YIELD_NS;
    while (pthread_mutex_trylock(&nccl->calling) != 0) {
        if (clock_ns() > until && atomic_load(&nccl->inside))
            return false;
        sleep_ns(NAP_NS);
    }
    return true;
}

/* Called by the watcher. The other thread may be inside a call that waits for room in the GPU's
 * full queue and returns only when what is queued ends. If NCCL cannot end that by itself
 * (before 2.28.9), the communicators are aborted while the call is inside. */
static void end_beside(nccl_world *nccl, status cause)
{
    if (!note_end(nccl, cause))
        return;
    bool held = take_turn(nccl);
    if (!held && nccl_api()->CommRevoke) {
        revoke_all(nccl);
        held = take_turn(nccl);
    }
    abort_all(nccl);
    if (held)
        pthread_mutex_unlock(&nccl->calling);
}

/* ---- calls ---- */

/* False if the job has ended, after which no call may begin. */
static bool go_inside(nccl_world *nccl)
{
    atomic_store(&nccl->inside, true);
    if (!atomic_load(&nccl->over))
        return true;
    atomic_store(&nccl->inside, false);
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

static status failed(const nccl_group *group, ncclResult_t result, const char *what)
{
    const char *more = nccl_api()->GetLastError(group->comm);
    return FAIL(ST_UNAVAILABLE, "%s: NCCL: %s%s%s", what, nccl_api()->GetErrorString(result),
                more && *more ? ": " : "", more ? more : "");
}

/* Whether a rank waits for rows. The others then cannot go on either, and time limits begin anew.
 */
static bool is_patient(const nccl_world *nccl)
{
    return nccl->patient && nccl->patient(nccl->context);
}

/* The state of a call that has begun. */
static ncclResult_t ask_error(const nccl_group *group)
{
    ncclResult_t result = ncclInProgress, asked = ncclSuccess;
    if (go_inside(group->world))
        asked = nccl_api()->CommGetAsyncError(group->comm, &result);
    return asked == ncclSuccess ? result : asked;
}

/* Waits until a call that has returned is queued. */
static status settle_call(const nccl_group *group, ncclResult_t result, const char *what)
{
    nccl_world *nccl = group->world;
    const int64_t timeout_ns = atomic_load(&nccl->timeout_ns);
    call_deadline limit = call_deadline_begin(clock_ns(), timeout_ns);
    for (;;) {
        atomic_store(&nccl->inside, false);
        if (atomic_load(&nccl->over)) /* group->comm may be gone */
            return report_ended(nccl);
        if (result != ncclInProgress)
            return result == ncclSuccess ? ST_OK : failed(group, result, what);
        TRY(nccl->check ? nccl->check(nccl->context) : ST_OK);
        if (call_deadline_passed(&limit, clock_ns(), is_patient(nccl)))
            return FAIL(ST_TIMEOUT, "%s has not begun within %.1f s: a rank is missing", what,
                        (double)timeout_ns * 1e-9);
        sleep_ns(NAP_NS);
        result = ask_error(group);
    }
}

static status leave_call(nccl_world *nccl, status st)
{
    atomic_store(&nccl->inside, false);
    if (st != ST_OK && note_end(nccl, st))
        abort_all(nccl);
    else if (st == ST_OK && atomic_load(&nccl->called_at) == 0)
        atomic_store(&nccl->called_at, clock_ns());
    pthread_mutex_unlock(&nccl->calling);
    return st;
}

status nccl_leave(const nccl_group *group, ncclResult_t result, const char *what)
{
    return leave_call(group->world, settle_call(group, result, what));
}

/* ---- the thread ---- */

static status find_errors(nccl_world *nccl)
{
    status st = ST_OK;
    if (pthread_mutex_trylock(&nccl->calling) != 0)
        return ST_OK; /* a call is in progress, and looks for errors itself */
    for (nccl_group *group = nccl->groups; group && st == ST_OK; group = group->next) {
        ncclResult_t result = ncclSuccess;
        if (group->comm && nccl_api()->CommGetAsyncError(group->comm, &result) == ncclSuccess &&
            result != ncclSuccess && result != ncclInProgress)
            st = failed(group, result, "a collective");
    }
    pthread_mutex_unlock(&nccl->calling);
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
static status find_late(nccl_world *nccl)
{
    if (is_patient(nccl)) {
        begin_anew(&nccl->waits_since);
        begin_anew(&nccl->called_at);
    }
    int64_t timeout_ns = atomic_load(&nccl->timeout_ns), now = clock_ns();
    int64_t waits = atomic_load(&nccl->waits_since), called = atomic_load(&nccl->called_at);
    if (waits ? now - waits > timeout_ns : called && now - called > 2 * timeout_ns)
        return FAIL(ST_TIMEOUT,
                    "the device has not finished its collectives within %.1f s: a rank does not "
                    "answer",
                    (double)(now - (waits ? waits : called)) * 1e-9);
    return ST_OK;
}

static void *watch_errors(void *of)
{
    nccl_world *nccl = of;
    while (!atomic_load(&nccl->closing) && !atomic_load(&nccl->over)) {
        status st = nccl->check ? nccl->check(nccl->context) : ST_OK;
        if (st == ST_OK)
            st = find_errors(nccl);
        if (st == ST_OK)
            st = find_late(nccl);
        if (st != ST_OK)
            end_beside(nccl, st);
        else
            sleep_ns(LOOK_NS);
    }
    return NULL;
}

static void wait_begins(void *of)
{
    nccl_world *nccl = of;
    atomic_store(&nccl->waits_since, clock_ns());
}

static status wait_ended(void *of, status how)
{
    nccl_world *nccl = of;
    atomic_store(&nccl->waits_since, 0);
    atomic_store(&nccl->called_at, 0);
    return atomic_load(&nccl->over) ? report_ended(nccl) : how;
}

static status start_watcher(nccl_world *nccl)
{
    sigset_t all, was;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    atomic_store(&nccl->closing, false);
    int rc = pthread_create(&nccl->watcher, NULL, watch_errors, nccl);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    nccl->watched = rc == 0;
    return nccl->watched
               ? ST_OK
               : FAIL(ST_OS, "the thread that watches NCCL cannot be started: %s", strerror(rc));
}

/* ---- opening and closing ---- */

static status add_group(nccl_world *nccl, const int *world_rank, int size, nccl_group **out)
{
    nccl_group *group = calloc(1, sizeof *group);
    if (group)
        group->world_rank = malloc((size_t)size * sizeof *group->world_rank);
    if (!group || !group->world_rank) {
        free(group);
        return FAIL(ST_NO_MEMORY, "no memory for a group of %d ranks", size);
    }
    group->world = nccl;
    group->size = size;
    for (int i = 0; i < size; i++)
        group->world_rank[i] = world_rank ? world_rank[i] : i;
    nccl_group **last = &nccl->groups;
    while (*last)
        last = &(*last)->next;
    *last = group;
    *out = group;
    return ST_OK;
}

/* Host values are real on every device: if the device has no storage they go through pinned
 * memory. */
static status open_stage(nccl_world *nccl)
{
    const backend_vtable *backend = nccl->device->backend;
    const bool kept = device_has_storage(nccl->device);
    void *device_memory = NULL, *host = NULL, *stop = NULL;
    TRY(backend->stream_new(nccl->device, &nccl->stage.stream));
    TRY((kept ? backend->alloc : backend->alloc_host)(nccl->device, COMM_STAGE_BYTES,
                                                      &device_memory));
    nccl->stage.device = device_memory;
    TRY(backend->alloc_host(nccl->device, COMM_STAGE_BYTES, &host));
    nccl->stage.host = host;
    TRY(backend->alloc_host(nccl->device, sizeof *nccl->stage.stop, &stop));
    nccl->stage.stop = stop;
    return ST_OK;
}

static status join_all(nccl_world *nccl)
{
    static const char what[] = "the ranks' communicator (ncclCommInitRankConfig)";
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    nccl_group *group;
    config.blocking = 0;
    config.commName = "world";
    TRY(nccl_enter(nccl));
    status st = add_group(nccl, NULL, nccl->size, &group);
    if (st == ST_OK)
        st = settle_call(
            group,
            nccl_api()->CommInitRankConfig(&group->comm, nccl->size, nccl->id, nccl->rank, &config),
            what);
    return leave_call(nccl, st);
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
    const backend_vtable *backend = world->device->backend;
    if (world->stage.stream)
        backend->stream_free(&world->stage.stream);
    if (world->stage.device)
        (device_has_storage(world->device) ? backend->release : backend->release_host)(
            world->device, world->stage.device);
    if (world->stage.host)
        backend->release_host(world->device, world->stage.host);
    atomic_store(&world->closing, true);
    if (world->watched)
        pthread_join(world->watcher, NULL);
    world->watched = false;
    if (world->stage.stop) /* only now, since the watcher may have written to it */
        backend->release_host(world->device, world->stage.stop);
    world->stage = (nccl_stage){0};
    world->device->watch = (device_watch){0};
    world->device = NULL;
}

static nccl_group *find_group(const nccl_world *nccl, const int *world_rank, int size)
{
    for (nccl_group *group = nccl->groups; group; group = group->next)
        if (group->size == size &&
            memcmp(group->world_rank, world_rank, (size_t)size * sizeof(int)) == 0)
            return group;
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
    nccl_group *group = find_group(world, world_rank, size);
    if (!group) {
        config.blocking = 0;
        while (world_rank[place] != world->rank)
            place++;
        TRY(nccl_enter(world));
        status st = add_group(world, world_rank, size, &group);
        if (st == ST_OK)
            st = settle_call(world->groups,
                             nccl_api()->CommSplit(world->groups->comm, world_rank[0], place,
                                                   &group->comm, &config),
                             what);
        if (st == ST_OK) /* NCCL writes the child only when its parent has settled */
            st = settle_call(group, ncclInProgress, what);
        TRY(leave_call(world, st));
    }
    *out = group;
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
    nccl_world *nccl = calloc(1, sizeof *nccl);
    if (!nccl)
        return FAIL(ST_NO_MEMORY, "no memory for the NCCL engine");
    nccl->rank = options->rank;
    nccl->size = options->size;
    nccl->check = options->check;
    nccl->patient = options->patient;
    nccl->context = options->context;
    memcpy(&nccl->id, options->id, sizeof nccl->id);
    pthread_mutex_init(&nccl->calling, NULL);
    nccl_world_set_timeout(nccl, options->timeout_s);
    /* The NVLink switch sums in an order that differs from call to call. NVLS is its use inside one
     * machine, NVLSTree the one between several. */
    if (options->deterministic)
        set_unless("NCCL_ALGO", "^NVLS,NVLSTree", nccl->rank == 0);
    /* Communicators that share a GPU then run in the order in which the host calls them. */
    set_unless("NCCL_LAUNCH_ORDER_IMPLICIT", "1", nccl->rank == 0);
    *out = nccl;
    return ST_OK;
}

void nccl_world_set_timeout(nccl_world *world, double seconds)
{
    atomic_store(&world->timeout_ns, (int64_t)(seconds * 1e9));
}

/* Closes the last group first: communicators that were split off go before their parent. */
static void close_groups(nccl_group *group, bool well)
{
    static const char what[] = "closing a communicator";
    if (!group)
        return;
    close_groups(group->next, well);
    group->next = NULL; /* a failure below aborts all groups that are still listed */
    if (group->comm && well && nccl_enter(group->world) == ST_OK) {
        if (nccl_leave(group, nccl_api()->CommFinalize(group->comm), what) == ST_OK)
            nccl_api()->CommDestroy(group->comm);
        else
            log_warn("%s", status_text());
    } else if (group->comm) {
        nccl_api()->CommAbort(group->comm);
    }
    free(group->world_rank);
    free(group);
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
