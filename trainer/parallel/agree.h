/* agree.h: makes work that every rank does by itself, such as opening a file, succeed on all ranks
 * or fail on all of them. Without this, a rank that fails would leave while the others wait for it
 * in their next collective. */
#ifndef TESSERA_TRAINER_PARALLEL_AGREE_H
#define TESSERA_TRAINER_PARALLEL_AGREE_H

#include "trainer/parallel/comm.h"

/* Tells all ranks of `group` how each of them fared. Every rank of the group calls this, outside of
 * steps, and waits for the others.
 *
 * mine   how this rank's own work ended; after a failure the thread's last note has the cause
 * value  a number that must be the same on all ranks, such as a step
 *
 * Returns ST_OK if all ranks are well and have the same value. Otherwise all ranks return the
 * code of the lowest rank that failed; on the others the note says "rank R: " and that rank's
 * words. ST_PROTOCOL if all are well but a rank's value differs from rank 0's. A group of one
 * returns `mine`. */
WARN_UNUSED status comm_agree(const comm *group, comm_at at, status mine, int64_t value);

#endif
