/* quarantine_union.c: see quarantine_union.h. The ranks gather how many ids each has to add, and
 * then the ids in pieces of one size. */
#include "trainer/checkpoint/quarantine_union.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/parallel/agree.h"

enum { PIECE = 512 }; /* ids of a rank in a round */
static const comm_at AT = {"unite bad samples", -1};

/* Adds the ids of one round: those of each rank which are not the padding at its end. */
static status add_round(const comm *group, const int64_t *left, const int64_t *pieces,
                        bad_samples *inout)
{
    for (int rank = 0; rank < group->size; rank++)
        for (int64_t i = 0; i < PIECE && i < left[rank]; i++)
            TRY(bad_samples_add(inout, pieces[rank * PIECE + i], NULL, NULL));
    return ST_OK;
}

/* left [ranks]: how many ids of each rank are still to come. */
static status gather_ids(const comm *group, const bad_samples *news, int64_t *left,
                         bad_samples *inout)
{
    int64_t most = 0, own[PIECE];
    status st = ST_OK;
    int64_t *pieces = (int64_t *)malloc((size_t)group->size * sizeof own);
    st = comm_agree(group, AT, pieces ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for bad samples"), 0);
    for (int rank = 0; rank < group->size; rank++)
        most = left[rank] > most ? left[rank] : most;
    for (int64_t first = 0; st == ST_OK && first < most; first += PIECE) {
        const int64_t count = news->n - first;
        memset(own, 0, sizeof own);
        if (count > 0)
            memcpy(own, news->id + first, (size_t)(count < PIECE ? count : PIECE) * sizeof *own);
        st = comm_host_all_gather(group, AT, own, pieces, sizeof own);
        if (st == ST_OK)
            st = add_round(group, left, pieces, inout);
        for (int rank = 0; rank < group->size; rank++)
            left[rank] -= PIECE;
    }
    free(pieces);
    return st;
}

/* The ids of `known` that are not in `all`. */
static status find_news(const bad_samples *known, const bad_samples *all, bad_samples *out)
{
    int64_t at = 0;
    for (int64_t i = 0; i < known->n; i++) {
        while (at < all->n && all->id[at] < known->id[i])
            at++;
        if (at == all->n || all->id[at] != known->id[i])
            TRY(bad_samples_add(out, known->id[i], NULL, NULL));
    }
    return ST_OK;
}

status quarantine_unite(const comm *group, const bad_samples *known, bad_samples *inout_all)
{
    bad_samples news = {0};
    int64_t *left = (int64_t *)calloc((size_t)group->size, sizeof *left);
    status st = left ? find_news(known, inout_all, &news)
                     : FAIL(ST_NO_MEMORY, "no memory for the lists of %d ranks", group->size);
    st = comm_agree(group, AT, st, 0);
    if (st == ST_OK)
        st = comm_host_all_gather(group, AT, &news.n, left, sizeof *left);
    for (int rank = 0; st == ST_OK && rank < group->size; rank++)
        if (left[rank] > 0) {
            st = gather_ids(group, &news, left, inout_all);
            break;
        }
    if (st == ST_OK && known->index[0])
        memcpy(inout_all->index, known->index, sizeof known->index);
    bad_samples_done(&news);
    free(left);
    return st;
}
