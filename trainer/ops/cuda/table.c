/* SPDX-License-Identifier: Apache-2.0 */
/* table.c: the op table of the CUDA backend: cuda_NAME for each op that this build has. The
 * functions are weak symbols, so an entry without a definition is NULL: a call of it answers "cuda
 * has no op X", and training.backend auto chooses the CPU. The harness of tests/simt links the same
 * file with the ops that run there. */
#include "trainer/ops/table.h"

#define OP(name)                                                                                   \
    extern status cuda_##name(stream *s, const struct name##_args *a) __attribute__((weak));
#include "trainer/ops/ops.def"

extern const ops_table ops_cuda;
const ops_table ops_cuda = {
#define OP(name) .name = cuda_##name,
#include "trainer/ops/ops.def"
};
