/* SPDX-License-Identifier: Apache-2.0 */
/* stream.c: measures how fast one worker's rows come over the wire, by a consumer that takes rows
 * and gives credit, but does not unpack them.
 *
 *   bench_stream ENDPOINT WORKER_PID IMAGES EPOCHS AHEAD_BYTES [KEYS]
 *
 * IMAGES is how many distinct pictures an epoch has, each in one row. Rows do not mix epochs, so an
 * epoch ends after every IMAGES pictures. A turn lets one epoch pass, in which the worker gets up
 * to speed, and times the EPOCHS after it. Between turns nothing is taken, so the worker runs out
 * of credit and sleeps. CPU time is that of all threads of the worker, ZeroMQ's included. */
#include "common/base/clock.h"
#include "proto/session/client.h"
#include "tests/bench/prepd/turns.h"

typedef struct totals {
    int64_t images, bytes;
} totals;

/* Receives rows until `images` pictures have come. */
static status receive_rows(client *consumer, wire_msg *message, int64_t images, totals *sums)
{
    const int64_t until = sums->images + images;
    while (sums->images < until) {
        frame head;
        wire_msg_clear(message);
        TRY(client_next_raw(consumer, message, &head));
        sums->images += head.n_images;
        sums->bytes += (int64_t)wire_msg_bytes(message);
    }
    return sums->images == until ? ST_OK
                                 : FAIL(ST_PROTOCOL, "a row goes beyond its epoch of %lld pictures",
                                        (long long)images);
}

int main(int argc, char **argv)
{
    client *consumer = NULL;
    wire_msg *message = NULL;
    if (argc != 6 && argc != 7)
        must(FAIL(ST_USAGE, "bench_stream ENDPOINT WORKER_PID IMAGES EPOCHS AHEAD_BYTES [KEYS]"));
    const int64_t images = atoll(argv[3]), epochs = atoll(argv[4]);
    const client_options options = {.endpoint = argv[1],
                                    .keys = argc == 7 ? argv[6] : NULL,
                                    .stream = "train",
                                    .ranks = 1,
                                    .credit_bytes = atoll(argv[5]),
                                    .timeout_ms = 60000};
    must(client_open(&options, &consumer));
    must(wire_msg_new(&message));
    while (turn_begins()) {
        totals before = {0}, timed = {0};
        must(receive_rows(consumer, message, images, &before));
        const int64_t wall = clock_ns(), cpu = cpu_of(argv[2]);
        must(receive_rows(consumer, message, images * epochs, &timed));
        turn_ends(timed.images, clock_ns() - wall, cpu_of(argv[2]) - cpu, timed.bytes);
    }
    wire_msg_free(&message);
    client_close(&consumer);
    return 0;
}
