/* table.c: the op table of one compilation of the CPU ops (see cpu_ops.h). */
#include "trainer/ops/cpu/cpu_ops.h"

extern const ops_table CPU_TABLE; /* the name comes from the build: ops_cpu, ops_cpu_avx2 */

const ops_table CPU_TABLE = {
#define OP(name) .name = CPU_OP(name),
#include "trainer/ops/ops.def"
};
