/* SPDX-License-Identifier: Apache-2.0 */
/* cuda.c: runs the cases on a GPU, through libtessera_cuda.so as the trainer loads it. Each case
 * runs twice and must give the same bits. Without a GPU the program says so, and the test is
 * skipped. */
#include "common/conf/conf.h"
#include "tests/parity/parity.h"
#include "trainer/ops/open.h"

static int count_cuda_variants(void)
{
    return 1;
}

static bool present(void)
{
    device *dev = NULL;
    bool found = device_open(BACKEND_CUDA, &(device_options){.deterministic = true}, &dev) == ST_OK;
    device_close(&dev);
    return found;
}

static void open_cuda(int variant, int run, device **out, const ops_table **out_ops)
{
    (void)variant;
    (void)run;
    const device_options how = {.attention = parity_portable ? ATTENTION_PORTABLE : ATTENTION_AUTO,
                                .experts = parity_portable ? EXPERTS_PORTABLE : EXPERTS_AUTO,
                                .deterministic = true};
    assert_ok(device_open(BACKEND_CUDA, &how, out));
    *out_ops = (*out)->ops;
}

const parity_target parity_here = {.variants = count_cuda_variants,
                                   .runs = 2,
                                   .other = "a second run",
                                   .open = open_cuda,
                                   .bad_index = PARITY_DIES,
                                   .present = present};
