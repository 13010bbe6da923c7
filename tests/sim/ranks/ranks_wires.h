/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_wires.h: the connections between the ranks of a simulated job. */
#ifndef TESSERA_TESTS_SIM_RANKS_WIRES_H
#define TESSERA_TESTS_SIM_RANKS_WIRES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct world world;

/* Bytes on their way; of size 0: the end of the direction, by reset if `reset`. */
typedef struct segment {
    struct segment *next;
    int64_t at_ns;
    bool reset;
    size_t size;
    uint8_t bytes[];
} segment;

/* One end: of a process (rank), or of a stranger (rank -1). conn: its core's number; -1: not
 * accepted yet. */
typedef struct wire_end {
    int rank, conn;
    bool open;              /* the process has it */
    bool finished;          /* it has ended its direction */
    segment *first, **last; /* on their way to this end */
    int64_t busy_until;     /* when the last of them arrives */
    size_t bytes;           /* of them */
} wire_end;

typedef struct tcp_wire {
    wire_end end[2]; /* of whoever connected; of rank 0 */
    bool used;
} tcp_wire;

/* A connection from a rank, or a stranger (-1), to rank 0.
 * Returns its number; -1: nobody listens. */
int wires_connect(world *all, int rank);
void wires_send(world *all, int wire, int end, const void *bytes, size_t size);
void wires_finish(world *all, int wire, int end);
void wires_close(world *all, int wire, int end);
/* Both ends find the connection broken. */
void wires_reset(world *all, int wire);
size_t wires_unsent(const world *all, int wire, int end);
/* Gives an end what has arrived, as far as its process runs and hears. */
void wires_deliver(world *all, int wire, int end);
/* The same for all wires: something was mended. */
void wires_deliver_all(world *all);
void wires_free(world *all);

#endif
