/* SPDX-License-Identifier: Apache-2.0 */
/* rank_link_sockets.c: see rank_link_sockets.h. */
#include "trainer/parallel/link/rank_link_sockets.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "trainer/parallel/link/tcp.h"

enum { WAKE, LISTENER, FIRST }; /* places in `polled` */

/* ---- opening ---- */

static status resolve_host(const rank_link_place *at, struct addrinfo **out)
{
    char port[16];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    snprintf(port, sizeof port, "%d", at->port);
    int rc = getaddrinfo(at->host, port, &hints, out);
    if (rc != 0)
        return FAIL(ST_CONFIG, "rank 0's address %s cannot be resolved: %s (MASTER_ADDR sets it)",
                    at->host, gai_strerror(rc));
    return ST_OK;
}

static status listen_at(const rank_link_place *at, int backlog, int *out)
{
    struct addrinfo *list;
    int one = 1;
    TRY(resolve_host(at, &list));
    int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    bool bound =
        fd >= 0 && bind(fd, list->ai_addr, list->ai_addrlen) == 0 && listen(fd, backlog) == 0;
    int err = errno;
    freeaddrinfo(list);
    if (bound) {
        *out = fd;
        return ST_OK;
    }
    if (fd >= 0)
        close(fd);
    if (err == EADDRINUSE)
        return FAIL(ST_UNAVAILABLE,
                    "port %d of %s is busy, perhaps with another job: choose another port with "
                    "MASTER_PORT",
                    at->port, at->host);
    return FAIL(ST_CONFIG,
                "rank 0 cannot listen at %s port %d: %s (MASTER_ADDR and MASTER_PORT set them)",
                at->host, at->port, strerror(err));
}

status rank_link_sockets_open(rank_link_sockets *inout, const rank_link_place *at, bool listens,
                              int count)
{
    *inout = (rank_link_sockets){.listener = -1};
    inout->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    inout->list = calloc((size_t)count, sizeof *inout->list);
    inout->polled = calloc((size_t)count + FIRST, sizeof *inout->polled);
    if (inout->wake < 0 || !inout->list || !inout->polled)
        return FAIL(ST_NO_MEMORY, "no memory for the rank link");
    inout->count = count;
    for (int i = 0; i < count; i++)
        inout->list[i].fd = -1;
    return listens ? listen_at(at, count, &inout->listener) : resolve_host(at, &inout->rank_0);
}

void rank_link_sockets_close(rank_link_sockets *sockets)
{
    for (int i = 0; i < sockets->count; i++)
        rank_link_sockets_hang_up(sockets, i);
    if (sockets->listener >= 0)
        close(sockets->listener);
    if (sockets->wake >= 0)
        close(sockets->wake);
    if (sockets->rank_0)
        freeaddrinfo(sockets->rank_0);
    free(sockets->list);
    free(sockets->polled);
}

static int add_socket(rank_link_sockets *sockets, int fd)
{
    for (int i = 0; i < sockets->count; i++)
        if (sockets->list[i].fd < 0) {
            tcp_set_up(fd);
            sockets->list[i] = (rank_link_socket){.fd = fd};
            return i;
        }
    return -1;
}

static bool has_room(const rank_link_sockets *sockets)
{
    for (int i = 0; i < sockets->count; i++)
        if (sockets->list[i].fd < 0)
            return true;
    return false;
}

/* ---- sending ---- */

