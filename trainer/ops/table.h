/* SPDX-License-Identifier: Apache-2.0 */
/* table.h: the op table of a backend, and the typed call of each op. Both are generated from
 * ops.def.
 *
 *   TRY(op_gemm(s, &(gemm_args){...}));
 *
 * What holds for every op: it queues its work on the stream and returns, so the buffers must
 * outlive the work; the args struct itself is read before the call returns. It allocates nothing
 * (scratch belongs to the stream). The same input gives the same bits. Sizes of 0 are legal and do
 * nothing unless the contract says otherwise. Arrays are row-major; [rows, n] gives an array's
 * shape. `act` and `acc` are the backend's types (device/backend.h).
 *
 * A table entry may be empty; calling it is BAD_DEVICE "cuda has no op gemm". */
#ifndef TESSERA_TRAINER_OPS_TABLE_H
#define TESSERA_TRAINER_OPS_TABLE_H

#include "trainer/ops/attention.h"
#include "trainer/ops/norm.h"
#include "trainer/ops/gemm.h"
#include "trainer/ops/loss_ops.h"
#include "trainer/ops/peers.h"
#include "trainer/ops/pointwise.h"
#include "trainer/ops/rope.h"
#include "trainer/ops/route.h"
#include "trainer/ops/rows.h"
#include "trainer/ops/weight_blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ops_table {
#define OP(name) status (*name)(stream * queue, const struct name##_args *args);
#include "trainer/ops/ops.def"
} ops_table;

/* ops_cpu_avx2 exists where TESSERA_OPS_AVX2 is defined. */
extern const ops_table ops_cpu, ops_cpu_avx2;

/* The name of the table's first empty entry, or NULL if every op is there. */
const char *ops_first_missing(const ops_table *table);

#ifndef __cplusplus
#define OP(op)                                                                                     \
    WARN_UNUSED static inline status op_##op(stream *s, const struct op##_args *a)                 \
    {                                                                                              \
        if (!s->ops->op)                                                                           \
            return FAIL(ST_BAD_DEVICE, "%s has no op " #op, s->dev->backend->name);                \
        return s->ops->op(s, a);                                                                   \
    }
#include "trainer/ops/ops.def"
#endif

#ifdef __cplusplus
}
#endif

#endif
