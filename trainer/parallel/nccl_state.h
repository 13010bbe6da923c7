/* nccl_state.h: what the files of the NCCL engine's world share: nccl_world.c opens and closes
 * communicators, nccl_watch.c has the calls and the thread that watches them. For these two. */
#ifndef TESSERA_TRAINER_PARALLEL_NCCL_STATE_H
#define TESSERA_TRAINER_PARALLEL_NCCL_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "trainer/parallel/nccl_world.h"

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
