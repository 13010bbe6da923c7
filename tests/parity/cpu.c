/* cpu.c: runs the cases on the CPU: the best build of the ops for this machine and then the plain
 * one, each with 1 and with 3 threads. */
#include "common/conf/conf.h"
#include "tests/parity/parity.h"
#include "trainer/ops/open.h"

static int count_cpu_variants(void)
{
    device *d = NULL;
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &d));
    int n = d->ops == &ops_cpu ? 1 : 2;
    device_close(&d);
    return n;
}

static void open_cpu(int variant, int run, device **out, const ops_table **out_ops)
{
    static const int threads[] = {1, 3};
    device_options o = {.threads = run < 0 ? 0 : threads[run]};
    assert_ok(device_open(BACKEND_CPU, &o, out));
    *out_ops = variant == 0 ? (*out)->ops : &ops_cpu;
}

#ifndef PARITY_SMALL
#define PARITY_SMALL false
#endif
const parity_target parity_here = {.variants = count_cpu_variants,
                                   .runs = 2,
                                   .other = "3 threads than with 1",
                                   .open = open_cpu,
                                   .small = PARITY_SMALL};
