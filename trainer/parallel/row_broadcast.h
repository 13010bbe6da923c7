/* row_broadcast.h: the ranks that need the same rows, and the way from the one that receives them,
 * the source, to the others: bytes over TCP, from thread to thread, so that rows travel while steps
 * compute, whatever the engine, and nothing of them goes through a device.
 *
 * A process that is gone is the control channel's business: the source goes on for the others. */
#ifndef TESSERA_TRAINER_PARALLEL_ROW_BROADCAST_H
#define TESSERA_TRAINER_PARALLEL_ROW_BROADCAST_H

#include "trainer/parallel/mesh.h"

typedef struct feed feed;

/* Collective over all ranks of m; where each has rows of its own *out is NULL. They meet over the
 * engine, then each source listens (on loopback where all its peers are on its machine) and takes
 * only who brings its secret. ST_TIMEOUT after timeout_s. */
WARN_UNUSED status feed_open(const mesh *m, double timeout_s, feed **out);
void feed_close(feed **f); /* accepts NULL */

bool feed_is_source(const feed *f);
int feed_source(const feed *f); /* its rank in the world */

/* The source's bytes to all others. ST_STOPPED once interrupted. */
WARN_UNUSED status feed_send(feed *f, const void *bytes, size_t size);
/* The next bytes of the source. Waits as long as it lives: ST_UNAVAILABLE names it when it is gone,
 * ST_STOPPED once interrupted. */
WARN_UNUSED status feed_recv(feed *f, void *bytes, size_t size);

/* From another thread: calls that wait, and later ones, return ST_STOPPED. */
void feed_interrupt(feed *f);

#endif
