/* SPDX-License-Identifier: Apache-2.0 */
/* unit_order.c: see unit_order.h. */
#include "trainer/model/params/unit_order.h"

#include <stdio.h>

/* Names a block or a deepstack merger of the vision tower. */
static void name_within_tower(const model_dims *dims, int unit, char out[UNIT_NAME])
{
    out[0] = '\0';
    for (int i = 0; i < (int)dims->vision.depth; i++)
        if (unit == unit_block(dims, i))
            snprintf(out, UNIT_NAME, "vision block %d", i);
    for (int j = 0; j < dims->vision.n_deepstack; j++)
        if (unit == unit_merger(dims, 1 + j))
            snprintf(out, UNIT_NAME, "deepstack merger %d", j);
}

void unit_name(const model_dims *dims, int unit, char out[UNIT_NAME])
{
    if (unit == unit_head(dims))
        snprintf(out, UNIT_NAME, "head");
    else if (unit == unit_embedding(dims))
        snprintf(out, UNIT_NAME, "embedding");
    else if (unit > unit_embedding(dims))
        snprintf(out, UNIT_NAME, "layer %d", unit - unit_layer(dims, 0));
    else if (unit == unit_patch())
        snprintf(out, UNIT_NAME, "patch embedding");
    else if (unit == unit_merger(dims, 0))
        snprintf(out, UNIT_NAME, "merger");
    else
        name_within_tower(dims, unit, out);
}

void unit_range(const model_dims *dims, int first, int last, char out[UNIT_RANGE])
{
    char begin[UNIT_NAME], end[UNIT_NAME];
    unit_name(dims, first, begin);
    unit_name(dims, last, end);
    if (first == last)
        snprintf(out, UNIT_RANGE, "%s", begin);
    else
        snprintf(out, UNIT_RANGE, "%s to %s", begin, end);
}
