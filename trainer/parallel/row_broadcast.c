/* SPDX-License-Identifier: Apache-2.0 */
/* row_broadcast.c: implements row_broadcast.h. Over the engine, the ranks first tell each other on
 * which machine they are, then at which port each source listens, and its secret. Then every peer
 * connects to its source. From then on there are only bytes. */
#include "trainer/parallel/row_broadcast.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "common/base/span.h"
#include "trainer/parallel/link/tcp.h"

enum { SECRET_BYTES = 16, HOST_BYTES = 128, MACHINE_BYTES = 128, RETRY_NS = 50 * 1000 * 1000 };
/* How long a process that has connected may take to say which peer it is. */
static const int64_t HELLO_NS = INT64_C(2) * 1000 * 1000 * 1000;

struct row_broadcast {
    int count, me; /* how many members there are; this rank's place among them, 0: the source */
    int *member;   /* [count] their ranks in the job */
    int *fd;       /* [count] on the source one for each peer, on a peer only fd[0]; -1: none */
    bool *gone;    /* [count] peers that can no longer be reached */
    atomic_bool interrupted;
};

/* What every rank tells all others. */
typedef struct card {
    char host[HOST_BYTES];       /* the name of its machine */
    char machine[MACHINE_BYTES]; /* equal texts mean the same loopback device (name_machine) */
    int32_t port;                /* where a source listens; 0: this rank is not a source */
    uint8_t secret[SECRET_BYTES];
} card;

/* What a peer sends when it has connected. */
typedef struct hello {
    uint8_t secret[SECRET_BYTES];
    uint8_t member[4];
} hello;

/* Names the machine by its boot id and network namespace. Its host name is not enough: containers
 * of one machine may have separate loopback devices, and several machines may share a name. */
static void name_machine(char *out, size_t size)
{
    char boot[64] = "", net[48] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file) {
        if (!fgets(boot, sizeof boot, file))
            boot[0] = 0;
        fclose(file);
    }
    ssize_t length = readlink("/proc/self/ns/net", net, sizeof net - 1);
    net[length > 0 ? length : 0] = 0;
    snprintf(out, size, "%.*s %s", (int)strcspn(boot, "\n"), boot, net);
}

static bool one_machine(const row_broadcast *feed, const card *cards)
{
    for (int i = 1; i < feed->count; i++)
        if (strcmp(cards[feed->member[i]].machine, cards[feed->member[0]].machine) != 0)
            return false;
    return true;
}

/* Listens at a free port, which becomes *out_port. */
static status listen_here(bool loopback, int backlog, int *out, int32_t *out_port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) != 0 || listen(fd, backlog) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0) {
        status st = FAIL(ST_OS,
                         "no port can be opened for the ranks that share this rank's rows: "
                         "%s",
                         strerror(errno));
        if (fd >= 0)
            close(fd);
        return st;
    }
    *out = fd;
    *out_port = ntohs(address.sin_port);
    return ST_OK;
}

/* ---- the source ---- */

/* Reads which peer has connected, and takes over fd. A process that does not know the secret is
 * refused. */
static void greet_member(row_broadcast *feed, int fd, const card *mine, int *inout_here)
{
    hello greeting;
    if (tcp_recv(fd, &greeting, sizeof greeting, clock_ns() + HELLO_NS) == ST_OK &&
        memcmp(greeting.secret, mine->secret, sizeof greeting.secret) == 0) {
        uint32_t member = load_u32(greeting.member);
        if (member > 0 && member < (uint32_t)feed->count && feed->fd[member] < 0) {
            tcp_set_up(fd);
            feed->fd[member] = fd;
            (*inout_here)++;
            return;
        }
    }
    log_warn("a process that connected to receive rows is refused: it is not a rank of this job");
    status_clear();
    close(fd);
}

static status gather_members(row_broadcast *feed, int listener, const card *mine,
                             int64_t deadline_ns)
{
    int here = 1;
    while (here < feed->count) {
        int fd = tcp_ready(listener, POLLIN, deadline_ns)
                     ? accept4(listener, NULL, NULL, SOCK_CLOEXEC)
                     : -1;
        if (fd >= 0)
            greet_member(feed, fd, mine, &here);
        else if (clock_ns() > deadline_ns)
            return FAIL(ST_TIMEOUT, "%d of %d ranks did not connect to receive their rows",
                        feed->count - here, feed->count - 1);
    }
    return ST_OK;
}

/* ---- the peers ---- */

static status come(row_broadcast *feed, const card *source, bool loopback, int64_t deadline_ns)
{
    const char *host = loopback ? "127.0.0.1" : source->host;
    struct addrinfo *list, hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    char port[16];
    hello greeting;
    snprintf(port, sizeof port, "%d", source->port);
    int rc = getaddrinfo(host, port, &hints, &list);
    if (rc != 0)
        return FAIL(ST_CONFIG,
                    "the address %s, where rank %d receives rows, cannot be resolved: %s", host,
                    feed->member[0], gai_strerror(rc));
    int fd = tcp_connect(list, deadline_ns);
    while (fd < 0 && clock_ns() < deadline_ns) {
        nanosleep(&(struct timespec){.tv_nsec = RETRY_NS}, NULL);
        fd = tcp_connect(list, deadline_ns);
    }
    int err = errno;
    freeaddrinfo(list);
    if (fd < 0)
        return FAIL(ST_TIMEOUT,
                    "rank %d, which receives the rows, cannot be reached at %s port %d: %s",
                    feed->member[0], host, source->port, strerror(err));
    tcp_set_up(fd);
    feed->fd[0] = fd;
    memcpy(greeting.secret, source->secret, sizeof greeting.secret);
    store_u32(greeting.member, (uint32_t)feed->me);
    return tcp_send(fd, &greeting, sizeof greeting, deadline_ns);
}

