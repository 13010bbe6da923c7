/* comm_simulated.h: an engine that plays one rank of a layout in a process alone: every collective
 * is a copy on this device of the bytes that the rank would get from others, at a stated bandwidth
 * behind a stated latency, by a reserved share of the GPU (ops/paced.h). To see what of them
 * computing hides. It is a model: links, their contention and the other ranks' pace are taken from
 * the options, not measured, and all that it gives is labelled so (world_simulated).
 *
 * What is received is made of this rank's own values, so that training stays what it is on one
 * rank, of a smaller model:
 *
 *   all gather       this rank's piece in every place
 *   reduce scatter   the sum of the pieces of this rank's buffer: the gradient of a tensor that is
 *                    made of one piece
 *   all reduce       what was there: other ranks bring nothing
 *   all to all       from each rank, over and over, what this one sends to itself; zeros where that
 *                    is nothing. Counts are this rank's own too, since they are gathered first: as
 *                    if all ranks were alike
 *   broadcast        what was there
 *
 * Messages between two ranks and host values have no such source: refused. So there are no stages,
 * and nothing is kept. */
#ifndef TESSERA_TRAINER_PARALLEL_COMM_SIMULATED_H
#define TESSERA_TRAINER_PARALLEL_COMM_SIMULATED_H

#include "trainer/parallel/comm.h"

/* The `world` of the engine: heap, freed when it leaves. */
typedef struct comm_simulated {
    double bytes_per_s; /* what the rank gets from others, of all of them together */
    int64_t latency_ns; /* of a call */
    int blocks;         /* of the GPU: multiprocessors that collectives have for themselves */
} comm_simulated;

/* How long a call is to take in which this rank gets so many bytes; none: it does not wait. */
int64_t comm_simulated_ns(const comm_simulated *r, int64_t bytes);

extern const comm_engine comm_simulated_engine;

static inline bool comm_is_simulated(const comm *c)
{
    return c->engine == &comm_simulated_engine;
}

#endif
