/* session_memory.h: the memory plan (plan/memory.h) of a run that is open, and what it took in the
 * end. */
#ifndef TESSERA_TRAINER_RUN_SESSION_MEMORY_H
#define TESSERA_TRAINER_RUN_SESSION_MEMORY_H

#include "trainer/plan/memory.h"
#include "trainer/run/session.h"

/* Which device the session plans for: its own. Where the options leave to the device what
 * activation checkpointing keeps, the one of all ranks that has least, so that they choose alike;
 * then every rank calls it. */
WARN_UNUSED status session_memory_device(session *s);
/* What activation checkpointing computes again: by what is known of the shapes. Before the stream
 * is open they are the widest, and once more when it is. */
WARN_UNUSED status session_memory_choose(session *s);
/* Refuses what memory.limit leaves no room for, with the plan on stdout; the text names the
 * smallest change that fits. Where the CPU stands in for a GPU that was not found, the text begins
 * with why, and the plan of a GPU is on stdout too. */
WARN_UNUSED status session_memory_check(const session *s);
/* Of this rank, by what is known of the shapes. */
WARN_UNUSED status session_memory_plan(const session *s, memory_plan *out);

/* What the device gave out for this process: since before its context where that was measured
 * (device.context_bytes), else since it was opened. */
WARN_UNUSED status session_memory_taken(const session *s, size_t *out);
/* A line to stdout: plan, taken, and by how much the second is beside the first. After steps in
 * which nothing is new: scratch has its size and steps are captured. */
WARN_UNUSED status session_memory_tell(const session *s);

#endif
