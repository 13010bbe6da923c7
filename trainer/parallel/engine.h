/* engine.h: which device and which engine a job of several ranks uses where its options leave that
 * open (training.backend and comm.engine at auto). */
#ifndef TESSERA_TRAINER_PARALLEL_ENGINE_H
#define TESSERA_TRAINER_PARALLEL_ENGINE_H

#include "common/conf/conf.h"

/* ST_CONFIG where comm.engine is one that plays a single rank and cannot join several processes. */
WARN_UNUSED status engine_check_ranks(const conf *c);
/* Fills in what is at auto. comm.engine becomes nccl for CUDA and mpi for the CPU; where
 * training.backend is at auto as well, it becomes CUDA if GPU number `gpu` opens in this process
 * and else the CPU. ST_CONFIG where nccl is asked for on the CPU. Ranks that find different things
 * learn it when they meet, since the rank link compares their options. */
WARN_UNUSED status engine_choose(conf *c, int gpu);
/* The same, but GPU 0 is tried in a child process, so that this one never opens a GPU. The caller
 * must not have started threads. */
WARN_UNUSED status engine_choose_apart(conf *c);

#endif
