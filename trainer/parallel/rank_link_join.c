/* rank_link_join.c: see rank_link_join.h.
 *
 *   other rank                        rank 0
 *   connect, retried until it works   accept
 *   HELLO: who it is, its options  -> compared with rank 0's own
 *                                  <- REFUSE: why, and the connection ends
 *                                  <- WELCOME: the engine's id, when all ranks have come */
#include "trainer/parallel/rank_link_join.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "common/base/words.h"
#include "trainer/parallel/tcp.h"

/* HELLO_NS: how long a process that has connected may take to say who it is. RETRY_NS: between two
 * attempts to connect. */
static const int64_t HELLO_NS = INT64_C(2) * 1000 * 1000 * 1000;
enum { RETRY_NS = 100 * 1000 * 1000, NAMED = 512 };

/* ---- frames ---- */

status rank_link_send(int fd, rank_link_kind kind, const void *bytes, size_t size,
                      int64_t deadline_ns)
{
    uint8_t header[CONTROL_HEADER];
    rank_link_header_put(header, kind, size);
    TRY(tcp_send(fd, header, sizeof header, deadline_ns));
    return tcp_send(fd, bytes, size, deadline_ns);
}

/* *out: the payload in heap memory, which the caller frees, with a zero after it. */
static status receive_frame(int fd, int64_t deadline_ns, rank_link_kind *out_kind, uint8_t **out,
                            size_t *out_size)
{
    uint8_t header[CONTROL_HEADER];
    TRY(tcp_recv(fd, header, sizeof header, deadline_ns));
    TRY(rank_link_header_get(header, out_kind, out_size));
    uint8_t *bytes = calloc(*out_size + 1, 1);
    if (!bytes)
        return FAIL(ST_NO_MEMORY, "no memory for a message of %zu bytes", *out_size);
    status st = tcp_recv(fd, bytes, *out_size, deadline_ns);
    if (st != ST_OK)
        free(bytes);
    else
        *out = bytes;
    return st;
}

void rank_link_refuse(int fd, const char *why)
{
    size_t length = strlen(why);
    int64_t deadline = clock_ns() + HELLO_NS;
    if (rank_link_send(fd, CONTROL_REFUSE, why,
                       length < CONTROL_TEXT_MAX ? length : CONTROL_TEXT_MAX, deadline) == ST_OK) {
        uint8_t rest[256]; /* closing with bytes unread could destroy the reason on its way */
        shutdown(fd, SHUT_WR);
        while (clock_ns() < deadline && tcp_ready(fd, POLLIN, deadline) &&
               recv(fd, rest, sizeof rest, MSG_DONTWAIT) > 0)
            ;
    } else {
        status_clear();
    }
    close(fd);
}

static status resolve_host(const rank_link_place *at, struct addrinfo **out)
{
    char port[16];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    snprintf(port, sizeof port, "%d", at->port);
    int rc = getaddrinfo(at->host, port, &hints, out);
    if (rc != 0)
        return FAIL(ST_CONFIG,
                    "rank 0's address %s cannot be resolved: %s (it is set by MASTER_ADDR or "
                    "comm.address)",
                    at->host, gai_strerror(rc));
    return ST_OK;
}

static void peer_set(rank_link_peer *peer, int fd, int rank, int pid, const char *host)
{
    memset(peer, 0, sizeof *peer);
    peer->fd = fd;
    peer->rank = rank;
    peer->pid = pid;
    peer->heard_ns = clock_ns();
    snprintf(peer->host, sizeof peer->host, "%s", host);
    snprintf(peer->place, sizeof peer->place, "starting");
}

/* ---- rank 0 ---- */

static status listen_at(const rank_link_place *at, int backlog, int *out)
{
    struct addrinfo *list;
    int one = 1;
    TRY(resolve_host(at, &list));
    int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
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
                    "MASTER_PORT or comm.port",
                    at->port, at->host);
    return FAIL(ST_CONFIG,
                "rank 0 cannot listen at %s port %d: %s (MASTER_ADDR and MASTER_PORT set them)",
                at->host, at->port, strerror(err));
}

