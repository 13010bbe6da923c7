/* dry_run_ranks.c: brings together what each process has found: its part of the owners and of the
 * table. Collectives over host values work on a device without storage as on any other, so a gather
 * is enough. */
#include <stdlib.h>

#include "trainer/check/dry_run_play.h"

static const comm *all_ranks(const session *run)
{
    return mesh_comm(&run->mesh, MESH_WORLD);
}

status dry_ranks_owners(dry *run, const session *opened)
{
    const comm *group = all_ranks(opened);
    int64_t bytes;
    char *of = dry_owners_bytes(&run->owners, &bytes);
    return comm_host_all_gather(group, (comm_at){"dry run: who stores what", -1},
                                of + group->rank * bytes, of, bytes);
}

status dry_ranks_checks(dry *run, const session *opened)
{
    const comm *group = all_ranks(opened);
    dry_checks *of = calloc((size_t)group->size, sizeof *of);
    if (!of)
        return FAIL(ST_NO_MEMORY, "no memory for the tables of %d ranks", group->size);
    status st = comm_host_all_gather(group, (comm_at){"dry run: what was found", -1}, &run->checks,
                                     of, sizeof *of);
    for (int i = 0; i < group->size && st == ST_OK; i++)
        if (i != group->rank)
            dry_checks_add(&run->checks, &of[i]);
    free(of);
    return st;
}
