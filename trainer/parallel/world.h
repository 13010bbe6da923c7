/* world.h: which rank this process is, as whoever started it says, and the engine it meets the
 * others by. One per process, for its life. */
#ifndef TESSERA_PARALLEL_WORLD_H
#define TESSERA_PARALLEL_WORLD_H

#include "common/conf.h"
#include "trainer/parallel/comm.h"
#include "trainer/parallel/comm_ledger.h"

typedef struct world_place {
    int rank, size;             /* of the job */
    int local_rank, local_size; /* of this machine */
    const char *source;         /* "torchrun's variables", ..; static storage */
} world_place;

/* The first of these that is there: torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK,
 * LOCAL_WORLD_SIZE), Open MPI's, those of a Slurm step, PMI's; none: a single process. A variable
 * that is missing among those of a kind, or is no number in range, is ST_CONFIG by its name. */
WARN_UNUSED status world_place_find(world_place *out);

typedef struct world {
    world_place place;
    const comm_engine *engine; /* NULL: alone */
    void *joined;              /* the engine's own */
    comm_ledger *ledger;       /* NULL: alone */
} world;

/* Finds the place, says so, and with several ranks loads the engine (comm.engine) and joins. */
WARN_UNUSED status world_open(const conf *c, world *out);
void world_close(world *w);

#endif
