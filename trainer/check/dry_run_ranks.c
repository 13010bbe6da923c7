/* dry_run_ranks.c: brings together what each process has found: its part of the owners and of the
 * table. Collectives over host values work on a device without storage as on any other, so a gather
 * is enough. */
#include <stdlib.h>

#include "trainer/check/dry_run_play.h"

static const comm *all_ranks(const session *s)
{
    return mesh_comm(&s->mesh, MESH_WORLD);
}

status dry_ranks_owners(dry *d, const session *s)
{
    const comm *c = all_ranks(s);
    int64_t bytes;
    char *of = dry_owners_bytes(&d->owners, &bytes);
    return comm_host_all_gather(c, (comm_at){"dry run: who stores what", -1}, of + c->rank * bytes,
                                of, bytes);
}

status dry_ranks_checks(dry *d, const session *s)
{
    const comm *c = all_ranks(s);
    dry_checks *of = calloc((size_t)c->size, sizeof *of);
    if (!of)
        return FAIL(ST_NO_MEMORY, "no memory for the tables of %d ranks", c->size);
    status st = comm_host_all_gather(c, (comm_at){"dry run: what was found", -1}, &d->checks, of,
                                     sizeof *of);
    for (int r = 0; r < c->size && st == ST_OK; r++)
        if (r != c->rank)
            dry_checks_add(&d->checks, &of[r]);
    free(of);
    return st;
}
