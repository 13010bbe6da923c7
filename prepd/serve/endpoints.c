/* SPDX-License-Identifier: Apache-2.0 */
/* endpoints.c: the three endpoints of the daemon: which addresses they have, and what a peer may make
 * us hold. */
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/proc.h"
#include "prepd/serve/core/state/hello.h"
#include "prepd/serve/core/state/outside.h"
#include "prepd/serve/door.h"
#include "prepd/serve/shell.h"
#include "prepd/serve/core/consumers/core_consumers.h"
#include "proto/wire/wire.h"

/* These limits keep a peer from making the dispatcher's memory grow. A peer that has more under way
 * than its longest message is cut off. What a peer does not take stays in its slots (rows) or is
 * not sent. A peer whose messages are refused again and again is no longer listened to
 * (core/state/outside.h). The limits of consumers are in core/state/hello.c. The largest that a worker
 * sends after it has joined is the rows of its two leases (added below; patches of clips take twice
 * the bytes of a picture's) or what it tells of a text of ten million tokens. */
static const wire_limits worker_limits = {
    .part_bytes = 256 << 20, .unsent = 64, .unread_bytes = 1 << 20, .all_unread_bytes = 4 << 20};
static const wire_limits control_limits = {.only_user = true,
                                           .part_bytes = 1 << 16,
                                           .unsent = 16,
                                           .unread_bytes = 1 << 20,
                                           .all_unread_bytes = 4 << 20};

/* Checks one of the two endpoints that the daemon derives from the user's. With tcp these are the
 * next two ports, which the message must say, since the user wrote neither. */
static status may_bind_beside(const shell *around, const char *whose, const char *beside)
{
    const status st = wire_may_bind(around->net, beside);
    return st == ST_OK || wire_is_ipc(beside)
               ? st
               : status_context(st, "the %s port of %s", whose, around->options->prepd_endpoint);
}

status doors_may_open(shell *around)
{
    const conf *options = around->options;
    around->io = io_threads_of(options, proc_cpus());
    TRY(wire_beside(options->prepd_endpoint, 1, &around->endpoint[DOOR_WORKERS]));
    TRY(wire_beside(options->prepd_endpoint, 2, &around->endpoint[DOOR_CONTROL]));
    TRY(wire_new(&around->net));
    TRY(wire_io_threads(around->net, around->io.n_threads));
    if (options->prepd_keys[0] && !wire_is_ipc(options->prepd_endpoint))
        TRY(wire_serve_keys(around->net, options->prepd_keys));
    TRY(wire_may_bind(around->net, options->prepd_endpoint));
    TRY(may_bind_beside(around, "workers'", around->endpoint[DOOR_WORKERS]));
    return may_bind_beside(around, "control", around->endpoint[DOOR_CONTROL]);
}

status doors_open(shell *around)
{
    wire_limits from_consumer = consumer_limits, from_worker = worker_limits;
    from_consumer.io_threads = around->io.consumers;
    TRY(wire_bind(around->net, around->options->prepd_endpoint, &from_consumer,
                  &around->socket[DOOR_CONSUMERS]));
    from_worker.io_threads = around->io.workers;
    from_worker.part_bytes += 2 * consumer_row_bytes(around->options);
    from_worker.known_bytes = 2 * from_worker.part_bytes;
    TRY(wire_bind(around->net, around->endpoint[DOOR_WORKERS], &from_worker,
                  &around->socket[DOOR_WORKERS]));
    TRY(wire_bind(around->net, around->endpoint[DOOR_CONTROL], &control_limits,
                  &around->socket[DOOR_CONTROL]));
    return wire_reachable(around->endpoint[DOOR_WORKERS], &around->local_endpoint);
}

static void take(void *user, door at, const wire_peer *from, wire_msg *message)
{
    shell *around = (shell *)user;
    dispatch_at(around->core, clock_ns());
    peer_message(around->core, at, from, message);
}

static void refuse_message(void *user, door at, const wire_peer *from, status st)
{
    shell *around = (shell *)user;
    message_refused(around->core, at, from, st);
}

status doors_read(shell *around, door at)
{
    const door_handler to = {take, refuse_message, around};
    return door_read(around->socket[at], at, &around->core->peer_limits, &to);
}

void doors_tell(shell *around)
{
    doors_log_refused(around->net, around->socket, N_DOORS, &around->core->peer_limits);
}

void doors_close(shell *around)
{
    for (int at = 0; at < N_DOORS; at++)
        wire_close(&around->socket[at]);
    wire_free(&around->net);
    free(around->endpoint[DOOR_WORKERS]);
    free(around->endpoint[DOOR_CONTROL]);
    free(around->local_endpoint);
}

enum {
    /* How many CPUs make pictures as fast as one thread moves them, over each kind of link. They
     * follow from the CPU time that a picture costs a worker and an I/O thread
     * (tests/bench/results/tests-bench-prepd.tsv). */
    CPUS_IPC = 6,
    CPUS_TCP = 4,
    CPUS_CURVE = 3,
    MOST = 8, /* chosen automatically; with more the dispatcher's own thread would be the slowest */
};

static int choose_threads(const conf *options, int cpus)
{
    const int each = wire_is_ipc(options->prepd_endpoint) ? CPUS_IPC
                     : options->prepd_keys[0]             ? CPUS_CURVE
                                                          : CPUS_TCP;
    const int count = (cpus + each - 1) / each;
    return count < 1 ? 1 : count > MOST ? MOST : count;
}

static uint64_t first(int half)
{
    return (UINT64_C(1) << half) - 1;
}

io_threads io_threads_of(const conf *options, int cpus)
{
    const int count =
        options->prepd_io_threads ? (int)options->prepd_io_threads : choose_threads(options, cpus);
    const int half = (count + 1) / 2;
    return (io_threads){
        .n_threads = count, .consumers = first(half), .workers = first(half) << (count - half)};
}
