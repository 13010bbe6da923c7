/* io_threads.h: how many of ZeroMQ's threads move the dispatcher's bytes, and which connections
 * each of them has.
 *
 * The dispatcher's own thread handles messages and never copies a picture. ZeroMQ's threads read
 * and write the connections and, with keys, encrypt: for one picture that is more work than the
 * dispatcher has with a whole row. A connection stays with one thread, so one busy consumer is the
 * work of one thread at most. Every byte of a row comes in from a worker and goes out to a
 * consumer. Therefore the first half of the threads has the consumers and the second half the
 * workers; with an odd number the one in the middle has some of both.
 *
 * libzmq gives a new connection to the thread that has the fewest, but does not count those that it
 * has just given: connections that come in the same moment may all land on one thread. */
#ifndef TESSERA_PREPD_SERVE_IO_THREADS_H
#define TESSERA_PREPD_SERVE_IO_THREADS_H

#include <stdbool.h>

#include "common/conf/conf.h"

typedef struct io_threads {
    int n_threads;
    uint64_t consumers, workers; /* bit k is set if thread k has such connections */
} io_threads;

/* prepd.io_threads of them; where that is 0, as many as this number of CPUs can keep busy over
 * links of the endpoint's kind. */
io_threads io_threads_of(const conf *options, int cpus);

#endif
