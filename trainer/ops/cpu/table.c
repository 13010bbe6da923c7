/* SPDX-License-Identifier: Apache-2.0 */
/* table.c: the op table of one compilation of the CPU ops (cpu_ops.h says why there are
 * several). */
#include "trainer/ops/cpu/cpu_ops.h"

extern const ops_table CPU_TABLE; /* the build defines the name: ops_cpu or ops_cpu_avx2 */

const ops_table CPU_TABLE = {
#define OP(name) .name = CPU_OP(name),
#include "trainer/ops/ops.def"
};
