/* tcp.h: bytes between ranks over TCP, before a deadline (clock_ns); INT64_MAX: without one. For
 * the control channel and for rows that ranks hand on; any thread. */
#ifndef TESSERA_TRAINER_PARALLEL_TCP_H
#define TESSERA_TRAINER_PARALLEL_TCP_H

#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* Waits for poll's `what`; false where it did not come. Looks again at least once a second. */
bool tcp_ready(int fd, short what, int64_t deadline_ns);

/* All of size bytes. ST_UNAVAILABLE once the other end is gone, ST_TIMEOUT. */
WARN_UNUSED status tcp_send(int fd, const void *at, size_t size, int64_t deadline_ns);
WARN_UNUSED status tcp_recv(int fd, void *at, size_t size, int64_t deadline_ns);

/* A connection to the first address that answers; -1 with errno. */
int tcp_connect(const struct addrinfo *list, int64_t deadline_ns);
/* Of a new connection: nothing waits to be sent together, no child inherits it. */
void tcp_set_up(int fd);

#endif
