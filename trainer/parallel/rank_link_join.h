/* rank_link_join.h: the ranks of a job find each other: rank 0 listens, the others come, all within
 * a set time, and refuse each other by name where they do not belong together. */
#ifndef TESSERA_TRAINER_PARALLEL_RANK_LINK_JOIN_H
#define TESSERA_TRAINER_PARALLEL_RANK_LINK_JOIN_H

#include <stdbool.h>

#include "trainer/parallel/rank_link_frame.h"

enum { CONTROL_HOST_MAX = 128 };

/* Somebody on the other end. */
typedef struct rank_link_peer {
    int fd; /* -1: gone */
    int rank, pid;
    char host[CONTROL_HOST_MAX];
    int64_t heard_ns;                 /* clock_ns() of its last word */
    char place[CONTROL_TEXT_MAX + 1]; /* where it said it is */
    bool waits;                       /* it said that it, or one it speaks for, waits */
    size_t n_in;
    uint8_t in[CONTROL_HEADER + CONTROL_TEXT_MAX];
} rank_link_peer;

typedef struct rank_link_place {
    char host[CONTROL_HOST_MAX]; /* of rank 0, as the others reach it */
    int port;
} rank_link_place;

/* The way to rank 0: MASTER_ADDR and MASTER_PORT; else of Slurm's first node, or this machine where
 * all ranks are on it. address and port ("" and 0: none) are the options that go before them. */
WARN_UNUSED status rank_link_find(const char *address, int64_t port, bool one_machine,
                                  rank_link_place *out);

/* Rank 0: all others in `out` [size - 1], by rank; id [CONTROL_ID_BYTES] goes to all. The listener
 * stays open, to refuse who comes late. ST_TIMEOUT names who did not come. */
WARN_UNUSED status rank_link_gather(const rank_link_place *at, const rank_link_hello *me,
                                    const void *id, double timeout_s, int *out_listener,
                                    rank_link_peer *out);
/* Another rank: the way to rank 0 in out[0]. */
WARN_UNUSED status rank_link_come(const rank_link_place *at, const rank_link_hello *me,
                                  double timeout_s, void *out_id, rank_link_peer *out);

/* One whole frame, before deadline_ns. */
WARN_UNUSED status rank_link_send(int fd, rank_link_kind kind, const void *bytes, size_t size,
                                  int64_t deadline_ns);
/* Answers a newcomer whose turn is over. */
void rank_link_refuse(int fd, const char *why);

#endif
