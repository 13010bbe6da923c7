#include "prepd/serve/io_threads.h"

#include "proto/wire.h"

enum {
    /* CPUs on which pictures are made as fast as one of these threads moves them, by what both cost
     * (tests/bench/prepd/README.md, The dispatcher). */
    CPUS_IPC = 6,
    CPUS_TCP = 4,
    CPUS_CURVE = 3,
    MOST = 8, /* chosen here: beyond it the dispatcher's own thread is the slower one */
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
    return (io_threads){.n = n, .consumers = first(half), .workers = first(half) << (n - half)};
}
