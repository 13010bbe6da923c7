/* nccl_world.h: the communicators of this process, and the thread that sees to it that nothing
 * waits for them for ever. For comm_nccl.c.
 *
 * NCCL has no time limits: a collective whose peer is gone waits on the GPU until its communicator
 * is aborted. So communicators are non-blocking, calls are waited for here with a deadline, and a
 * thread looks after what is queued: when another rank is lost (the control channel), when NCCL
 * tells of an error, when the host has waited for the device for too long, all communicators are
 * aborted. Waits then end, and every call says why. An abort frees the communicator, so it comes
 * when no call is inside: one that NCCL keeps for more than a second is first made to return by
 * revoking what is queued (2.28.9 or later; before, the abort has to come beside it). */
#ifndef TESSERA_TRAINER_PARALLEL_NCCL_WORLD_H
#define TESSERA_TRAINER_PARALLEL_NCCL_WORLD_H

#include "trainer/parallel/comm.h"
#include "trainer/parallel/nccl.h"

typedef struct nccl_world nccl_world;

/* A communicator. Groups of the same ranks share one: what they queue keeps the order of the calls,
 * and NCCL's buffers exist once. */
typedef struct nccl_group {
    nccl_world *world;
    ncclComm_t comm; /* NULL once it was aborted */
    int size;
    int *world_rank; /* [size] */
    struct nccl_group *next;
} nccl_group;

/* Host values: a stream and memory of the engine's own. */
typedef struct nccl_stage {
    stream *stream;
    char *device, *host; /* [COMM_STAGE_BYTES]; host is pinned */
    int32_t *stop; /* pinned: not 0 once the world has ended; for kernels that wait for others */
} nccl_stage;

WARN_UNUSED status nccl_world_new(const comm_join *o, nccl_world **out);
void nccl_world_free(nccl_world *w, bool well);
void nccl_world_set_timeout(nccl_world *w, double seconds);
/* The device is open on this thread, which makes all calls. Collective. */
WARN_UNUSED status nccl_world_attach(nccl_world *w, device *d);
void nccl_world_detach(nccl_world *w);
/* Found or made; belongs to the world. */
WARN_UNUSED status nccl_world_group(nccl_world *w, const int *world_rank, int size,
                                    nccl_group **out);
const nccl_stage *nccl_world_stage(const nccl_world *w);

/* Around every call of NCCL: enter, the call, leave with what it returned. enter fails once the
 * world has ended. leave waits until a call that is under way is queued. `what` for messages. */
WARN_UNUSED status nccl_enter(nccl_world *w);
WARN_UNUSED status nccl_leave(const nccl_group *g, ncclResult_t result, const char *what);

#endif
