/* peers.h: ranks that reach each other's memory by load and store: rows of slots to the owners of
 * their experts and back, with counts that no host reads (model/exchange.h).
 *
 * Every rank has a window, memory of one size that all P ranks reach at addresses of their own:
 * base [P] on the device. E experts, E / P of them each rank's own, in order; a rank's slots are
 * sorted by expert, offset [E+1]. An owner takes its rows in the order (expert, rank that sends,
 * slot); round j is the rows [j R, (j + 1) R) of that order. So where a slot goes follows from all
 * ranks' offsets, and no row is moved twice.
 *
 * peers_tell: values [count] int32 become row `rank` of [P, count] at byte `at` of every window.
 * peers_meet: with ARRIVE tells all ranks that what was queued before is done; with WAIT waits
 * until all have; both together are a barrier. arrived: byte of [P] uint32 in the window, met: of
 * one more; zero at first, nobody else's. *stop other than 0 (host memory that the device reads):
 * goes on without the others. Rounds that nobody needs have no meeting. exchange_plan: from borders
 * [P, E+1], everybody's offsets: place [E], the place of this rank's first slot of each expert in
 * its owner's order; order [E/P + 1], where own experts begin in one's own; rounds [1], as many as
 * the owner with the most rows needs. moved [2] int64: rows that come from others and go to others
 * are added. E <= 1024; an owner's rows below 2^31. exchange_rows: slots mine [slots, width] act
 * that belong to the round go to row [R, width] act at byte `at` of their owner's window, or come
 * back from there into mine; the others stay. On the way there round_offset [E/P + 1], where given,
 * becomes the round's rows by own expert.
 *
 * A round is needed if it is the first or below rounds[0]; the ops do nothing in others, but for
 * round_offset, which is zero. */
#ifndef TESSERA_TRAINER_OPS_PEERS_H
#define TESSERA_TRAINER_OPS_PEERS_H

#include <stdbool.h>

#include "trainer/device/backend.h"

typedef struct peer_set {
    void *const *base; /* device [size] */
    int32_t rank, size;
} peer_set;

typedef struct peers_tell_args {
    peer_set p;
    size_t at;
    int64_t count;
    const int32_t *values;
} peers_tell_args;

enum { MEET_ARRIVE = 1, MEET_WAIT = 2 };

typedef struct peers_meet_args {
    peer_set p;
    size_t arrived, met;
    int phase; /* MEET_ARRIVE, MEET_WAIT or both */
    int32_t round;
    const int32_t *rounds; /* NULL: of no round, always needed */
    const int32_t *stop;   /* NULL: never */
} peers_meet_args;

typedef struct exchange_plan_args {
    int64_t ranks, experts, rows; /* P, E, R */
    int32_t rank;
    const int32_t *borders;
    int32_t *place, *order, *rounds;
    int64_t *moved;
} exchange_plan_args;

typedef struct exchange_rows_args {
    peer_set p;
    size_t at;
    bool back;
    int32_t round;
    int64_t slots, width, experts, rows;
    const int32_t *offset, *place, *order, *rounds;
    void *mine;
    int32_t *round_offset;
} exchange_rows_args;

#endif
