/* comm_module.h: what the libraries of engines show to world.c, their only user
 * (common/program/module.h). Each has one symbol: tessera_mpi_engine of libtessera_mpi.so, .. */
#ifndef TESSERA_TRAINER_PARALLEL_COMM_MODULE_H
#define TESSERA_TRAINER_PARALLEL_COMM_MODULE_H

#include "common/program/module.h"
#include "trainer/parallel/comm.h"

/* library: the path of what the engine loads in its turn, kept; NULL: as the machine has it. */
typedef const comm_engine *(*comm_module_entry)(const module_host *host, const char *library);
const comm_engine *tessera_mpi_engine(const module_host *host, const char *library);
const comm_engine *tessera_nccl_engine(const module_host *host, const char *library);

#endif
