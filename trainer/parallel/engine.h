/* engine.h: chooses the device and the engine of a job of several ranks, as far as its options
 * leave them open (training.backend and comm.engine at auto). */
#ifndef TESSERA_TRAINER_PARALLEL_ENGINE_H
#define TESSERA_TRAINER_PARALLEL_ENGINE_H

#include "common/conf/conf.h"

/* Fills in the options that are at auto. comm.engine becomes nccl for CUDA and mpi for the CPU; if
 * training.backend is at auto as well, it becomes CUDA if GPU number `gpu` can be opened in this
 * process, otherwise the CPU. ST_CONFIG if nccl is requested on the CPU. Ranks that find different
 * devices learn of it when they meet, since the rank link compares their options. */
WARN_UNUSED status engine_choose(conf *options, int gpu);
/* The same, but GPU 0 is tried in a child process, so that this one never opens a GPU. The caller
 * must not have started threads. */
WARN_UNUSED status engine_choose_apart(conf *options);

#endif
