/* comms.c: the communicators of the shim. Ranks find each other through shared memory whose name is
 * in the unique id; a communicator is ready when all have joined. As in NCCL nothing blocks, and a
 * communicator that is not ready may not be used. */
#include "trainer/parallel/nccl_double/shim.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static size_t members_at(void)
{
    return (sizeof(shim_shared) + 63) / 64 * 64;
}

static size_t mail_at(int size)
{
    return members_at() + (size_t)size * sizeof(shim_member);
}

static size_t stages_at(int size)
{
    return mail_at(size) + (size_t)size * (size_t)size * sizeof(shim_mail);
}

shim_member *shim_member_of(const struct ncclComm *comm, int rank)
{
    return (shim_member *)(void *)((char *)comm->shared + members_at()) + rank;
}

shim_mail *shim_mail_of(const struct ncclComm *comm, int from, int to)
{
    return (shim_mail *)(void *)((char *)comm->shared + mail_at(comm->size)) + from * comm->size +
           to;
}

char *shim_stage_of(const struct ncclComm *comm, int rank)
{
    return (char *)comm->shared + stages_at(comm->size) + (size_t)rank * SHIM_STAGE_BYTES;
}

/* ---- what may be called ---- */

static pthread_mutex_t lives = PTHREAD_MUTEX_INITIALIZER;
static struct ncclComm *live;

/* Ends the process: the engine has broken one of NCCL's rules. */
static void breach(const char *what)
{
    enum { BREACH = 99 };
    fprintf(stderr, "libnccl.so.2 of trainer/parallel/nccl_double: %s\n", what);
    _Exit(BREACH);
}

static void add_live(struct ncclComm *communicator)
{
    pthread_mutex_lock(&lives);
    communicator->next_live = live;
    live = communicator;
    pthread_mutex_unlock(&lives);
}

static struct ncclComm **find_live(const struct ncclComm *communicator)
{
    struct ncclComm **at = &live;
    while (*at && *at != communicator)
        at = &(*at)->next_live;
    if (!*at)
        breach("a communicator is called that is gone");
    return at;
}

static void end_live(const struct ncclComm *communicator)
{
    pthread_mutex_lock(&lives);
    struct ncclComm **at = find_live(communicator);
    if (atomic_load(&communicator->inside) > 0)
        breach("a communicator is freed while a call is inside it");
    *at = communicator->next_live;
    pthread_mutex_unlock(&lives);
}

void shim_go_in(struct ncclComm *comm)
{
    pthread_mutex_lock(&lives);
    find_live(comm);
    atomic_fetch_add(&comm->inside, 1);
    pthread_mutex_unlock(&lives);
}

void shim_go_out(struct ncclComm *comm)
{
    atomic_fetch_sub(&comm->inside, 1);
}

/* ---- their life ---- */

static void comm_free(struct ncclComm *communicator)
{
    while (communicator->works) {
        shim_work *work = communicator->works;
        communicator->works = work->next;
        shim_work_free(work);
    }
    shim_work_free(communicator->under_way);
    if (communicator->shared)
        munmap(communicator->shared, communicator->shared_bytes);
    free(communicator->sent);
    free(communicator->received);
    free(communicator);
}

static struct ncclComm *comm_new(const char *name, int size, int rank)
{
    struct ncclComm *communicator = calloc(1, sizeof *communicator);
    if (!communicator)
        return NULL;
    snprintf(communicator->name, sizeof communicator->name, "%s", name);
    communicator->rank = rank;
    communicator->size = size;
    communicator->shared_bytes = stages_at(size) + (size_t)size * SHIM_STAGE_BYTES;
    communicator->sent = calloc((size_t)size, sizeof *communicator->sent);
    communicator->received = calloc((size_t)size, sizeof *communicator->received);
    int fd = shm_open(name, O_CREAT | O_RDWR, 0600);
    void *at = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)communicator->shared_bytes) == 0)
        at = mmap(NULL, communicator->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (at == MAP_FAILED || !communicator->sent || !communicator->received) {
        comm_free(communicator);
        return NULL;
    }
    communicator->shared = at;
    add_live(communicator);
    atomic_fetch_add(&communicator->shared->joined, 1);
    return communicator;
}

static bool all_joined(struct ncclComm *communicator)
{
    if (!communicator->joined && atomic_load(&communicator->shared->joined) == communicator->size) {
        communicator->joined = true;
        shm_unlink(
            communicator->name); /* the first rank to come here does it; the memory stays mapped */
    }
    return communicator->joined;
}

/* ---- splitting ---- */

static bool all_split(const struct ncclComm *communicator)
{
    for (int i = 0; i < communicator->size; i++)
        if (atomic_load(&shim_member_of(communicator, i)->splits) < communicator->splits)
            return false;
    return true;
}

