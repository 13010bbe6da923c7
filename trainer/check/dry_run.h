/* dry_run.h: trainer train --dry-run: runs all ranks of a layout on devices without storage
 * (device/shapes.h). Either one process plays them one after another, with an engine that counts
 * calls (comm_count.h), or with --nproc each rank is a process, with the NCCL engine on top of a
 * library that moves nothing (parallel/nccl_double) and compares the ranks' calls. There is no
 * tensor memory, no arithmetic and no data set: the run makes one step of full rows of text, with
 * the capacities of the configuration, and one checkpoint.
 *
 *   what must hold                                  how it is checked
 *   each stored element belongs to one rank         params.own_* of all ranks against the registry
 *   a rank reads its own slices and no more         bytes its loader read against those slices
 *   memory is what the plan says                    allocations, and the run's own plan, against
 *                                                   plan/layout_plan.h
 *   a step's collectives are what the formula says  the ledger against plan/received.h
 *   ranks of a group make the same calls in order   each rank's against the group's first rank's
 *   a checkpoint is whole                           its files, in which values are holes, are
 *                                                   opened again; ranks resume from it
 */
#ifndef TESSERA_TRAINER_CHECK_DRY_RUN_H
#define TESSERA_TRAINER_CHECK_DRY_RUN_H

#include "common/conf/conf.h"
#include "trainer/plan/plan_device.h"

/* Sets the backend, the engine and the log level that a dry run needs, overriding the options. */
void dry_run_set(conf *options);
/* Runs as one of the ranks, or plays all of them if this process is alone. planned: the GPU that
 * the ranks would have, by which activation checkpointing is chosen and the plan is made. Prints a
 * table to stdout. ST_INTERNAL names the first thing that differs. Writes sparse files below
 * TMPDIR, which are removed however the run ends. */
WARN_UNUSED status dry_run(conf *options, const plan_device *planned);

#endif
