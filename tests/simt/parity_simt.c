/* SPDX-License-Identifier: Apache-2.0 */
/* parity_simt.c: runs the cases of tests/parity on the CUDA backend in the harness, in bf16 and
 * float, under every schedule. */
#include "tests/parity/parity.h"
#include "tests/simt/device.h"
#include "tests/simt/simt.h"

static int count_simt_variants(void)
{
    return 1;
}

static void open_simt(int variant, int run, device **out, const ops_table **out_ops)
{
    (void)variant;
    simt_schedule(run < 0 ? SIMT_FORWARD : run, harness_seed());
    assert_ok(backend_simt()->open(&(device_options){0}, out));
    *out_ops = (*out)->ops;
}

/* Whether there is no kernel for the op, because a GPU leaves it to a library. */
static bool lacks(const char *op)
{
    extern const ops_table ops_cuda;
#define OP(name)                                                                                   \
    if (strcmp(op, #name) == 0)                                                                    \
        return !ops_cuda.name;
#include "trainer/ops/ops.def"
    return true;
}

const parity_target parity_here = {.variants = count_simt_variants,
                                   .runs = SIMT_SCHEDULES,
                                   .other = "another schedule",
                                   .open = open_simt,
                                   .small = true,
                                   .bad_index = PARITY_STOPS,
                                   .lacks = lacks};