/* Makes the child of a split: the ranks of one color in the order of their keys, then of their
 * ranks. */
static ncclResult_t make_child(struct ncclComm *comm)
{
    const int turn = comm->splits % 2, color = shim_member_of(comm, comm->rank)->color[turn];
    const int key = shim_member_of(comm, comm->rank)->key[turn];
    char name[SHIM_NAME_MAX];
    int size = 0, place = 0;
    for (int i = 0; i < comm->size; i++) {
        const shim_member *member = shim_member_of(comm, i);
        if (member->color[turn] != color)
            continue;
        size++;
        place += member->key[turn] < key || (member->key[turn] == key && i < comm->rank);
    }
    snprintf(name, sizeof name, "%.64s-%lld-%d", comm->name, (long long)comm->splits, color);
    ncclComm_t child = color == NCCL_SPLIT_NOCOLOR ? NULL : comm_new(name, size, place);
    *comm->split_out = child;
    comm->split_out = NULL;
    return child || color == NCCL_SPLIT_NOCOLOR ? ncclSuccess : ncclSystemError;
}

/* What a rank shows of a split stays until all have begun the one after the next, and so have read
 * it. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm,
                           ncclConfig_t *config)
{
    (void)config;
    shim_go_in(comm);
    shim_member *me = shim_member_of(comm, comm->rank);
    shim_go_out(comm);
    if (!all_joined(comm) || comm->split_out)
        return ncclInvalidUsage;
    *newcomm = NULL;
    comm->split_out = newcomm;
    comm->splits++;
    me->color[comm->splits % 2] = color;
    me->key[comm->splits % 2] = key;
    atomic_store(&me->splits, comm->splits);
    return ncclInProgress;
}

/* ---- the others ---- */

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    memset(uniqueId, 0, sizeof *uniqueId);
    snprintf(uniqueId->internal, sizeof uniqueId->internal, "/tessera-nccl-%d-%lld", (int)getpid(),
             (long long)now.tv_sec * 1000000000 + now.tv_nsec);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t *config)
{
    if (!config || config->blocking != 0 || nranks < 1 || nranks > SHIM_RANKS_MAX || rank < 0 ||
        rank >= nranks)
        return ncclInvalidArgument;
    shim_record_open(rank);
    *comm = comm_new(commId.internal, nranks, rank);
    return *comm ? ncclInProgress : ncclSystemError;
}

static bool all_left(const struct ncclComm *communicator)
{
    for (int i = 0; i < communicator->size; i++)
        if (!atomic_load(&shim_member_of(communicator, i)->left))
            return false;
    return true;
}

static ncclResult_t go_on(ncclComm_t comm)
{
    if (atomic_load(&comm->shared->told))
        return ncclInvalidUsage;
#ifdef TESSERA_NCCL_WINDOWS
    if (comm->window_out)
        return shim_register(comm);
#endif
    if (!all_joined(comm))
        return ncclInProgress;
    if (comm->split_out)
        return all_split(comm) ? make_child(comm) : ncclInProgress;
    if (comm->under_way)
        return shim_go_on(comm);
    return atomic_load(&comm->finalizing) && !all_left(comm) ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
    shim_go_in(comm);
    *asyncError = go_on(comm);
    shim_go_out(comm);
    return ncclSuccess;
}

/* With TESSERA_NCCL_UNCLOSED a communicator that was split is refused. */
ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    shim_go_in(comm);
    const bool refused = comm->splits > 0 && getenv("TESSERA_NCCL_UNCLOSED");
    atomic_store(&comm->finalizing, true);
    atomic_store(&shim_member_of(comm, comm->rank)->left, true);
    shim_go_out(comm);
    return refused ? ncclSystemError : ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    end_live(comm);
    comm_free(comm);
    return ncclSuccess;
}

/* What is queued ends without having done its work. */
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags)
{
    (void)revokeFlags;
    shim_go_in(comm);
    atomic_store(&comm->revoked, true);
    shim_go_out(comm);
    return ncclSuccess;
}

/* The same, and the communicator is gone. A thread may be in the middle of its work, so its memory
 * is not freed. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    static struct ncclComm *_Atomic aborted; /* still reachable, so that they are not leaks */
    end_live(comm);
    atomic_store(&comm->aborted, true);
    comm->aborted_before = atomic_exchange(&aborted, comm);
    if (!comm->joined)
        shm_unlink(comm->name);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const text[ncclNumResults] = {
        "no error",         "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage",        "remote process exited",  "in progress"};
    return result >= 0 && result < ncclNumResults ? text[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    if (!comm)
        return "";
    return comm->shared && atomic_load(&comm->shared->told) ? comm->shared->said : comm->said;
}
