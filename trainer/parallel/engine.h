/* engine.h: which device and which engine several ranks get where the options leave it open. */
#ifndef TESSERA_TRAINER_PARALLEL_ENGINE_H
#define TESSERA_TRAINER_PARALLEL_ENGINE_H

#include "common/conf/conf.h"

/* CONFIG where comm.engine is one that several processes cannot share. */
WARN_UNUSED status engine_check_ranks(const conf *c);
/* Sets comm.engine where it is auto: nccl for CUDA, mpi for the CPU; and training.backend with it
 * where both are: CUDA if GPU `gpu` opens here. Ranks that find differently are told by the control
 * channel, which compares options. CONFIG: NCCL and no GPUs. */
WARN_UNUSED status engine_choose(conf *c, int gpu);
/* The same in a child that ends, so that this process never opens a GPU; it has no threads yet. */
WARN_UNUSED status engine_choose_apart(conf *c);

#endif