/* ---- opening and closing ---- */

static status row_broadcast_new(const mesh *ranks, row_broadcast **out)
{
    const size_t world = (size_t)ranks->layout.world;
    row_broadcast *feed = calloc(1, sizeof *feed);
    if (feed) {
        feed->member = calloc(world, sizeof *feed->member);
        feed->fd = calloc(world, sizeof *feed->fd);
        feed->gone = calloc(world, sizeof *feed->gone);
    }
    if (!feed || !feed->member || !feed->fd || !feed->gone) {
        row_broadcast_close(&feed);
        return FAIL(ST_NO_MEMORY, "no memory to share rows among ranks");
    }
    feed->count = mesh_feed_members(&ranks->layout, ranks->rank, feed->member);
    while (feed->member[feed->me] != ranks->rank)
        feed->me++;
    for (size_t i = 0; i < world; i++)
        feed->fd[i] = -1;
    *out = feed;
    return ST_OK;
}

/* Gathers the cards of all ranks. cards [world]. It is called twice: for the machines, then for the
 * ports, since a source needs to know the machines to decide on which address it listens. */
static status exchange_cards(const mesh *ranks, const card *mine, card *cards)
{
    return comm_host_all_gather(mesh_comm(ranks, MESH_WORLD),
                                (comm_at){"find the source of rows", -1}, mine, cards,
                                (int64_t)sizeof *mine);
}

static status open_source(row_broadcast *feed, const card *cards, int *out_listener, card *mine)
{
    if (getrandom(mine->secret, sizeof mine->secret, 0) != (ssize_t)sizeof mine->secret)
        return FAIL(ST_OS, "the system gives no random bytes: %s", strerror(errno));
    return listen_here(one_machine(feed, cards), feed->count, out_listener, &mine->port);
}

static status meet_members(row_broadcast *feed, const mesh *ranks, double timeout_s, card *cards)
{
    card mine = {0};
    int listener = -1;
    int64_t deadline = clock_ns() + (int64_t)(timeout_s * 1e9);
    if (gethostname(mine.host, sizeof mine.host - 1) != 0)
        return FAIL(ST_OS, "gethostname: %s", strerror(errno));
    name_machine(mine.machine, sizeof mine.machine);
    TRY(exchange_cards(ranks, &mine, cards));
    status st = feed->me == 0 ? open_source(feed, cards, &listener, &mine) : ST_OK;
    if (st == ST_OK)
        st = exchange_cards(ranks, &mine, cards);
    if (st == ST_OK)
        st = feed->me == 0
                 ? gather_members(feed, listener, &mine, deadline)
                 : come(feed, &cards[feed->member[0]], one_machine(feed, cards), deadline);
    if (listener >= 0)
        close(listener);
    return st;
}

status row_broadcast_open(const mesh *ranks, double timeout_s, row_broadcast **out)
{
    row_broadcast *feed = NULL;
    *out = NULL;
    if (layout_consumers(&ranks->layout) == ranks->layout.world)
        return ST_OK;
    TRY(row_broadcast_new(ranks, &feed));
    card *cards = calloc((size_t)ranks->layout.world, sizeof *cards);
    status st = cards ? meet_members(feed, ranks, timeout_s, cards)
                      : FAIL(ST_NO_MEMORY, "no memory for %" PRId64 " ranks", ranks->layout.world);
    free(cards);
    if (st != ST_OK)
        row_broadcast_close(&feed);
    *out = feed;
    return st;
}

void row_broadcast_close(row_broadcast **held)
{
    row_broadcast *feed = *held;
    if (!feed)
        return;
    for (int i = 0; i < feed->count; i++)
        if (feed->fd[i] >= 0)
            close(feed->fd[i]);
    free(feed->member);
    free(feed->fd);
    free(feed->gone);
    free(feed);
    *held = NULL;
}

bool row_broadcast_is_source(const row_broadcast *rows)
{
    return rows->me == 0;
}

int row_broadcast_source(const row_broadcast *rows)
{
    return rows->member[0];
}

static status interrupted(void)
{
    return FAIL(ST_STOPPED, "interrupted while rows were shared among ranks");
}

status row_broadcast_send(row_broadcast *rows, const void *bytes, size_t size)
{
    for (int i = 1; i < rows->count; i++) {
        if (rows->gone[i])
            continue;
        if (tcp_send(rows->fd[i], bytes, size, INT64_MAX) != ST_OK) {
            status_clear();
            rows->gone[i] = true;
        }
    }
    return atomic_load(&rows->interrupted) ? interrupted() : ST_OK;
}

status row_broadcast_recv(row_broadcast *rows, void *bytes, size_t size)
{
    status st = tcp_recv(rows->fd[0], bytes, size, INT64_MAX);
    if (atomic_load(&rows->interrupted))
        return interrupted();
    if (st != ST_OK)
        st = status_context(st, "rank %d, which receives this rank's rows", rows->member[0]);
    return st;
}

/* Only shuts the sockets down. Closing them here would free their descriptors' numbers for other
 * files while a thread may still use them. */
void row_broadcast_interrupt(row_broadcast *rows)
{
    atomic_store(&rows->interrupted, true);
    for (int i = 0; i < rows->count; i++)
        if (rows->fd[i] >= 0)
            shutdown(rows->fd[i], SHUT_RDWR);
}
