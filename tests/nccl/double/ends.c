/* SPDX-License-Identifier: Apache-2.0 */
/* ends.c: how communicators of the shim end, and which of NCCL's rules about that are held.
 *
 * NCCL aborts a communicator in two parts: it asks the kernels to quit, and then it frees memory.
 * Freeing waits until the GPU is idle, so also for kernels of other communicators, and until no
 * captured graph holds a call of this one. In a group of aborts the first part is done for all
 * before the second is done for any. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/nccl/double/shim.h"

enum { GROUP_MAX = 64, LOOK_US = 1000 };

static pthread_mutex_t lives = PTHREAD_MUTEX_INITIALIZER;
static struct ncclComm *live;

/* ---- what may be called ---- */

/* Ends the process: the engine has broken one of NCCL's rules. */
static void breach(const char *what)
{
    enum { BREACH = 99 };
    fprintf(stderr, "libnccl.so.2 of trainer/parallel/nccl_double: %s\n", what);
    _Exit(BREACH);
}

void shim_add_live(struct ncclComm *comm)
{
    pthread_mutex_lock(&lives);
    comm->next_live = live;
    live = comm;
    pthread_mutex_unlock(&lives);
}

static struct ncclComm **find_live(const struct ncclComm *comm)
{
    struct ncclComm **at = &live;
    while (*at && *at != comm)
        at = &(*at)->next_live;
    if (!*at)
        breach("a communicator is called that is gone");
    return at;
}

static void end_live(const struct ncclComm *comm)
{
    pthread_mutex_lock(&lives);
    struct ncclComm **at = find_live(comm);
    if (atomic_load(&comm->inside) > 0)
        breach("a communicator is freed while a call is inside it");
    *at = comm->next_live;
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

/* ---- ends ---- */

void shim_comm_free(struct ncclComm *comm)
{
    while (comm->works) {
        shim_work *work = comm->works;
        comm->works = work->next;
        shim_work_free(work);
    }
    shim_work_free(comm->under_way);
    if (comm->shared)
        munmap(comm->shared, comm->shared_bytes);
    free(comm->sent);
    free(comm->received);
    free(comm);
}

/* With TESSERA_NCCL_UNCLOSED a communicator that was split is refused. */
ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    shim_go_in(comm);
    const bool refused = comm->splits > 0 && getenv("TESSERA_NCCL_UNCLOSED");
    atomic_store(&comm->finalizing, true);
    atomic_store(&shim_member_of(comm, comm->rank)->left, true);
    ncclResult_t result = refused ? ncclSystemError : shim_finish(comm, ncclInProgress);
    shim_go_out(comm);
    return result;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (atomic_load(&comm->graphs) > 0)
        breach("a communicator is closed while a captured graph holds a call of it");
    end_live(comm);
    shim_comm_free(comm);
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

/* ---- aborts ---- */

static bool is_device_idle(void)
{
    bool idle = true;
    pthread_mutex_lock(&lives);
    for (const struct ncclComm *comm = live; comm; comm = comm->next_live)
        idle = idle && (atomic_load(&comm->revoked) || atomic_load(&comm->busy) == 0);
    pthread_mutex_unlock(&lives);
    return idle;
}

/* A thread may be in the middle of the communicator's work, so its memory is not freed. With
 * TESSERA_NCCL_HELD it never returns. */
static void free_aborted(struct ncclComm *comm)
{
    static struct ncclComm *_Atomic aborted; /* still reachable, so that they are not leaks */
    while (getenv("TESSERA_NCCL_HELD") || !is_device_idle() || atomic_load(&comm->graphs) > 0)
        usleep(LOOK_US);
    comm->aborted_before = atomic_exchange(&aborted, comm);
    if (!comm->joined)
        shm_unlink(comm->name);
}

static _Thread_local struct ncclComm *grouped[GROUP_MAX];
static _Thread_local int n_grouped;

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    end_live(comm);
    atomic_store(&comm->aborted, true);
    if (!shim_in_group()) {
        free_aborted(comm);
        return ncclSuccess;
    }
    if (n_grouped == GROUP_MAX)
        return ncclInvalidUsage;
    grouped[n_grouped++] = comm;
    return ncclSuccess;
}

void shim_end_aborts(void)
{
    for (int i = 0; i < n_grouped; i++)
        free_aborted(grouped[i]);
    n_grouped = 0;
}
