/* io_threads.h: how many threads of ZeroMQ's move the dispatcher's bytes, and which connections
 * each has.
 *
 * The dispatcher's own thread handles messages and never copies a picture. ZeroMQ's threads read
 * and write the connections, and with keys they encrypt: for one picture that is more work
 * than the dispatcher has with a whole row. A connection stays with one of them, so one busy
 * consumer is one thread's work at most. Every byte of a row comes in from a worker and goes out to
 * a consumer: the first half of the threads has the consumers, the second half the workers, and an
 * odd one in the middle has some of both. */
#ifndef TESSERA_PREPD_SERVE_IO_THREADS_H
#define TESSERA_PREPD_SERVE_IO_THREADS_H

#include <stdbool.h>

#include "common/conf/conf.h"

typedef struct io_threads {
    int n;
    uint64_t consumers, workers; /* a bit for each that has such connections */
} io_threads;

/* prepd.io_threads, or where that is 0 as many as so many CPUs can keep busy over such links. */
io_threads io_threads_of(const conf *c, int cpus);

#endif
