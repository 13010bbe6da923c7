/* SPDX-License-Identifier: Apache-2.0 */
/* cpu.c: runs the cases on the CPU: the best build of the ops for this machine and then the plain
 * one, each with 1 and with 3 threads. */
#include "common/conf/conf.h"
#include "tests/parity/parity.h"
#include "trainer/ops/open.h"

static int count_cpu_variants(void)
{
    device *dev = NULL;
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &dev));
    int count = dev->ops == &ops_cpu ? 1 : 2;
    device_close(&dev);
    return count;
}

static void open_cpu(int variant, int run, device **out, const ops_table **out_ops)
{
    static const int threads[] = {1, 3};
    device_options options = {.threads = run < 0 ? 0 : threads[run]};
    assert_ok(device_open(BACKEND_CPU, &options, out));
    *out_ops = variant == 0 ? (*out)->ops : &ops_cpu;
}

const parity_target parity_here = {.variants = count_cpu_variants,
                                   .runs = 2,
                                   .other = "3 threads than with 1",
                                   .open = open_cpu,
                                   .small = true};
