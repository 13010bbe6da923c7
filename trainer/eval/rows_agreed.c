/* rows_agreed.c: the agreement of ranks on a held-out row, as rows_agreed.h describes it. */
#include "trainer/eval/rows_agreed.h"

#include "trainer/parallel/agree.h"
#include "trainer/run/stop.h"

status agree_rows(const session *run, status mine, int64_t count)
{
    const comm *all = mesh_comm(&run->mesh, MESH_WORLD);
    status st = comm_agree(all, (comm_at){"agree on held-out rows", -1}, mine, count);
    if (st == ST_STOPPED && all->size > 1)
        stop_agree();
    return st;
}
