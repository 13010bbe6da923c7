/* SPDX-License-Identifier: Apache-2.0 */
/* row_broadcast.h: passes rows from the rank that receives them, the source, to the other ranks
 * that need the same ones. Bytes go over TCP from thread to thread, so that rows travel while steps
 * compute, whatever the engine, and without passing through a device.
 *
 * The rank link notices a rank whose process has ended; the source continues for the others. */
#ifndef TESSERA_TRAINER_PARALLEL_ROW_BROADCAST_H
#define TESSERA_TRAINER_PARALLEL_ROW_BROADCAST_H

#include "trainer/parallel/mesh.h"

typedef struct row_broadcast row_broadcast;

/* Connects each source to its peers. Every rank of the mesh calls it; *out is NULL if each rank
 * has rows of its own. The ranks exchange addresses over the engine. Each source then listens, on
 * loopback if all its peers are on its machine, and accepts only connections that bring the
 * secret it told them. ST_TIMEOUT if a peer does not come within timeout_s. */
WARN_UNUSED status row_broadcast_open(const mesh *ranks, double timeout_s, row_broadcast **out);
void row_broadcast_close(row_broadcast **rows); /* accepts a pointer to NULL */

bool row_broadcast_is_source(const row_broadcast *rows);
int row_broadcast_source(const row_broadcast *rows); /* the source's rank in the job */

/* On the source: sends the same bytes to all peers, skipping those that are gone. ST_STOPPED once
 * it was interrupted. */
WARN_UNUSED status row_broadcast_send(row_broadcast *rows, const void *bytes, size_t size);
/* On a peer: receives the source's next bytes, and waits for them as long as the source lives.
 * ST_UNAVAILABLE names the source when it is gone; ST_STOPPED once it was interrupted. */
WARN_UNUSED status row_broadcast_recv(row_broadcast *rows, void *bytes, size_t size);

/* Called from another thread: the calls that wait, and all later ones, return ST_STOPPED. */
void row_broadcast_interrupt(row_broadcast *rows);

#endif
