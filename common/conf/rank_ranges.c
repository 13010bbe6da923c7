/* rank_ranges.c: see rank_ranges.h. */
#include "common/conf/rank_ranges.h"

#include <ctype.h>
#include <string.h>

static void skip_spaces(const char **inout_at)
{
    *inout_at += strspn(*inout_at, " ");
}

static bool read_rank(const char **inout_at, int *out)
{
    const char *at = *inout_at;
    int rank = 0;
    if (!isdigit((unsigned char)*at))
        return false;
    for (; isdigit((unsigned char)*at); at++) {
        rank = rank * 10 + (*at - '0');
        if (rank >= MAX_RANKS)
            return false;
    }
    *inout_at = at;
    *out = rank;
    return true;
}

bool rank_range_read(const char **inout_at, rank_range *out)
{
    const char *at = *inout_at;
    rank_range read;
    skip_spaces(&at);
    if (!read_rank(&at, &read.first))
        return false;
    read.last = read.first;
    skip_spaces(&at);
    if (*at == '-') {
        at++;
        skip_spaces(&at);
        if (!read_rank(&at, &read.last))
            return false;
        skip_spaces(&at);
    }
    if (read.last < read.first)
        return false;
    *inout_at = at;
    *out = read;
    return true;
}

status rank_ranges_check(const char *text, const char *key, const char *place)
{
    const char *at = text;
    rank_range range;
    if (!*text)
        return ST_OK;
    while (rank_range_read(&at, &range)) {
        if (!*at)
            return ST_OK;
        if (*at++ != ',')
            break;
    }
    return FAIL_IN(ST_CONFIG, place,
                   "%s: \"%.100s\" is not a list of ranks; write for example 0-7, or 0-7,16, with "
                   "ranks below %d",
                   key, text, MAX_RANKS);
}

bool rank_ranges_have(const char *text, int rank)
{
    rank_range range;
    bool found = !*text;
    for (const char *at = text; !found && rank_range_read(&at, &range); at += *at == ',')
        found = range.first <= rank && rank <= range.last;
    return found;
}
