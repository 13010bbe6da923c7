/* session_memory.h: the memory plan of a run that is open, and what it took in the end. */
#ifndef TESSERA_TRAINER_RUN_SESSION_MEMORY_H
#define TESSERA_TRAINER_RUN_SESSION_MEMORY_H

#include "trainer/plan/memory.h"
#include "trainer/run/session.h"

/* Refuses what memory.limit leaves no room for, with the plan on stdout; the text names the
 * smallest change that fits. Where the CPU stands in for a GPU that was not found, the text begins
 * with why, and the plan of an H200 is on stdout too. answers: held-out questions are answered in
 * the model's own words. */
WARN_UNUSED status session_memory_check(const session *s, int64_t seq_len, int64_t patch_budget,
                                        bool answers);
WARN_UNUSED status session_memory_plan(const session *s, memory_plan *out);

/* What the device gave out for this process: since before its context where that was measured
 * (device.context_bytes), else since it was opened. */
WARN_UNUSED status session_memory_taken(const session *s, size_t *out);
/* A line to stdout: plan, taken, and by how much the second is beside the first. Behind steps in
 * which nothing is new: scratch has its size and steps are captured. */
WARN_UNUSED status session_memory_tell(const session *s);

#endif
