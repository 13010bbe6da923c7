/* agree.c: implements agree.h: one gather of each rank's code and value; only if a rank is in
 * trouble, a broadcast of its words follows. */
#include "trainer/parallel/agree.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Answers of so many ranks need no memory that may be lacking: that it lacks is often what a rank
 * has to tell the others. */
enum { FEW = 128 };

/* What a rank says: how it fared, and its value. */
typedef struct word {
    int64_t code, count;
} word;

/* The first rank that failed; else the first whose value differs from rank 0's; else -1. */
static int first_trouble(const word *said, int ranks)
{
    for (int rank = 0; rank < ranks; rank++)
        if (said[rank].code != ST_OK)
            return rank;
    for (int rank = 1; rank < ranks; rank++)
        if (said[rank].count != said[0].count)
            return rank;
    return -1;
}

/* Gives all ranks the words of the rank that is in trouble, and fails with them. */
static status tell_trouble(const comm *group, comm_at at, int rank, status code)
{
    char text[STATUS_MESSAGE_MAX] = "";
    const status_note why = *status_last();
    if (group->rank == rank)
        snprintf(text, sizeof text, "%s", status_text());
    TRY(comm_host_broadcast(group, at, text, sizeof text, rank));
    if (group->rank != rank)
        return FAIL(code, "rank %d: %.900s", rank, text);
    status_set(&why);
    return code;
}

status comm_agree(const comm *group, comm_at at, status mine, int64_t value)
{
    if (group->size == 1)
        return mine;
    const word own = {mine, value};
    const status_note why = *status_last();
    word few[FEW], *said = group->size <= FEW ? few : calloc((size_t)group->size, sizeof *said);
    if (!said)
        return FAIL(ST_NO_MEMORY, "no memory for the answers of %d ranks", group->size);
    status st = comm_host_all_gather(group, at, &own, said, sizeof own);
    const int trouble = st == ST_OK ? first_trouble(said, group->size) : -1;
    const word first = trouble < 0 ? own : said[0], other = trouble < 0 ? own : said[trouble];
    if (said != few)
        free(said);
    if (st != ST_OK || trouble < 0)
        return st;
    if (other.code == ST_OK)
        return FAIL(ST_PROTOCOL, "%s: rank %d has %" PRId64 " where rank 0 has %" PRId64, at.what,
                    trouble, other.count, first.count);
    status_set(&why);
    return tell_trouble(group, at, trouble, (status)other.code);
}
