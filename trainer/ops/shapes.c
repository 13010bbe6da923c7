/* shapes.c: the op table of a device of shapes (device/shapes.h). Every op accepts its arguments
 * and does nothing. */
#include "trainer/ops/table.h"

#define OP(name)                                                                                   \
    static status nothing_##name(stream *s, const struct name##_args *a)                           \
    {                                                                                              \
        (void)s;                                                                                   \
        (void)a;                                                                                   \
        return ST_OK;                                                                              \
    }
#include "trainer/ops/ops.def"

const ops_table ops_shapes = {
#define OP(name) .name = nothing_##name,
#include "trainer/ops/ops.def"
};
