/* SPDX-License-Identifier: Apache-2.0 */
/* peers.h: ops between ranks that reach each other's memory by loads and stores. They send rows of
 * slots to the owners of their experts and back, with counts that no host reads (model/exchange/exchange.h).
 *
 * Each of the P ranks has a window: memory of one size that all ranks can reach, at addresses of
 * their own in base[P]. Each rank owns E / P of the E experts, in order. A rank's slots are sorted
 * by expert: expert e has the slots [offset[e], offset[e+1]).
 *
 * An owner receives its rows in the order (expert, sending rank, slot). Where a slot goes follows
 * from the offsets of all ranks, so a row moves once. The window holds R rows, so the exchange runs
 * in rounds: round j is the rows [j R, (j + 1) R) of that order. A round is needed if it is the
 * first or its number is below rounds[0], which is found on the device; in rounds that are not
 * needed the ops do nothing, except that round_offset becomes 0. */
#ifndef TESSERA_TRAINER_OPS_PEERS_H
#define TESSERA_TRAINER_OPS_PEERS_H

#include <stdbool.h>

#include "trainer/device/backend.h"

typedef struct peer_set {
    void *const *base; /* [size] on the device: each rank's window as this rank addresses it */
    int32_t rank, size;
} peer_set;

/* Writes values [count] int32 into row `rank` of the array [P,
 * count] at byte `at` of every window. */
typedef struct peers_tell_args {
    peer_set peers;
    size_t at;
    int64_t count;
    const int32_t *values;
} peers_tell_args;

enum { MEET_ARRIVE = 1, MEET_WAIT = 2 };

/* What the host tells a meeting that waits, in memory that the device can read too. */
typedef struct peer_watch {
    int64_t longest_ns; /* how long a wait may be, by the clock of the device that waits */
    int32_t stop;       /* not 0: the wait ends without the others, since the job is over */
    int32_t anew;       /* when it changes, the time of a wait begins anew */
} peer_watch;

/* How long a wait may be where no host watches it: in a group of one, which waits for nobody. */
static const int64_t PEERS_ALONE_NS = 1000000000;

/* Makes ranks meet. With MEET_ARRIVE it tells all ranks that what was queued here before is done;
 * with MEET_WAIT it waits until all have said so; with both it is a barrier. `arrived` is the byte
 * in the window of [P] uint32 and `met` that of one more; they start as 0 and nothing else may use
 * them. A wait that is longer than it may be fails with ST_TIMEOUT on the CPU; on a GPU it leaves a
 * record and traps (device/kernel_stuck.h). */
typedef struct peers_meet_args {
    peer_set peers;
    size_t arrived, met;
    int phase; /* MEET_ARRIVE, MEET_WAIT, or both */
    int32_t round;
    const int32_t *rounds;   /* NULL: the meeting belongs to no round and is always needed */
    const peer_watch *watch; /* NULL: no host watches */
} peers_meet_args;

/* Computes, from borders [P, E+1] (the offsets of all ranks), what this rank's exchange needs.
 * Written: place [E], where this rank's first slot of each expert comes in its owner's order; order
 * [E/P + 1], where each of this rank's own experts begins in its own order; rounds [1], as many as
 * the owner with the most rows needs. moved [2]: the rows that come from other ranks, and those
 * that go to other ranks, are added. E <= 1024; an owner has fewer than 2^31 rows. */
typedef struct exchange_plan_args {
    int64_t ranks, experts, rows; /* P, E, R */
    int32_t rank;
    const int32_t *borders;
    int32_t *place, *order, *rounds;
    int64_t *moved;
} exchange_plan_args;

/* Moves the rows of one round. Each slot of mine [slots, width] act that belongs to the round goes
 * to its row of the array [R, width] act at byte `at` of its owner's window or, with `back`, is
 * fetched from there into mine; other slots stay as they are. On the way there round_offset [E/P +
 * 1], if given, becomes the offsets of the round's rows by own expert. */
typedef struct exchange_rows_args {
    peer_set peers;
    size_t at;
    bool back;
    int32_t round;
    int64_t slots, width, experts, rows;
    const int32_t *offset, *place, *order, *rounds;
    void *mine;
    int32_t *round_offset;
} exchange_rows_args;

#endif
