/* SPDX-License-Identifier: Apache-2.0 */
/* tcp.c: implements tcp.h. Every call is first tried without blocking, and waits in poll(2) only if
 * it moved nothing. */
#include "trainer/parallel/link/tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"

enum { LOOK_MS = 1000 };

bool tcp_ready(int fd, short what, int64_t deadline_ns)
{
    int64_t left_ms = (deadline_ns - clock_ns()) / 1000000 + 1;
    struct pollfd wait = {fd, what, 0};
    return poll(&wait, 1, left_ms < 0 ? 0 : left_ms < LOOK_MS ? (int)left_ms : LOOK_MS) > 0;
}

/* After a call that moved nothing, waits a while. ST_OK: the caller tries again. */
static status wait_again(int fd, short what, int64_t deadline_ns, const char *late)
{
    if (errno != EAGAIN && errno != EINTR)
        return FAIL(ST_UNAVAILABLE, "the connection is lost: %s", strerror(errno));
    if (clock_ns() > deadline_ns)
        return FAIL(ST_TIMEOUT, "%s", late);
    tcp_ready(fd, what, deadline_ns);
    return ST_OK;
}

status tcp_send(int fd, const void *from, size_t size, int64_t deadline_ns)
{
    const char *at = from;
    while (size > 0) {
        ssize_t sent = send(fd, at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0)
            TRY(wait_again(fd, POLLOUT, deadline_ns, "the other end accepts no bytes"));
        if (sent > 0) {
            at += sent;
            size -= (size_t)sent;
        }
    }
    return ST_OK;
}

status tcp_recv(int fd, void *to, size_t size, int64_t deadline_ns)
{
    char *at = to;
    while (size > 0) {
        ssize_t got = recv(fd, at, size, MSG_DONTWAIT);
        if (got == 0)
            return FAIL(ST_UNAVAILABLE, "the other end has closed the connection");
        if (got < 0)
            TRY(wait_again(fd, POLLIN, deadline_ns, "the other end does not answer"));
        if (got > 0) {
            at += got;
            size -= (size_t)got;
        }
    }
    return ST_OK;
}

int tcp_connect(const struct addrinfo *list, int64_t deadline_ns)
{
    for (const struct addrinfo *address = list; address; address = address->ai_next) {
        int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        int err = 0;
        socklen_t size = sizeof err;
        if (fd < 0)
            continue;
        if (connect(fd, address->ai_addr, address->ai_addrlen) != 0)
            err = errno;
        while (err == EINPROGRESS) {
            if (tcp_ready(fd, POLLOUT, deadline_ns))
                getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &size);
            else if (clock_ns() > deadline_ns)
                err = ETIMEDOUT;
        }
        if (err == 0)
            return fd;
        close(fd);
        errno = err;
    }
    return -1;
}

void tcp_set_up(int fd)
{
    int one = 1;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}
