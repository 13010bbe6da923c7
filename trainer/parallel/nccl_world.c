/* nccl_world.c: see nccl_world.h. */
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

/* Between looks of the thread; between looks of a call under way. How long the thread lets a call
 * finish before it ends things beside it. */
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
    nccl_group *groups; /* the first has all ranks */
    pthread_mutex_t calling;
    pthread_t watcher;
    bool watched;
    atomic_llong timeout_ns;
    atomic_llong waits_since; /* the host waits for the device; 0: it does not */
    atomic_llong called_at;   /* behind this call no wait has ended; 0: none is outstanding */
    atomic_bool closing, ending, over;
    atomic_bool inside; /* the thread that has the turn is in a call of NCCL's */
    status cause;       /* written once, before over */
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

/* Everything ends, by the failure that this thread has just noted: who calls or waits looks for
 * that. false: it has ended before. */
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

/* Frees communicators too, so no call may be inside of one. */
static void abort_all(nccl_world *w)
{
    for (nccl_group *g = w->groups; g; g = g->next) {
        if (g->comm)
            nccl()->CommAbort(g->comm);
        g->comm = NULL;
    }
}

/* Ends what is queued, and frees nothing. */
static void revoke_all(nccl_world *w)
{
    for (nccl_group *g = w->groups; g; g = g->next)
        if (g->comm)
            nccl()->CommRevoke(g->comm, 0);
}

/* Takes the turn of the thread that calls, which leaves once it sees the end. false: NCCL keeps it
 * inside of a call. */
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

/* By the thread that watches: the other may be inside a call, stuck behind a full queue of the GPU,
 * which only the end of what is queued makes return. Where NCCL cannot end that alone (before
 * 2.28.9) the communicators go while it is inside. */
static void end_beside(nccl_world *w, status cause)
{
    if (!note_end(w, cause))
        return;
    bool held = take_turn(w);
    if (!held && nccl()->CommRevoke) {
        revoke_all(w);
        held = take_turn(w);
    }
    abort_all(w);
    if (held)
        pthread_mutex_unlock(&w->calling);
}

/* ---- calls ---- */

/* False where the world has ended: no call may begin. */
static bool go_inside(nccl_world *w)
{
    atomic_store(&w->inside, true);
    if (!atomic_load(&w->over))
        return true;
    atomic_store(&w->inside, false);
    return false;
}

status nccl_enter(nccl_world *w)
{
    pthread_mutex_lock(&w->calling);
    if (go_inside(w))
        return ST_OK;
    pthread_mutex_unlock(&w->calling);
    return report_ended(w);
}

static status failed(const nccl_group *g, ncclResult_t result, const char *what)
{
    const char *more = nccl()->GetLastError(g->comm);
    return FAIL(ST_UNAVAILABLE, "%s: NCCL: %s%s%s", what, nccl()->GetErrorString(result),
                more && *more ? ": " : "", more ? more : "");
}

/* Does a rank wait for rows? Then the others cannot come, and time begins anew. */
static bool is_patient(const nccl_world *w)
{
    return w->patient && w->patient(w->context);
}

/* How far a call that was begun has come. */
static ncclResult_t ask_error(const nccl_group *g)
{
    ncclResult_t result = ncclInProgress, asked = ncclSuccess;
    if (go_inside(g->world))
        asked = nccl()->CommGetAsyncError(g->comm, &result);
    return asked == ncclSuccess ? result : asked;
}

