/* SPDX-License-Identifier: Apache-2.0 */
/* launcher.h: starts the ranks of a job on this machine for --nproc, and chooses the device and the
 * engine of several ranks, as far as its options leave them open (training.backend and comm.engine
 * at auto). */
#ifndef TESSERA_TRAINER_PARALLEL_LAUNCHER_H
#define TESSERA_TRAINER_PARALLEL_LAUNCHER_H

#include "common/conf/conf.h"

/* Removes "--nproc N" from argv and sets *out to N, or to 0 if it is not there. ST_USAGE if N is
 * not a number of ranks. */
WARN_UNUSED status launch_take(int *argc, char **argv, int *out);

/* Runs this program again as `ranks` ranks, which are descendants of this process, with the
 * arguments argv [argc], of which the first is the verb. Sets what `options` leaves open of device
 * and engine (engine.h). Returns ST_OK when all ranks have ended without error; does not return if
 * one failed. ST_USAGE if this process is itself a rank. */
WARN_UNUSED status launch_ranks(conf *options, int ranks, int argc, char **argv);
/* The same with a verb's arguments as they were typed. It reads the options only for what they say
 * about the ranks; the ranks read them again. `needs` is as for verb_load. `check` is given the
 * options and the number of ranks: it adds what the verb implies for them, and refuses what the
 * ranks would refuse, so that a refusal is printed once and no rank is started. */
WARN_UNUSED status launch_again(int ranks, const conf_need *needs, status (*check)(conf *, int),
                                int argc, char **argv);

/* Fills in the options that are at auto. comm.engine becomes nccl for CUDA and mpi for the CPU; if
 * training.backend is at auto as well, it becomes CUDA if GPU number `gpu` can be opened in this
 * process, otherwise the CPU. ST_CONFIG if nccl is requested on the CPU. Ranks that find different
 * devices learn of it when they meet, since the rank link compares their options. */
WARN_UNUSED status engine_choose(conf *options, int gpu);
/* The same, but GPU 0 is tried in a child process, so that this one never opens a GPU. The caller
 * must not have started threads. */
WARN_UNUSED status engine_choose_apart(conf *options);

#endif
