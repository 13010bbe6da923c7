/* table.c: finds the first op that a table lacks. */
#include "trainer/ops/table.h"

const char *ops_first_missing(const ops_table *t)
{
#define OP(name)                                                                                   \
    if (!t->name)                                                                                  \
        return #name;
#include "trainer/ops/ops.def"
    return NULL;
}
