/* io_threads.c: chooses how many of ZeroMQ's threads there are and divides them. */
#include "prepd/serve/io_threads.h"

#include "proto/wire.h"

enum {
    /* How many CPUs make pictures as fast as one thread moves them, over each kind of link. They
     * follow from the CPU time that a picture costs a worker and an I/O thread
     * (tests/bench/results/tests-bench-prepd.tsv). */
    CPUS_IPC = 6,
    CPUS_TCP = 4,
    CPUS_CURVE = 3,
    MOST = 8, /* chosen automatically; with more the dispatcher's own thread would be the slowest */
};

static int choose_threads(const conf *c, int cpus)
{
    const int each = wire_is_ipc(c->prepd_endpoint) ? CPUS_IPC
                     : c->prepd_keys[0]             ? CPUS_CURVE
                                                    : CPUS_TCP;
    const int n = (cpus + each - 1) / each;
    return n < 1 ? 1 : n > MOST ? MOST : n;
}

static uint64_t first(int n)
{
    return (UINT64_C(1) << n) - 1;
}

io_threads io_threads_of(const conf *c, int cpus)
{
    const int n = c->prepd_io_threads ? (int)c->prepd_io_threads : choose_threads(c, cpus);
    const int half = (n + 1) / 2;
    return (io_threads){
        .n_threads = n, .consumers = first(half), .workers = first(half) << (n - half)};
}
