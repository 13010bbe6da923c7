/* SPDX-License-Identifier: Apache-2.0 */
/* session_memory.h: the memory plan (plan/memory.h) of an open run, and how much memory the run
 * took in the end. */
#ifndef TESSERA_TRAINER_RUN_SESSION_MEMORY_H
#define TESSERA_TRAINER_RUN_SESSION_MEMORY_H

#include "trainer/plan/memory.h"
#include "trainer/run/session.h"

/* Chooses the device that the session plans for. A single rank plans for its own device, with what
 * other processes leave of it. Several ranks plan for one that every rank's can match, so that all
 * of them choose alike, and those that share a GPU or a machine's memory have equal parts of it;
 * every rank must make this call. The log says how much is free. */
WARN_UNUSED status session_memory_device(session *run);
/* Decides what activation checkpointing recomputes, from the shapes known so far. Called before the
 * stream is open, with the widest shapes that the options allow, and again with those of the
 * stream. */
WARN_UNUSED status session_memory_choose(session *run);
/* Returns ST_CONFIG if the plan is above memory.limit, after printing the plan to stdout; the
 * message names the smallest change that fits. So it does if the host has no room for what
 * memory.host leaves there. If the CPU was taken because no GPU was found,
 * the message begins with the reason and the plan for a GPU is printed as well. */
WARN_UNUSED status session_memory_check(const session *run);
/* The plan of this rank, from the shapes known so far. */
WARN_UNUSED status session_memory_plan(const session *run, memory_plan *out);

/* Logs how much rests on the host, if memory.host asks for it. */
WARN_UNUSED status session_memory_log_host(const session *run);

/* Bytes that the device has given to this process: since before its context was made if that
 * size was measured (device.context_bytes), else since it was opened. */
WARN_UNUSED status session_memory_taken(const session *run, size_t *out);
/* Prints one line: planned bytes, taken bytes, and the difference in per cent. Call it after a few
 * steps, when scratch has reached its size and steps are captured. */
WARN_UNUSED status session_memory_print(const session *run);

#endif
