/* recorded.h: serves a recording in the way the daemon serves a stream: HELLO and WELCOME, credit,
 * rows in order, END, over the same sockets, but without a data set, without workers, and without
 * decoding anything. It is for trainers that are to be fed live where there are no pictures
 * (`tests/gpu feed`), and for a stream that several runs share. */
#ifndef TESSERA_PREPD_SERVE_RECORDED_H
#define TESSERA_PREPD_SERVE_RECORDED_H

#include "common/base/status.h"

typedef struct recorded_options {
    const char *path, *endpoint;
    const char *keys;     /* folder of CURVE keys; "" without keys */
    const char *ranks;    /* those that are served (common/conf/rank_ranges.h) */
    int io_threads;       /* of ZeroMQ */
    int64_t buffer_bytes; /* most that is under way to all consumers; one row each always may be */
} recorded_options;

/* Serves until SIGTERM or SIGINT. A consumer gets the rows again and again from the first one on. A
 * cursor is found by its row's number in the stream that was recorded, in whatever round it was
 * made; start_row counts from the first recorded row. */
WARN_UNUSED status recorded_serve(const recorded_options *options);

#endif
