/* table.h: the op table of a backend and the typed calls, both from ops.def.
 *
 *     TRY(op_gemm(s, &(gemm_args){...}));
 *
 * An empty entry is ST_BAD_DEVICE "cuda has no gemm". All ops queue on s and return; buffers must
 * outlive the work; same input, same bits. */
#ifndef TESSERA_TRAINER_OPS_TABLE_H
#define TESSERA_TRAINER_OPS_TABLE_H

#include "trainer/ops/attention.h"
#include "trainer/ops/gemm.h"
#include "trainer/ops/loss_ops.h"
#include "trainer/ops/norm.h"
#include "trainer/ops/norm_rope.h"
#include "trainer/ops/paced.h"
#include "trainer/ops/peers.h"
#include "trainer/ops/pointwise.h"
#include "trainer/ops/rope.h"
#include "trainer/ops/route.h"
#include "trainer/ops/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ops_table {
#define OP(name) status (*name)(stream * s, const struct name##_args *a);
#include "trainer/ops/ops.def"
} ops_table;

extern const ops_table ops_cpu, ops_cpu_avx2; /* the second where TESSERA_OPS_AVX2 is set */
extern const ops_table ops_shapes;            /* of a device of shapes alone */

/* Name of the first empty entry, or NULL: the table is whole. */
const char *ops_first_missing(const ops_table *t);

#ifndef __cplusplus
#define OP(op)                                                                                     \
    WARN_UNUSED static inline status op_##op(stream *s, const struct op##_args *a)                 \
    {                                                                                              \
        if (!s->ops->op)                                                                           \
            return FAIL(ST_BAD_DEVICE, "%s has no op " #op, s->dev->v->name);                      \
        return s->ops->op(s, a);                                                                   \
    }
#include "trainer/ops/ops.def"
#endif

#ifdef __cplusplus
}
#endif

#endif