/* Sends what the connection takes now. */
static void send_kept(rank_link_socket *to)
{
    size_t sent = 0;
    while (sent < to->n_out && !to->error) {
        ssize_t now = send(to->fd, to->out + sent, to->n_out - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (now > 0)
            sent += (size_t)now;
        else if (now < 0 && errno == EAGAIN)
            break;
        else if (now < 0 && errno != EINTR)
            to->error = errno;
    }
    memmove(to->out, to->out + sent, to->n_out - sent);
    to->n_out -= sent;
    if (to->finish && to->n_out == 0)
        shutdown(to->fd, SHUT_WR);
}

void rank_link_sockets_send(rank_link_sockets *sockets, int conn, rank_link_kind kind,
                            const void *bytes, size_t size, bool optional)
{
    rank_link_socket *const to = &sockets->list[conn];
    const size_t whole = to->n_out + CONTROL_HEADER + size;
    if (to->error || (optional && to->n_out > 0))
        return;
    if (whole > to->out_room) {
        uint8_t *more = realloc(to->out, whole);
        if (!more) {
            to->error = ENOMEM;
            return;
        }
        to->out = more;
        to->out_room = whole;
    }
    rank_link_header_put(to->out + to->n_out, kind, size);
    if (size > 0)
        memcpy(to->out + to->n_out + CONTROL_HEADER, bytes, size);
    to->n_out = whole;
    send_kept(to);
}

void rank_link_sockets_finish(rank_link_sockets *sockets, int conn)
{
    rank_link_socket *const to = &sockets->list[conn];
    to->finish = true;
    if (to->n_out == 0)
        shutdown(to->fd, SHUT_WR);
}

void rank_link_sockets_hang_up(rank_link_sockets *sockets, int conn)
{
    rank_link_socket *const gone = &sockets->list[conn];
    if (gone->fd >= 0)
        close(gone->fd);
    free(gone->out);
    *gone = (rank_link_socket){.fd = -1};
}

/* ---- what comes ---- */

void rank_link_sockets_wait(rank_link_sockets *sockets, int64_t until_ns)
{
    struct pollfd *const wait = sockets->polled;
    const int64_t left = until_ns - clock_ns();
    uint64_t woken;
    wait[WAKE] = (struct pollfd){sockets->wake, POLLIN, 0};
    /* poll skips a descriptor of -1; those that find no room wait to be accepted */
    wait[LISTENER] = (struct pollfd){has_room(sockets) ? sockets->listener : -1, POLLIN, 0};
    for (int i = 0; i < sockets->count; i++)
        wait[FIRST + i] = (struct pollfd){
            sockets->list[i].fd, (short)(POLLIN | (sockets->list[i].n_out > 0 ? POLLOUT : 0)), 0};
    if (poll(wait, (nfds_t)sockets->count + FIRST, left > 0 ? (int)(left / 1000000) + 1 : 0) <= 0)
        for (int i = 0; i < sockets->count + FIRST; i++)
            wait[i].revents = 0;
    if (wait[WAKE].revents && read(sockets->wake, &woken, sizeof woken) < 0)
        return; /* it was read already */
    for (int i = 0; i < sockets->count; i++)
        if (wait[FIRST + i].revents & POLLOUT)
            send_kept(&sockets->list[i]);
}

int rank_link_sockets_ready(const rank_link_sockets *sockets, int from)
{
    for (int i = from; i < sockets->count; i++)
        if (sockets->list[i].fd >= 0 &&
            (sockets->polled[FIRST + i].revents & ~POLLOUT || sockets->list[i].error))
            return i;
    return -1;
}

int rank_link_sockets_accept(rank_link_sockets *sockets)
{
    if (!sockets->polled[LISTENER].revents)
        return -1;
    const int fd = accept4(sockets->listener, NULL, NULL, SOCK_CLOEXEC);
    return fd < 0 ? -1 : add_socket(sockets, fd);
}

int rank_link_sockets_reach(rank_link_sockets *sockets, int64_t until_ns)
{
    const int fd = tcp_connect(sockets->rank_0, until_ns);
    return fd < 0 ? -1 : add_socket(sockets, fd);
}

ptrdiff_t rank_link_sockets_read(rank_link_sockets *sockets, int conn, void *out, size_t size)
{
    const rank_link_socket *const from = &sockets->list[conn];
    if (!from->error)
        return recv(from->fd, out, size, MSG_DONTWAIT);
    errno = from->error;
    return -1;
}