/* ST_CONFIG if the other rank does not fit this job, which then cannot run. */
static status check_hello(const rank_link_hello *me, const rank_link_hello *other)
{
    char difference[1024];
    if (other->size != me->size)
        return FAIL(ST_CONFIG, "rank %u on %s was started as one of %u ranks, rank 0 on %s of %u",
                    other->rank, other->host, other->size, me->host, me->size);
    if (strcmp(other->version, me->version) != 0)
        return FAIL(ST_CONFIG,
                    "rank %u on %s is %s, rank 0 on %s is %s: all ranks must run the same build",
                    other->rank, other->host, other->version, me->host, me->version);
    if (rank_link_options_differ(me->options, other->options, difference, sizeof difference))
        return FAIL(ST_CONFIG, "rank %u on %s has other options than rank 0 on %s: %s", other->rank,
                    other->host, me->host, difference);
    return ST_OK;
}

/* Reads who has connected, and takes over fd. Returns ST_OK also for a process that does not belong
 * to this job and was refused; ST_CONFIG for a rank that does belong to it but does not fit. */
static status greet_rank(int fd, const rank_link_hello *me, rank_link_peer *peers, int *inout_here)
{
    rank_link_kind kind;
    rank_link_hello greeting;
    uint8_t *bytes = NULL;
    size_t size;
    char why[512];
    status st = receive_frame(fd, clock_ns() + HELLO_NS, &kind, &bytes, &size);
    if (st == ST_OK)
        st = kind == CONTROL_HELLO ? rank_link_hello_get(span_of(bytes, size), &greeting)
                                   : FAIL(ST_PROTOCOL, "it did not say which rank it is");
    if (st != ST_OK) {
        log_warn("a process that connected to rank 0 is refused: %s", status_text());
        snprintf(why, sizeof why, "%s", status_text());
        rank_link_refuse(fd, why);
        status_clear();
        free(bytes);
        return ST_OK;
    }
    st = check_hello(me, &greeting);
    if (st != ST_OK) {
        snprintf(why, sizeof why, "%s", status_text());
        rank_link_refuse(fd, why);
    } else if (greeting.rank == 0 || greeting.rank >= me->size ||
               peers[greeting.rank - 1].fd >= 0) {
        snprintf(why, sizeof why,
                 "rank %u has connected already: are two jobs using the same port?", greeting.rank);
        log_warn("rank %u on %s (pid %u) is refused: %s", greeting.rank, greeting.host,
                 greeting.pid, why);
        rank_link_refuse(fd, why);
    } else {
        peer_set(&peers[greeting.rank - 1], fd, (int)greeting.rank, (int)greeting.pid,
                 greeting.host);
        (*inout_here)++;
    }
    free(bytes);
    return st;
}

static status ranks_missing(const rank_link_place *at, const rank_link_peer *peers, int count,
                            double timeout_s)
{
    char names[NAMED] = "";
    size_t used = 0;
    int missing = 0;
    for (int i = 0; i < count; i++) {
        if (peers[i].fd >= 0)
            continue;
        missing++;
        if (used + 16 < sizeof names) /* a number cut short would name another rank */
            used = words_add(names, sizeof names, used, " %d", peers[i].rank);
    }
    return FAIL(ST_TIMEOUT, "%d of %d ranks did not come to %s port %d within %g s: rank%s%s",
                missing, count + 1, at->host, at->port, timeout_s, missing == 1 ? "" : "s", names);
}

static void send_all_away(rank_link_peer *peers, int count)
{
    char why[1024];
    snprintf(why, sizeof why, "%s", status_text());
    for (int i = 0; i < count; i++)
        if (peers[i].fd >= 0) {
            rank_link_refuse(peers[i].fd, why);
            peers[i].fd = -1;
        }
}

