/* rows_agreed.c: the agreement of ranks on a held-out row, as rows_agreed.h describes it. */
#include "trainer/eval/rows_agreed.h"

#include "trainer/parallel/agree.h"
#include "trainer/run/stop.h"

status agree_rows(const session *s, status mine, int64_t n)
{
    const comm *all = mesh_comm(&s->mesh, MESH_WORLD);
    status st = comm_agree(all, (comm_at){"agree on held-out rows", -1}, mine, n);
    if (st == ST_STOPPED && all->size > 1)
        stop_agree();
    return st;
}
