/* SPDX-License-Identifier: Apache-2.0 */
/* tcp.h: moves bytes between ranks over TCP before a deadline, for the rank link and for rows
 * passed from rank to rank. Deadlines are times of clock_ns(); INT64_MAX means none. Any thread may
 * call. */
#ifndef TESSERA_TRAINER_PARALLEL_LINK_TCP_H
#define TESSERA_TRAINER_PARALLEL_LINK_TCP_H

#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* Waits for the events `what` of poll(2), at most a second at a time. Returns false if they did not
 * come. */
bool tcp_ready(int fd, short what, int64_t deadline_ns);

/* Sends or receives exactly `size` bytes. ST_UNAVAILABLE once the other end is gone; ST_TIMEOUT at
 * the deadline. */
WARN_UNUSED status tcp_send(int fd, const void *from, size_t size, int64_t deadline_ns);
WARN_UNUSED status tcp_recv(int fd, void *to, size_t size, int64_t deadline_ns);

/* Connects to the first address of the list that answers. Returns the descriptor, non-blocking, or
 * -1 with errno set. */
int tcp_connect(const struct addrinfo *list, int64_t deadline_ns);
/* Sets up a new connection: bytes are sent at once (TCP_NODELAY), and child processes do not
 * inherit it. */
void tcp_set_up(int fd);

#endif
