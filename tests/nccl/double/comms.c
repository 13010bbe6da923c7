/* SPDX-License-Identifier: Apache-2.0 */
/* comms.c: the communicators of the shim. Ranks find each other through shared memory whose name is
 * in the unique id; a communicator is ready when all have joined. As in NCCL a call of a blocking
 * communicator returns when it is done; the engine has no others. */
#include "tests/nccl/double/shim.h"

#include <fcntl.h>
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

/* ---- their life ---- */

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
        shim_comm_free(communicator);
        return NULL;
    }
    communicator->shared = at;
    shim_add_live(communicator);
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
    if (!config || config->blocking != 1)
        return ncclInvalidArgument;
    shim_go_in(comm);
    shim_member *me = shim_member_of(comm, comm->rank);
    *newcomm = NULL;
    comm->split_out = newcomm;
    comm->splits++;
    me->color[comm->splits % 2] = color;
    me->key[comm->splits % 2] = key;
    atomic_store(&me->splits, comm->splits);
    ncclResult_t result = shim_finish(comm, ncclInProgress);
    if (result == ncclSuccess && *newcomm)
        result = shim_finish(*newcomm, ncclInProgress);
    shim_go_out(comm);
    return result;
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
    shim_forget_dead();
    clock_gettime(CLOCK_MONOTONIC, &now);
    memset(uniqueId, 0, sizeof *uniqueId);
    snprintf(uniqueId->internal, sizeof uniqueId->internal, SHIM_COMM_NAME "%d-%lld", (int)getpid(),
             (long long)now.tv_sec * 1000000000 + now.tv_nsec);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t *config)
{
    if (!config || config->blocking != 1 || nranks < 1 || nranks > SHIM_RANKS_MAX || rank < 0 ||
        rank >= nranks)
        return ncclInvalidArgument;
    shim_record_open(rank);
    *comm = comm_new(commId.internal, nranks, rank);
    return *comm ? shim_finish(*comm, ncclInProgress) : ncclSystemError;
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

ncclResult_t shim_finish(struct ncclComm *comm, ncclResult_t result)
{
    enum { LOOK_US = 50 };
    while (result == ncclInProgress && !atomic_load(&comm->revoked) &&
           !atomic_load(&comm->aborted)) {
        result = go_on(comm);
        if (result == ncclInProgress)
            usleep(LOOK_US);
    }
    return result == ncclInProgress ? ncclRemoteError : result;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
    shim_go_in(comm);
    *asyncError = atomic_load(&comm->shared->told) ? ncclInvalidUsage : ncclSuccess;
    shim_go_out(comm);
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
