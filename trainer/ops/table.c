/* table.c: finds the first op that a table lacks. */
#include "trainer/ops/table.h"

const char *ops_first_missing(const ops_table *table)
{
#define OP(name)                                                                                   \
    if (!table->name)                                                                              \
        return #name;
#include "trainer/ops/ops.def"
    return NULL;
}