/* Until a call that has returned is queued. */
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
            return FAIL(ST_TIMEOUT, "%s: not begun within %.1f s: a rank is missing", what,
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

status nccl_leave(const nccl_group *g, ncclResult_t result, const char *what)
{
    return leave_call(g->world, settle_call(g, result, what));
}

/* ---- the thread ---- */

static status find_errors(nccl_world *w)
{
    status st = ST_OK;
    if (pthread_mutex_trylock(&w->calling) != 0)
        return ST_OK; /* a call is under way, which looks itself */
    for (nccl_group *g = w->groups; g && st == ST_OK; g = g->next) {
        ncclResult_t result = ncclSuccess;
        if (g->comm && nccl()->CommGetAsyncError(g->comm, &result) == ncclSuccess &&
            result != ncclSuccess && result != ncclInProgress)
            st = failed(g, result, "a collective");
    }
    pthread_mutex_unlock(&w->calling);
    return st;
}

/* What has begun begins now. The thread that calls may end it meanwhile. */
static void begin_anew(atomic_llong *since)
{
    long long was = atomic_load(since);
    if (was)
        atomic_compare_exchange_strong(since, &was, clock_ns());
}

/* The host waits for the device, or it has not come so far as to wait: the GPU's queue is full of
 * what stands behind a collective. The latter takes twice as long, since the host may be busy. */
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
                    "the device does not get through its collectives within %.1f s: a rank does "
                    "not answer",
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
    return w->watched ? ST_OK : FAIL(ST_OS, "no thread beside NCCL: %s", strerror(rc));
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

/* Host values are real on every device: where it has no storage they go through pinned memory. */
static status open_stage(nccl_world *w)
{
    const backend_vtable *v = w->device->v;
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
        st = settle_call(g, nccl()->CommInitRankConfig(&g->comm, w->size, w->id, w->rank, &config),
                         what);
    return leave_call(w, st);
}

status nccl_world_attach(nccl_world *w, device *d)
{
    w->device = d;
    if (!w->groups)
        TRY(join_all(w));
    TRY(open_stage(w));
    d->watch = (device_watch){w, wait_begins, wait_ended};
    return start_watcher(w);
}

void nccl_world_detach(nccl_world *w)
{
    if (!w->device)
        return;
    const backend_vtable *v = w->device->v;
    if (w->stage.stream)
        v->stream_free(&w->stage.stream);
    if (w->stage.device)
        (device_has_storage(w->device) ? v->release : v->release_host)(w->device, w->stage.device);
    if (w->stage.host)
        v->release_host(w->device, w->stage.host);
    atomic_store(&w->closing, true);
    if (w->watched)
        pthread_join(w->watcher, NULL);
    w->watched = false;
    if (w->stage.stop) /* the thread may have written it */
        v->release_host(w->device, w->stage.stop);
    w->stage = (nccl_stage){0};
    w->device->watch = (device_watch){0};
    w->device = NULL;
}

static nccl_group *find_group(const nccl_world *w, const int *world_rank, int size)
{
    for (nccl_group *g = w->groups; g; g = g->next)
        if (g->size == size && memcmp(g->world_rank, world_rank, (size_t)size * sizeof(int)) == 0)
            return g;
    return NULL;
}

/* All ranks split the world at the same time, each into a group of its own of one size. A mesh's
 * groups are arithmetic series of one step and length over all ranks, so where one rank finds a
 * group that it has, all do. */
status nccl_world_group(nccl_world *w, const int *world_rank, int size, nccl_group **out)
{
    static const char what[] = "a group's communicator (ncclCommSplit)";
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int place = 0;
    nccl_group *g = find_group(w, world_rank, size);
    if (!g) {
        config.blocking = 0;
        while (world_rank[place] != w->rank)
            place++;
        TRY(nccl_enter(w));
        status st = add_group(w, world_rank, size, &g);
        if (st == ST_OK)
            st = settle_call(
                w->groups,
                nccl()->CommSplit(w->groups->comm, world_rank[0], place, &g->comm, &config), what);
        if (st == ST_OK) /* the child is not written before its parent has settled */
            st = settle_call(g, ncclInProgress, what);
        TRY(leave_call(w, st));
    }
    *out = g;
    return ST_OK;
}

const nccl_stage *nccl_world_stage(const nccl_world *w)
{
    return &w->stage;
}

/* A setting of NCCL's that the user has not made. */
static void set_unless(const char *name, const char *value, bool tell)
{
    if (!getenv(name) && setenv(name, value, 1) == 0 && tell)
        log_info("%s=%s is set for NCCL", name, value);
}

status nccl_world_new(const comm_join *o, nccl_world **out)
{
    TRY(nccl_open());
    nccl_world *w = calloc(1, sizeof *w);
    if (!w)
        return FAIL(ST_NO_MEMORY, "no memory for the NCCL engine");
    w->rank = o->rank;
    w->size = o->size;
    w->check = o->check;
    w->patient = o->patient;
    w->context = o->context;
    memcpy(&w->id, o->id, sizeof w->id);
    pthread_mutex_init(&w->calling, NULL);
    nccl_world_set_timeout(w, o->timeout_s);
    /* The switch sums in an order that differs from call to call: inside one machine and, by the
     * other name, between several. */
    if (o->deterministic)
        set_unless("NCCL_ALGO", "^NVLS,NVLSTree", w->rank == 0);
    /* Communicators that share a GPU run in the order in which the host calls them. */
    set_unless("NCCL_LAUNCH_ORDER_IMPLICIT", "1", w->rank == 0);
    *out = w;
    return ST_OK;
}

void nccl_world_set_timeout(nccl_world *w, double seconds)
{
    atomic_store(&w->timeout_ns, (int64_t)(seconds * 1e9));
}

/* Children before their parent. */
static void close_groups(nccl_group *g, bool well)
{
    static const char what[] = "closing a communicator";
    if (!g)
        return;
    close_groups(g->next, well);
    g->next = NULL; /* who fails here ends all there are */
    if (g->comm && well && nccl_enter(g->world) == ST_OK) {
        if (nccl_leave(g, nccl()->CommFinalize(g->comm), what) == ST_OK)
            nccl()->CommDestroy(g->comm);
        else
            log_warn("%s", status_text());
    } else if (g->comm) {
        nccl()->CommAbort(g->comm);
    }
    free(g->world_rank);
    free(g);
}

void nccl_world_free(nccl_world *w, bool well)
{
    if (!w)
        return;
    nccl_world_detach(w);
    close_groups(w->groups, well && !atomic_load(&w->over));
    pthread_mutex_destroy(&w->calling);
    free(w);
}
