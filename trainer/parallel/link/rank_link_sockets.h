/* SPDX-License-Identifier: Apache-2.0 */
/* rank_link_sockets.h: the connections of the rank link, by the numbers that its core knows them
 * by. Nothing here waits, except for the next event: what a connection does not take at once is
 * kept and sent when it can be. For rank_link.c, one thread at a time. */
#ifndef TESSERA_TRAINER_PARALLEL_LINK_RANK_LINK_SOCKETS_H
#define TESSERA_TRAINER_PARALLEL_LINK_RANK_LINK_SOCKETS_H

#include "trainer/parallel/link/rank_link_find.h"

struct addrinfo;
struct pollfd;

typedef struct rank_link_socket {
    int fd;       /* -1: there is no connection */
    int error;    /* errno of a send that failed; 0: none did */
    bool finish;  /* our direction ends once everything is sent */
    uint8_t *out; /* [n_out] not sent yet, in memory of out_room bytes */
    size_t n_out, out_room;
} rank_link_socket;

typedef struct rank_link_sockets {
    rank_link_socket *list; /* [count] */
    int count;
    int listener;            /* of rank 0; -1: none */
    int wake;                /* an eventfd that ends a wait */
    struct pollfd *polled;   /* [count + 2] */
    struct addrinfo *rank_0; /* its addresses; NULL on rank 0 */
} rank_link_sockets;

/* Rank 0 begins to listen; the others find its addresses. ST_UNAVAILABLE if the port is busy,
 * ST_CONFIG if the address is of no use. *inout is all zeros, and is to be closed whatever is
 * returned. */
WARN_UNUSED status rank_link_sockets_open(rank_link_sockets *inout, const rank_link_place *at,
                                          bool listens, int count);
void rank_link_sockets_close(rank_link_sockets *sockets);

/* Waits until until_ns for something to happen, or for a byte in `wake`. */
void rank_link_sockets_wait(rank_link_sockets *sockets, int64_t until_ns);
/* After a wait: the next connection from `from` on at which there is something to read, or that has
 * failed; -1: none. */
int rank_link_sockets_ready(const rank_link_sockets *sockets, int from);
/* After a wait: takes a process that has connected. Returns its number; -1: there is none. */
int rank_link_sockets_accept(rank_link_sockets *sockets);
/* Reaches rank 0 before until_ns, and waits for that. Returns the number of the connection; -1:
 * it was not reached, and errno says why. */
int rank_link_sockets_reach(rank_link_sockets *sockets, int64_t until_ns);

/* Reads what is there. Returns how much; 0: the other end has closed the connection; -1: nothing,
 * or an error in errno, of which EAGAIN is none. */
ptrdiff_t rank_link_sockets_read(rank_link_sockets *sockets, int conn, void *out, size_t size);
/* Sends a whole message. optional: not if bytes of an earlier one are still unsent. A failure is
 * noted in the connection's `error`. */
void rank_link_sockets_send(rank_link_sockets *sockets, int conn, rank_link_kind kind,
                            const void *bytes, size_t size, bool optional);
void rank_link_sockets_finish(rank_link_sockets *sockets, int conn);
void rank_link_sockets_hang_up(rank_link_sockets *sockets, int conn);

#endif
