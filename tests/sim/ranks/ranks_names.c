/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_names.c: whom a rank names when it ends badly, and whether that is true.
 *
 * Words name one rank; or the two ends of a link that carried nothing, of which the rank that
 * speaks cannot know which one is cut off; or, on rank 0, itself or else all others. One of the
 * alternatives must be true. Where more can be known, ranks_verdict.c asks for one name. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/ranks/ranks_world.h"

/* Whether this happened to the rank. */
static bool is_struck(const world *all, int rank, fault_kind kind)
{
    for (int i = 0; i < all->n_faults; i++)
        if (all->fault[i].rank == rank && all->fault[i].kind == kind)
            return all->guilty[rank];
    return false;
}

/* Whether this rank is a cause: something happened to it, or, for one that is still joining, it
 * came and has given up before. */
static bool is_cause(const world *all, int rank, bool joining)
{
    return rank >= 0 && rank < all->size &&
           (all->guilty[rank] || (joining && all->rank[rank].ended && !all->rank[rank].well));
}

/* How many ranks of a list like " 1 3" are causes; *out_named: how many it has. */
static int causes_of(const world *all, const char *list, bool joining, int *out_named)
{
    int causes = 0;
    *out_named = 0;
    while (*list == ' ' && list[1] >= '0' && list[1] <= '9') {
        char *end;
        causes += is_cause(all, (int)strtol(list, &end, 10), joining);
        (*out_named)++;
        list = end;
    }
    return causes;
}

/* The number of the first rank that is named from here on; -1: none. *out_after: what follows. */
static int next_named(const char *words, const char **out_after)
{
    for (const char *at = words; (at = strstr(at, "rank ")); at++)
        if (at[5] >= '0' && at[5] <= '9') {
            char *end;
            const int number = (int)strtol(at + 5, &end, 10);
            *out_after = end;
            if (strncmp(end, " at ", 4) != 0) /* "rank 0 at HOST port N: .." is where, not who */
                return number;
        }
    return -1;
}

/* Lists of the ranks that did not come. */
static bool lists_cause(const world *all, const char *words, bool joining)
{
    static const char late[] = "from ranks", *const missing[] = {": ranks", ": rank"};
    int named = 0;
    const char *list = strstr(words, late);
    /* a call names all that have not come, also those that wait for rows, if nobody says that any
     * more */
    if (list && (causes_of(all, list + strlen(late), joining, &named) > 0 || all->guilty[0]))
        return true;
    for (size_t i = 0; i < 2; i++) {
        list = strstr(words, missing[i]);
        if (list && joining && is_struck(all, 0, FAULT_CUT)) /* rank 0 could not see who had come */
            return true;
        if (list && causes_of(all, list + strlen(missing[i]), joining, &named) == named && named)
            return true;
    }
    return false;
}

/* Whether every rank but 0 that is not done is a cause. */
static bool all_others_are(const world *all)
{
    for (int i = 1; i < all->size; i++)
        if (!all->guilty[i] && !all->rank[i].left_well)
            return false;
    return true;
}

/* Whether the words have the two ends of a link, either of which may be the cause. */
static bool tells_two(const char *words)
{
    return strstr(words, "one of the two") || strstr(words, "died, or its connection to");
}

bool names_cause(const world *all, int rank)
{
    const process *at = &all->rank[rank];
    const char *after = at->words;
    if (lists_cause(all, at->words, !at->joined))
        return true;
    const int first = next_named(at->words, &after);
    if (is_cause(all, first, !at->joined))
        return true;
    if (strstr(at->words, "has heard none of the other"))
        return all_others_are(all);
    if (strstr(at->words, "rank 0 at ") ||
        strstr(at->words, "cannot be reached at")) /* by the way from here */
        return is_cause(all, 0, !at->joined) || all->guilty[rank];
    return tells_two(at->words) && is_cause(all, next_named(after, &after), !at->joined);
}

bool names_itself(const world *all, int rank)
{
    return strstr(all->rank[rank].words, ", this one, did nothing for") != NULL;
}

bool names_alone(const world *all, int rank, int culprit)
{
    const char *words = all->rank[rank].words;
    return next_named(words, &words) == culprit && !tells_two(words);
}