status rank_link_gather(const rank_link_place *at, const rank_link_hello *me, const void *id,
                        double timeout_s, int *out_listener, rank_link_peer *out)
{
    int listener, count = (int)me->size - 1, here = 0;
    int64_t deadline = clock_ns() + (int64_t)(timeout_s * 1e9);
    status st = ST_OK;
    for (int i = 0; i < count; i++)
        out[i] = (rank_link_peer){.fd = -1, .rank = i + 1};
    TRY(listen_at(at, count + 8, &listener));
    while (here < count && st == ST_OK) {
        int fd = tcp_ready(listener, POLLIN, deadline) ? accept4(listener, NULL, NULL, SOCK_CLOEXEC)
                                                       : -1;
        if (fd >= 0) {
            tcp_set_up(fd);
            st = greet_rank(fd, me, out, &here);
        } else if (clock_ns() > deadline) {
            st = ranks_missing(at, out, count, timeout_s);
        }
    }
    for (int i = 0; i < count && st == ST_OK; i++) {
        out[i].heard_ns = clock_ns();
        st =
            rank_link_send(out[i].fd, CONTROL_WELCOME, id, CONTROL_ID_BYTES, clock_ns() + HELLO_NS);
        if (st != ST_OK)
            st = status_context(st, "rank %d of %s", out[i].rank, out[i].host);
    }
    if (st == ST_OK) {
        *out_listener = listener;
        return ST_OK;
    }
    send_all_away(out, count);
    close(listener);
    return st;
}

/* ---- the others ---- */

static status connect_until(const rank_link_place *at, double timeout_s, int64_t deadline, int *out)
{
    struct addrinfo *list;
    TRY(resolve_host(at, &list));
    int fd = tcp_connect(list, deadline);
    while (fd < 0 && clock_ns() < deadline) {
        nanosleep(&(struct timespec){.tv_nsec = RETRY_NS}, NULL);
        fd = tcp_connect(list, deadline);
    }
    int err = errno;
    freeaddrinfo(list);
    if (fd < 0)
        return FAIL(ST_TIMEOUT, "rank 0 cannot be reached at %s port %d within %g s: %s", at->host,
                    at->port, timeout_s, strerror(err));
    tcp_set_up(fd);
    *out = fd;
    return ST_OK;
}

/* Receives rank 0's answer. */
static status be_welcomed(int fd, int64_t deadline, void *out_id)
{
    rank_link_kind kind;
    uint8_t *bytes = NULL;
    size_t size;
    TRY(receive_frame(fd, deadline, &kind, &bytes, &size));
    status st = ST_OK;
    if (kind == CONTROL_REFUSE)
        st = FAIL(ST_CONFIG, "it refused this rank: %s", (const char *)bytes);
    else if (kind != CONTROL_WELCOME || size != CONTROL_ID_BYTES)
        st = FAIL(ST_PROTOCOL, "it answered with a message of kind %d", (int)kind);
    else
        memcpy(out_id, bytes, size);
    free(bytes);
    return st;
}

status rank_link_come(const rank_link_place *at, const rank_link_hello *me, double timeout_s,
                      void *out_id, rank_link_peer *out)
{
    int64_t deadline = clock_ns() + (int64_t)(timeout_s * 1e9);
    uint8_t *hello = NULL;
    size_t size;
    int fd;
    TRY(rank_link_hello_put(me, &hello, &size));
    status st = connect_until(at, timeout_s, deadline, &fd);
    if (st == ST_OK) {
        st = rank_link_send(fd, CONTROL_HELLO, hello, size, deadline);
        if (st == ST_OK) /* rank 0 answers only when all have come, or its own time is up */
            st = be_welcomed(fd, deadline + HELLO_NS, out_id);
        if (st == ST_OK)
            peer_set(out, fd, 0, 0, at->host);
        else
            close(fd);
        if (st != ST_OK)
            st = status_context(st, "rank 0 at %s port %d", at->host, at->port);
    }
    free(hello);
    return st;
}
