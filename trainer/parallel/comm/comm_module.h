/* SPDX-License-Identifier: Apache-2.0 */
/* comm_module.h: what the shared libraries of the engines export to world.c, their only user
 * (common/program/module.h says how such a library is loaded). Each library exports one function:
 * libtessera_mpi.so has tessera_mpi_engine, libtessera_nccl.so has tessera_nccl_engine. */
#ifndef TESSERA_TRAINER_PARALLEL_COMM_MODULE_H
#define TESSERA_TRAINER_PARALLEL_COMM_MODULE_H

#include "common/program/module.h"
#include "trainer/parallel/comm/comm.h"

/* Returns the engine's table, which lives as long as the library. host: the program's services for
 * the library. */
typedef const comm_engine *(*comm_module_entry)(const module_host *host);
const comm_engine *tessera_mpi_engine(const module_host *host);
const comm_engine *tessera_nccl_engine(const module_host *host);

#endif
