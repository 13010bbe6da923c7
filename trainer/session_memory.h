/* session_memory.h: the memory plan of a run that is open, and what it took in the end. */
#ifndef TESSERA_TRAINER_SESSION_MEMORY_H
#define TESSERA_TRAINER_SESSION_MEMORY_H

#include "trainer/memory.h"
#include "trainer/session.h"

WARN_UNUSED status session_memory_plan(const session *s, memory_plan *out);

/* A line to stdout: the plan, the scratch that ops grew to (not in the plan), and what the device
 * gave out since it was opened; off: by how much the last is beside the first two. Behind steps in
 * which nothing is new: scratch has its size and steps are captured. */
WARN_UNUSED status session_memory_tell(const session *s);

#endif
