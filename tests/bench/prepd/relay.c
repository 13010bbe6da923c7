/* SPDX-License-Identifier: Apache-2.0 */
/* relay.c: measures the least that passing on rows can cost. One thread reads whole rows from one
 * unix socket and writes them to another, and does nothing else. What the dispatcher takes beyond
 * that is its own cost and libzmq's.
 *
 *
 *   bench_relay ROW_BYTES ROWS SECONDS
 *
 * ROWS buffers are used in turn, as many as the dispatcher holds. The sender and the receiver are
 * processes of their own. At the end it prints one line of JSON. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/bench/prepd/turns.h"

enum { SETTLE_S = 1, PART = 1 << 20 };

/* Reads or writes all count bytes. False if the other side has gone. */
static bool move_bytes(ssize_t (*how)(int, void *, size_t), int fd, uint8_t *bytes, size_t count)
{
    while (count > 0) {
        const ssize_t some = how(fd, bytes, count);
        if (some <= 0 && errno != EINTR)
            return false;
        bytes += some > 0 ? some : 0;
        count -= some > 0 ? (size_t)some : 0;
    }
    return true;
}

static ssize_t send_bytes(int fd, void *bytes, size_t count)
{
    return send(fd, bytes, count, MSG_NOSIGNAL);
}

static ssize_t receive_bytes(int fd, void *bytes, size_t count)
{
    return recv(fd, bytes, count, 0);
}

static void *allocate_room(size_t count)
{
    void *memory = malloc(count);
    if (!memory)
        must(FAIL(ST_NO_MEMORY, "no memory for %zu bytes", count));
    memset(memory, 1, count);
    return memory;
}

/* Starts a process at the other end, which sends the same bytes again and again, or receives and
 * discards them. */
static int neighbour(ssize_t (*how)(int, void *, size_t))
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        must(FAIL(ST_OS, "socketpair: %s", strerror(errno)));
    const pid_t pid = fork();
    if (pid < 0)
        must(FAIL(ST_OS, "fork: %s", strerror(errno)));
    if (pid > 0) {
        close(ends[1]);
        return ends[0];
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    uint8_t *part = allocate_room(PART);
    while (move_bytes(how, ends[1], part, PART))
        ;
    _exit(0);
}

int main(int argc, char **argv)
{
    char self[24];
    if (argc != 4) {
        fprintf(stderr, "usage: bench_relay ROW_BYTES ROWS SECONDS\n");
        return 64;
    }
    const size_t row_bytes = (size_t)atoll(argv[1]);
    const int64_t count = atoll(argv[2]), seconds = atoll(argv[3]);
    uint8_t *rows = allocate_room(row_bytes * (size_t)count);
    const int from = neighbour(send_bytes), to = neighbour(receive_bytes);
    int64_t began = clock_ns(), cpu = 0, done = 0;
    bool settled = false;
    snprintf(self, sizeof(self), "%d", (int)getpid());
    for (int64_t k = 0; !settled || clock_ns() - began < seconds * 1000000000; k++) {
        uint8_t *row = rows + (size_t)(k % count) * row_bytes;
        if (!move_bytes(receive_bytes, from, row, row_bytes) ||
            !move_bytes(send_bytes, to, row, row_bytes))
            must(FAIL(ST_OS, "a neighbour has gone: %s", strerror(errno)));
        done++;
        if (!settled && clock_ns() - began > (int64_t)SETTLE_S * 1000000000) {
            settled = true;
            began = clock_ns();
            cpu = cpu_of(self);
            done = 0;
        }
    }
    printf("{\"rows\":%lld,\"bytes\":%lld,\"wall_ns\":%lld,\"cpu_ns\":%lld}\n", (long long)done,
           (long long)(done * (int64_t)row_bytes), (long long)(clock_ns() - began),
           (long long)(cpu_of(self) - cpu));
    free(rows);
    return 0;
}
