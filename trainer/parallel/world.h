/* SPDX-License-Identifier: Apache-2.0 */
/* world.h: which rank of the job this process is, and the engine and rank link by which it meets
 * the others. There is one world per process, for its whole life.
 *
 *   world_open    finds the rank, meets the others (rank_link.h), loads the engine and joins
 *   world_attach  names the device on whose streams collectives will run
 *   mesh_open     makes the groups (mesh.h)
 *   ..            steps
 *   world_detach, world_close */
#ifndef TESSERA_TRAINER_PARALLEL_WORLD_H
#define TESSERA_TRAINER_PARALLEL_WORLD_H

#include "common/conf/conf.h"
#include "common/base/hash.h"
#include "trainer/parallel/comm/comm.h"
#include "trainer/parallel/comm/comm_ledger.h"
#include "trainer/parallel/link/rank_link.h"

typedef struct world_place {
    int rank, size;             /* in the job */
    int local_rank, local_size; /* on this machine */
    const char *source;         /* where it was read, such as "torchrun's variables"; static */
} world_place;

/* Reads the rank from the environment variables of whoever started the process, the first of these
 * that are set: torchrun's (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE), Open MPI's, those of a
 * Slurm step, PMI's. Without any it is a single process. ST_CONFIG names a variable that is missing
 * beside others of its kind, or that is not a number in its range. */
WARN_UNUSED status world_place_find(world_place *out);

/* The index of this rank's GPU among those that the process sees: its place on the machine, or 0
 * if Slurm has bound one GPU to each task. */
int world_gpu(const world_place *place);

typedef struct world {
    world_place place;
    const comm_engine *engine; /* NULL: a job of one rank; the same for the next three */
    void *joined;              /* the engine's own */
    comm_ledger *ledger;
    rank_link *rank_link;
    hash128 job; /* differs from job to job if the engine makes an id; the same on all ranks */
} world;

/* Finds the rank. If there are several, prints which one this is, meets the others, loads the
 * engine that comm.engine names and joins it. Close it with world_close. */
WARN_UNUSED status world_open(const conf *settings, world *out);
/* From now on collectives run on streams of this device, which was just opened on this thread, and
 * waits for the device end when the job does. Every rank calls it before mesh_open, and
 * world_detach before the device is closed. In a job of one rank, and if job is NULL, both do
 * nothing. */
WARN_UNUSED status world_attach(const world *job, device *opened);
void world_detach(const world *job);
/* Changes options whose value for one process does not suit several ranks: the number of ranks if
 * it is open, this rank's share of the machine's threads, and no captured steps if the engine's
 * collectives cannot be captured. */
void world_fit(const world *job, conf *settings);
/* From now on every rank also writes its log to job.dump_folder/log/rank-R.log, and ranks other
 * than 0 print only warnings and errors. */
WARN_UNUSED status world_log(const world *job, const conf *settings);
/* To be called when the first step is done: from then on a call may take
 * comm.train_timeout_seconds. */
void world_is_steady(const world *job, const conf *settings);
/* `how` is the status that the work ended with; after a failure the others are told its cause.
 * Returns ST_UNAVAILABLE if this rank did well and another did not; otherwise `how`. */
WARN_UNUSED status world_close(world *job, status how);

#endif
