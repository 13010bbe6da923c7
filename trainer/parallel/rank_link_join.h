/* rank_link_join.h: how the ranks of a job find each other. Rank 0 listens and the others connect,
 * all within a set time. Rank 0 refuses, with the reason, ranks that do not belong to its job:
 * those with another number of ranks, another build, or other options. */
#ifndef TESSERA_TRAINER_PARALLEL_RANK_LINK_JOIN_H
#define TESSERA_TRAINER_PARALLEL_RANK_LINK_JOIN_H

#include <stdbool.h>

#include "trainer/parallel/rank_link_frame.h"

enum { CONTROL_HOST_MAX = 128 };

/* The rank at the other end of a connection. */
typedef struct rank_link_peer {
    int fd; /* -1: the connection is closed */
    int rank, pid;
    char host[CONTROL_HOST_MAX];
    int64_t heard_ns;                 /* clock_ns() when it was last heard */
    char place[CONTROL_TEXT_MAX + 1]; /* where it said it is */
    bool waits;  /* it waits for something, or rank 0 says that another rank does */
    size_t n_in; /* bytes received that are not yet a whole message */
    uint8_t in[CONTROL_HEADER + CONTROL_TEXT_MAX];
} rank_link_peer;

typedef struct rank_link_place {
    char host[CONTROL_HOST_MAX]; /* of rank 0, as the others reach it */
    int port;
} rank_link_place;

/* Finds where rank 0 listens. The host is `address` (comm.address) unless that is "", else
 * MASTER_ADDR, else loopback if all ranks are on one machine, else the first node of a Slurm step.
 * The port is `port` (comm.port) unless that is 0, else MASTER_PORT, else a number made from the id
 * of the mpirun or Slurm job. ST_CONFIG if ranks are on several machines and the machine of rank 0
 * is not known. */
WARN_UNUSED status rank_link_find(const char *address, int64_t port, bool one_machine,
                                  rank_link_place *out);

/* Rank 0: waits until all others have come, and gives each of them id [CONTROL_ID_BYTES]. out [size
 * - 1]: the others, in the order of their ranks. *out_listener stays open so that ranks of another
 * job can be refused. ST_TIMEOUT names the ranks that did not come; ST_CONFIG names a rank that
 * does not belong here, and all others are told of it. */
WARN_UNUSED status rank_link_gather(const rank_link_place *at, const rank_link_hello *me,
                                    const void *id, double timeout_s, int *out_listener,
                                    rank_link_peer *out);
/* The other ranks: connects to rank 0, which becomes out[0], and receives the id. */
WARN_UNUSED status rank_link_come(const rank_link_place *at, const rank_link_hello *me,
                                  double timeout_s, void *out_id, rank_link_peer *out);

/* Sends one whole message before deadline_ns, by clock_ns(). */
WARN_UNUSED status rank_link_send(int fd, rank_link_kind kind, const void *bytes, size_t size,
                                  int64_t deadline_ns);
/* Tells whoever connected that it is refused, and closes fd. */
void rank_link_refuse(int fd, const char *why);

#endif
