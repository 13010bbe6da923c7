/* decisions_union.c: see decisions_union.h. Each rank writes what the others do not know yet as a
 * text. The ranks gather the sizes of their texts, and then the texts in pieces of one size, so
 * that a long one of a single rank does not need its size from every rank. */
#include "trainer/checkpoint/decisions_union.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/parallel/agree.h"

enum { PIECE = 4096 };
static const comm_at AT = {"unite quarantine decisions", -1};

/* What the ranks tell each other. */
typedef struct telling {
    char *own;     /* this rank's text; NULL: it has nothing new */
    int64_t *size; /* [ranks] of each text, its final zero included; 0: there is none */
    int64_t most;  /* the largest of them */
    char **text;   /* [ranks] NULL where there is none */
    char *pieces;  /* [ranks * PIECE] of one round */
} telling;

static void free_telling(telling *all, int ranks)
{
    for (int rank = 0; all->text && rank < ranks; rank++)
        free(all->text[rank]);
    free(all->own);
    free(all->size);
    free(all->text);
    free(all->pieces);
}

/* Writes this rank's text and makes room for the sizes. */
static status begin_telling(const comm *group, const decisions *known, const decisions *heard,
                            telling *out)
{
    out->size = (int64_t *)calloc((size_t)group->size, sizeof *out->size);
    if (!out->size)
        return FAIL(ST_NO_MEMORY, "no memory for the sizes of %d lists", group->size);
    return decisions_write_news(known, heard, &out->own);
}

static status gather_sizes(const comm *group, telling *all)
{
    const int64_t own = all->own ? (int64_t)strlen(all->own) + 1 : 0;
    TRY(comm_host_all_gather(group, AT, &own, all->size, sizeof own));
    for (int rank = 0; rank < group->size; rank++)
        all->most = all->size[rank] > all->most ? all->size[rank] : all->most;
    return ST_OK;
}

static status make_room(const comm *group, telling *all)
{
    bool fits;
    all->text = (char **)calloc((size_t)group->size, sizeof *all->text);
    all->pieces = (char *)malloc((size_t)group->size * PIECE);
    fits = all->text && all->pieces;
    for (int rank = 0; fits && rank < group->size; rank++)
        if (all->size[rank] > 0)
            fits = (all->text[rank] = (char *)malloc((size_t)all->size[rank])) != NULL;
    return fits ? ST_OK
                : FAIL(ST_NO_MEMORY, "no memory for the quarantine decisions of %d ranks",
                       group->size);
}

static int64_t piece_of(int64_t size, int64_t first)
{
    const int64_t left = size - first;
    return left < 0 ? 0 : left < PIECE ? left : PIECE;
}

static status gather_texts(const comm *group, telling *all)
{
    for (int64_t first = 0; first < all->most; first += PIECE) {
        char own[PIECE] = {0};
        const int64_t mine = piece_of(all->size[group->rank], first);
        if (mine > 0)
            memcpy(own, all->own + first, (size_t)mine);
        TRY(comm_host_all_gather(group, AT, own, all->pieces, PIECE));
        for (int rank = 0; rank < group->size; rank++) {
            const int64_t count = piece_of(all->size[rank], first);
            if (count > 0)
                memcpy(all->text[rank] + first, all->pieces + (int64_t)rank * PIECE, (size_t)count);
        }
    }
    return ST_OK;
}

status decisions_unite(const comm *group, status mine, const decisions *heard,
                       decisions *inout_known)
{
    telling all = {0};
    status st = mine;
    if (st == ST_OK)
        st = begin_telling(group, inout_known, heard, &all);
    st = comm_agree(group, AT, st, 0);
    if (st == ST_OK)
        st = gather_sizes(group, &all);
    if (st == ST_OK && all.most > 0) {
        st = comm_agree(group, AT, make_room(group, &all), all.most);
        if (st == ST_OK)
            st = gather_texts(group, &all);
        for (int rank = 0; st == ST_OK && rank < group->size; rank++)
            if (all.text[rank])
                st = decisions_read(inout_known, all.text[rank], DECISION_ROW_UNKNOWN,
                                    "the decisions of another rank");
    }
    free_telling(&all, group->size);
    return st;
}
