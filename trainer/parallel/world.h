/* world.h: which rank this process is, as whoever started it says, and the engine it meets the
 * others by. One per process, for its life. */
#ifndef TESSERA_TRAINER_PARALLEL_WORLD_H
#define TESSERA_TRAINER_PARALLEL_WORLD_H

#include "common/conf/conf.h"
#include "common/base/hash.h"
#include "trainer/parallel/comm.h"
#include "trainer/parallel/comm_ledger.h"
#include "trainer/parallel/comm_simulated.h"
#include "trainer/parallel/rank_link.h"

typedef struct world_place {
    int rank, size;             /* of the job */
    int local_rank, local_size; /* of this machine */
    const char *source;         /* "torchrun's variables", ..; static storage */
} world_place;

/* The first of these that is there: torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK,
 * LOCAL_WORLD_SIZE), Open MPI's, those of a Slurm step, PMI's; none: a single process. A variable
 * that is missing among those of a kind, or is no number in range, is ST_CONFIG by its name. */
WARN_UNUSED status world_place_find(world_place *out);

/* Which of the GPUs that this process sees is its own: that of its place on the machine, or the
 * only one where Slurm has bound a GPU to every task. */
int world_gpu(const world_place *p);

typedef struct world {
    world_place place;
    const comm_engine *engine; /* NULL: alone */
    void *joined;              /* the engine's own */
    comm_ledger *ledger;       /* NULL: alone, and so the next */
    rank_link *rank_link;
    hash128 job; /* of this job alone where the engine makes an id; the same on all ranks */
    int backend; /* BACKEND_* of device_open that its ranks use; 0: training.backend's */
    size_t device_memory; /* of a device without storage: what it says it has; 0: any amount */
    /* "replayed: a model of 8 ranks at 360 GB/s .., not a measurement of 8 GPUs": stands wherever
     * figures do. "": these are all ranks */
    char replayed[160];
} world;

/* Finds the place, says so, and with several ranks meets the others (rank_link.h), then loads the
 * engine (comm.engine) and joins. */
WARN_UNUSED status world_open(const conf *c, world *out);
/* The same on devices of another kind than training.backend's. library: the path of what the engine
 * loads in the place of its own (comm_module.h). */
WARN_UNUSED status world_open_on(const conf *c, int backend, const char *library, world *out);
/* The place of comm.replay_rank in the layout, with the engine that plays the others
 * (comm_simulated.h); world_open does it where comm.engine says so. CONFIG: there is no such
 * layout, or rows do not come from a recording. */
WARN_UNUSED status world_replay(const conf *c, world *out);
/* The words, or NULL. w NULL: alone. */
static inline const char *world_simulated(const world *w)
{
    return w && w->replayed[0] ? w->replayed : NULL;
}
/* Calls will be on streams of d, which was just opened on this thread, and waits for it watched.
 * Before mesh_open, by every rank. detach: before d is closed; both accept a world of one, NULL. */
WARN_UNUSED status world_attach(const world *w, device *d);
void world_detach(const world *w);
/* What a launcher says beats what one process would take for itself: ranks, threads, and no
 * captured steps where collectives cannot be. */
void world_fit(const world *w, conf *c);
/* From here on every rank keeps its log in job.dump_folder/log/rank-R.log too; of other ranks than
 * 0 only warnings and errors are shown. */
WARN_UNUSED status world_log(const world *w, const conf *c);
/* The first step is done: from now on comm.train_timeout_seconds holds. */
void world_is_steady(const world *w, const conf *c);
/* how: what the work ended with; other ranks are told of a failure. ST_UNAVAILABLE where this rank
 * did well and another did not; else how. */
WARN_UNUSED status world_close(world *w, status how);

#endif
