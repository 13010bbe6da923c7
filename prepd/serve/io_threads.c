/* io_threads.c: chooses how many of ZeroMQ's threads there are and divides them. */
#include "prepd/serve/io_threads.h"

#include "proto/wire/wire.h"

enum {
    /* How many CPUs make pictures as fast as one thread moves them, over each kind of link. They
     * follow from the CPU time that a picture costs a worker and an I/O thread
     * (tests/bench/results/tests-bench-prepd.tsv). */
    CPUS_IPC = 6,
    CPUS_TCP = 4,
    CPUS_CURVE = 3,
    MOST = 8, /* chosen automatically; with more the dispatcher's own thread would be the slowest */
};

static int choose_threads(const conf *options, int cpus)
{
    const int each = wire_is_ipc(options->prepd_endpoint) ? CPUS_IPC
                     : options->prepd_keys[0]             ? CPUS_CURVE
                                                          : CPUS_TCP;
    const int count = (cpus + each - 1) / each;
    return count < 1 ? 1 : count > MOST ? MOST : count;
}

static uint64_t first(int half)
{
    return (UINT64_C(1) << half) - 1;
}

io_threads io_threads_of(const conf *options, int cpus)
{
    const int count =
        options->prepd_io_threads ? (int)options->prepd_io_threads : choose_threads(options, cpus);
    const int half = (count + 1) / 2;
    return (io_threads){
        .n_threads = count, .consumers = first(half), .workers = first(half) << (count - half)};
}
