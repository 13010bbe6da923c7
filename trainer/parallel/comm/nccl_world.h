/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_world.h: the NCCL communicators of this process, and a thread that keeps anything from
 * waiting for them for ever. For comm_nccl.c.
 *
 * NCCL has no time limits: a collective whose peer is gone waits on the GPU until its communicator
 * is aborted. So a thread watches what is called and queued. When another rank is lost (the rank
 * link says so), when NCCL reports an error, or when a call or the host's wait for the device has
 * lasted for too long, all communicators are aborted together. Calls and waits then end, and every
 * later one says why. If they do not end within 10 s, the process is ended.
 *
 * An abort frees the communicator, so it waits until no call is inside. A call that does not return
 * within a second is first made to by revoking what is queued (NCCL 2.28.9 and later); with an
 * older NCCL the communicators are aborted while the call is inside. */
#ifndef TESSERA_TRAINER_PARALLEL_COMM_NCCL_WORLD_H
#define TESSERA_TRAINER_PARALLEL_COMM_NCCL_WORLD_H

#include <pthread.h>
#include <stdatomic.h>

#include "trainer/ops/peers.h"
#include "trainer/parallel/comm/comm.h"
#include "trainer/parallel/comm/nccl.h"

typedef struct nccl_world nccl_world;

/* A communicator. Groups of the same ranks share one, so that what they queue keeps the order of
 * the calls and NCCL's buffers exist once. */
typedef struct nccl_group {
    nccl_world *world;
    ncclComm_t comm; /* NULL: not made yet, or closed. Gone once everything has ended */
    int size;
    int *world_rank; /* [size] rank of each member in the job */
    struct nccl_group *next;
} nccl_group;

/* A stream and memory with which the engine moves host values. */
typedef struct nccl_stage {
    stream *stream;
    char *device, *host; /* [COMM_STAGE_BYTES]; host is pinned */
    peer_watch *watch;   /* pinned; for kernels that wait for other ranks */
} nccl_stage;

/* Loads NCCL (nccl_open) and notes what the job is. No communicator is made yet. */
WARN_UNUSED status nccl_world_new(const comm_join *options, nccl_world **out);
/* well: closes the communicators together with the other ranks; otherwise aborts them. */
void nccl_world_free(nccl_world *world, bool well);
void nccl_world_set_timeout(nccl_world *world, double seconds);
/* Joins the other ranks and starts the thread. Every rank calls it, with a device that is open on
 * this thread, which makes all later calls. */
WARN_UNUSED status nccl_world_attach(nccl_world *world, device *opened);
void nccl_world_detach(nccl_world *world);
/* Finds or makes the communicator of the ranks world_rank [size], which the world owns. Every rank
 * calls it at the same time, each for its own group of that size. */
WARN_UNUSED status nccl_world_group(nccl_world *world, const int *world_rank, int size,
                                    nccl_group **out);
const nccl_stage *nccl_world_stage(const nccl_world *world);

/* To be called around every call of NCCL: nccl_enter, the call, then nccl_leave with what the call
 * returned. nccl_enter fails once the job has ended. `what`, a literal, names the call in messages.
 */
WARN_UNUSED status nccl_enter(nccl_world *world, const char *what);
WARN_UNUSED status nccl_leave(const nccl_group *group, ncclResult_t result);

enum { NCCL_GROUPS_MAX = 64 };

struct nccl_world {
    int rank, size;
    ncclUniqueId id;
    status (*check)(void *context);
    bool (*patient)(void *context);                /* NULL: never */
    void (*held)(void *context, bool held);        /* NULL: nobody wants to know, */
    void (*late)(void *context, const char *text); /* and here */
    void *context;
    device *device;
    nccl_stage stage;

    pthread_mutex_t calling;    /* the turn to call NCCL */
    _Atomic(const char *) call; /* what the thread that has the turn is inside of; NULL: nothing */
    atomic_llong call_ns;       /* when that call began */

    pthread_mutex_t listing; /* held to read or write the next three, never during a call */
    nccl_group *groups;      /* the first has all ranks */
    int n_groups;
    peer_watch *watch; /* stage.watch; NULL: the stage is closed */

    pthread_t watcher;
    bool watched; /* the watcher runs */
    atomic_llong timeout_ns;
    atomic_llong waits_since; /* when the host began to wait for the device; 0: it does not wait */
    atomic_llong called_at;   /* the first call after which no wait has ended; 0: there is none */
    atomic_bool closing;      /* the watcher is to end */
    atomic_bool ending;       /* a thread has noted the end */
    atomic_bool over;         /* cause and why are written; no call may begin */
    atomic_bool aborted;      /* all communicators are gone */
    status cause;
    char why[STATUS_MESSAGE_MAX];
};

/* Ends everything with the failure that this thread has just reported: threads that call or wait
 * look for it, and the watcher aborts the communicators. Does nothing after the first time. */
void nccl_watch_end(nccl_world *world, status cause);
/* Says how long a kernel may wait for other ranks: longer than the watcher lets anything last, so
 * that it is the watcher which ends the wait. To be called when timeout_ns or `watch` has changed.
 */
void nccl_watch_allow(nccl_world *world);
/* The failure that ended everything, as a status of this thread. */
WARN_UNUSED status nccl_watch_ended(const nccl_world *world);
/* Starts the watcher, unless it runs. */
WARN_UNUSED status nccl_watch_start(nccl_world *world);
/* Ends the watcher, which first aborts the communicators if everything has ended. */
void nccl_watch_stop(nccl_world *world);
/* What the device calls around a wait of the host (device_watch). */
void nccl_watch_wait_begins(void *world);
WARN_UNUSED status nccl_watch_wait_ended(void *world, status how);

#endif
