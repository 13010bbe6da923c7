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
#include "proto/client.h"
#include "tests/bench/prepd/turns.h"

typedef struct totals {
    int64_t images, bytes;
} totals;

/* Receives rows until `images` pictures have come. */
static status receive_rows(client *c, wire_msg *m, int64_t images, totals *t)
{
    const int64_t until = t->images + images;
    while (t->images < until) {
        frame head;
        wire_msg_clear(m);
        TRY(client_next_raw(c, m, &head));
        t->images += head.n_images;
        t->bytes += (int64_t)wire_msg_bytes(m);
    }
    return t->images == until ? ST_OK
                              : FAIL(ST_PROTOCOL, "a row goes beyond its epoch of %lld pictures",
                                     (long long)images);
}

int main(int argc, char **argv)
{
    client *c = NULL;
    wire_msg *m = NULL;
    if (argc != 6 && argc != 7)
        must(FAIL(ST_USAGE, "bench_stream ENDPOINT WORKER_PID IMAGES EPOCHS AHEAD_BYTES [KEYS]"));
    const int64_t images = atoll(argv[3]), epochs = atoll(argv[4]);
    const client_options o = {.endpoint = argv[1],
                              .keys = argc == 7 ? argv[6] : NULL,
                              .stream = "train",
                              .ranks = 1,
                              .credit_bytes = atoll(argv[5]),
                              .timeout_ms = 60000};
    must(client_open(&o, &c));
    must(wire_msg_new(&m));
    while (turn_begins()) {
        totals before = {0}, timed = {0};
        must(receive_rows(c, m, images, &before));
        const int64_t wall = clock_ns(), cpu = cpu_of(argv[2]);
        must(receive_rows(c, m, images * epochs, &timed));
        turn_ends(timed.images, clock_ns() - wall, cpu_of(argv[2]) - cpu, timed.bytes);
    }
    wire_msg_free(&m);
    client_close(&c);
    return 0;
}
