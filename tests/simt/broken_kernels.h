/* SPDX-License-Identifier: Apache-2.0 */
/* broken_kernels.h: runs the kernels of broken_kernels.cu. Letters: x what a kernel reads or
 * changes; y what it writes; n how many. */
#ifndef TESSERA_TESTS_SIMT_BROKEN_KERNELS_H
#define TESSERA_TESTS_SIMT_BROKEN_KERNELS_H

#include "trainer/device/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    FAULT_NONE, /* x [n] int, n a multiple of 64: each 64 reversed */
    FAULT_NO_BARRIER,
    FAULT_SPLIT_BARRIER,
    FAULT_EARLY_RETURN,
    FAULT_MISSING_LANE,
    FAULT_OUTSIDE_MASK,
    FAULT_BEYOND_SHARED,
    FAULT_TOO_MANY_THREADS,
    FAULT_NONE_SUMS,    /* x [6, 64] float; the first row is read */
    FAULT_NONE_BF16,    /* x [n] float to y [n] bf16 */
    FAULT_NONE_PRODUCT, /* x: A [16, 16], B [16, 8] bf16 to y = A B [16, 8] float */
    FAULT_NO_WAIT,      /* the same product, but without waiting for its copies */
    FAULT_NONE_FUSED,   /* x [2] float to y [2] float: x0 x0 - x1 as the compiler likes it, and with
                           a product that is rounded */
    FAULT_NONE_FAST     /* x [n] float to y [2, n] float: 2^x, and 1 / x, as fast as it goes */
};

WARN_UNUSED status fault_run(stream *queue, int fault, void *x, void *y, int64_t n);

#ifdef __cplusplus
}
#endif

#endif
