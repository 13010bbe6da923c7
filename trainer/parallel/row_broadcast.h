/* row_broadcast.h: the ranks that need the same rows, and the way from the one that receives them,
 * the source, to the others: bytes over TCP, from thread to thread, so that rows travel while steps
 * compute, whatever the engine, and nothing of them goes through a device.
 *
 * A process that is gone is the control channel's business: the source goes on for the others. */
#ifndef TESSERA_TRAINER_PARALLEL_ROW_BROADCAST_H
#define TESSERA_TRAINER_PARALLEL_ROW_BROADCAST_H

#include "trainer/parallel/mesh.h"

typedef struct row_broadcast row_broadcast;

/* Collective over all ranks of m; where each has rows of its own *out is NULL. They meet over the
 * engine, then each source listens (on loopback where all its peers are on its machine) and takes
 * only who brings its secret. ST_TIMEOUT after timeout_s. */
WARN_UNUSED status row_broadcast_open(const mesh *m, double timeout_s, row_broadcast **out);
void row_broadcast_close(row_broadcast **f); /* accepts NULL */

bool row_broadcast_is_source(const row_broadcast *f);
int row_broadcast_source(const row_broadcast *f); /* its rank in the world */

/* The source's bytes to all others. ST_STOPPED once interrupted. */
WARN_UNUSED status row_broadcast_send(row_broadcast *f, const void *bytes, size_t size);
/* The next bytes of the source. Waits as long as it lives: ST_UNAVAILABLE names it when it is gone,
 * ST_STOPPED once interrupted. */
WARN_UNUSED status row_broadcast_recv(row_broadcast *f, void *bytes, size_t size);

/* From another thread: calls that wait, and later ones, return ST_STOPPED. */
void row_broadcast_interrupt(row_broadcast *f);

#endif
