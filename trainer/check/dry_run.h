/* dry_run.h: trainer train --dry-run: all ranks of a layout on devices of shapes (device/shapes.h):
 * played one after another by one process, with an engine that counts (comm_count.h), or a
 * process each (--nproc), with the engine of GPUs over a library that moves nothing
 * (parallel/nccl_double), which compares their calls. No tensor memory, no arithmetic, no rows of a
 * data set: one step of full rows of text with the capacities of the configuration, one checkpoint.
 *
 * What is held against what:
 *
 *   every stored element belongs to one rank        params.own_* of all ranks, against the registry
 *   a rank reads its own slices, no more            bytes its loader took, against those
 *   memory is the plan's                            allocations, against trainer/plan/layout_plan.h
 *   a step's collectives are the formula's          the ledger, against plan/received.h
 *   ranks of a group call the same in one order     their calls, against the group's first rank's
 *   a checkpoint is whole                           its files (values are holes), opened again;
 * bytes every rank put there; ranks that go on from it
 */
#ifndef TESSERA_TRAINER_CHECK_DRY_RUN_H
#define TESSERA_TRAINER_CHECK_DRY_RUN_H

#include "common/conf/conf.h"
#include "trainer/plan/plan_device.h"

/* Sets the backend, the engine and the level of the log that a dry run has, whatever c says. */
void dry_run_set(conf *c);
/* This process is one of the ranks, or plays them all where it is alone. planned: the GPU that the
 * ranks would have, for what activation checkpointing keeps and for the plan. Prints a table to
 * stdout; ST_INTERNAL names the first thing that differs. Writes sparse files below TMPDIR, which
 * are removed however it ends. */
WARN_UNUSED status dry_run(conf *c, const plan_device *planned);

#endif
