/* SPDX-License-Identifier: Apache-2.0 */
/* rank_lists.c: see rank_lists.h. */
#include "common/conf/rank_lists.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "common/conf/conf_table.h"

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

/* An entry of the list: ranks, and where their daemon is. */
typedef struct entry {
    rank_range ranks;
    const char *endpoint;
    size_t size;
} entry;

/* Reads the entry at *inout_at, which then points after it and its comma.
 * False if there is none. */
static bool read_entry(const char **inout_at, entry *out)
{
    const char *at = *inout_at;
    entry read;
    if (!rank_range_read(&at, &read.ranks) || *at++ != '=')
        return false;
    at += strspn(at, " ");
    read.endpoint = at;
    read.size = strcspn(at, ", ");
    at += read.size;
    at += strspn(at, " ");
    if (*at && (*at++ != ',' || !*at))
        return false;
    *inout_at = at;
    *out = read;
    return true;
}

/* Whether its endpoint is tcp with a plain host, or ipc with an absolute path. */
static bool is_absolute(const entry *one)
{
    char text[CONF_TEXT_MAX];
    snprintf(text, sizeof text, "%.*s", (int)one->size, one->endpoint);
    if (!conf_is_endpoint(text))
        return false;
    return strncmp(text, "ipc://", 6) == 0 ? strchr("/@", text[6]) != NULL : !strpbrk(text, ";=");
}

/* The first rank that both `one` and an entry before it have; -1: none. */
static int find_twice(const char *text, const entry *one)
{
    entry before;
    for (const char *at = text; read_entry(&at, &before) && before.endpoint != one->endpoint;)
        if (before.ranks.first <= one->ranks.last && one->ranks.first <= before.ranks.last)
            return before.ranks.first > one->ranks.first ? before.ranks.first : one->ranks.first;
    return -1;
}

status rank_endpoints_check(const char *text, const char *key, const char *place)
{
    const char *at = text;
    entry one;
    while (*at) {
        const char *begin = at;
        if (!read_entry(&at, &one))
            return FAIL_IN(ST_CONFIG, place,
                           "%s: \"%.100s\" is not a list of ranks and endpoints; write for example "
                           "0-7=tcp://data0:5555,8-15=tcp://data1:5555",
                           key, begin);
        if (!is_absolute(&one))
            return FAIL_IN(
                ST_CONFIG, place,
                "%s: the ranks from %d on have \"%.*s\", which is neither tcp://HOST:PORT "
                "nor ipc:// with an absolute path",
                key, one.ranks.first, (int)one.size, one.endpoint);
        const int twice = find_twice(text, &one);
        if (twice >= 0)
            return FAIL_IN(ST_CONFIG, place, "%s: rank %d has two endpoints", key, twice);
    }
    return ST_OK;
}

const char *rank_endpoints_find(const char *text, int rank, size_t *out_size)
{
    entry one;
    for (const char *at = text; read_entry(&at, &one);) {
        if (rank < one.ranks.first || rank > one.ranks.last)
            continue;
        *out_size = one.size;
        return one.endpoint;
    }
    return NULL;
}

/* The last rank of the entry that has this rank; -1: none has it. */
static int last_beside(const char *text, int rank)
{
    entry one;
    for (const char *at = text; read_entry(&at, &one);)
        if (one.ranks.first <= rank && rank <= one.ranks.last)
            return one.ranks.last;
    return -1;
}

int rank_endpoints_missing(const char *text, int ranks)
{
    int rank = 0;
    for (int last; rank < ranks && (last = last_beside(text, rank)) >= 0;)
        rank = last + 1;
    return rank < ranks ? rank : ranks;
}
