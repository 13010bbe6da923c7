/* comm_simulated.h: an engine that plays one rank of a layout in a process alone (comm.engine
 * replay). Each collective becomes a copy on this device of as many bytes as the rank would receive
 * from the others, at a stated bandwidth and after a stated latency, done by a reserved share of
 * the GPU (ops/paced.h). It shows how much of the collectives is hidden by computing.
 *
 * It is a model. Links, their contention and the pace of the other ranks come from the options and
 * are not measured, and every figure of such a run is labelled so (world_simulated).
 *
 * The bytes that are received are made of this rank's own values:
 *
 *   all gather       this rank's piece in every place
 *   reduce scatter   the sum of the pieces of this rank's own buffer, which is the gradient of a
 *                    tensor that is made of one piece
 *   all reduce       what was there before, as if the other ranks brought nothing
 *   all to all       from every rank, over and over, what this rank sends to itself; zeros if
 *                    that is nothing. The counts are this rank's own as well, since they are
 *                    gathered first: as if all ranks were alike
 *   broadcast        what was there before
 *
 * Training therefore runs as on one rank of a smaller model, and its values are worth nothing.
 * Messages between two ranks and host values have no such source and are refused, so a simulated
 * rank has no pipeline stages and saves no checkpoint. */
#ifndef TESSERA_TRAINER_PARALLEL_COMM_SIMULATED_H
#define TESSERA_TRAINER_PARALLEL_COMM_SIMULATED_H

#include "trainer/parallel/comm.h"

/* The engine's `world`: heap memory, which the engine frees when the rank leaves. */
typedef struct comm_simulated {
    double bytes_per_s; /* what the rank receives from all others together */
    int64_t latency_ns; /* of each call */
    int blocks;         /* multiprocessors of the GPU that are reserved for collectives */
} comm_simulated;

/* Nanoseconds that a call takes in which this rank receives `bytes`; 0 for a call of no bytes. */
int64_t comm_simulated_ns(const comm_simulated *rank, int64_t bytes);

extern const comm_engine comm_simulated_engine;

static inline bool comm_is_simulated(const comm *group)
{
    return group->engine == &comm_simulated_engine;
}

#endif
