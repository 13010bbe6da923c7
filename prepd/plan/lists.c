/* lists.c: linked lists by key, and two levels of bits to find the next list that is not empty. */
#include "prepd/plan/lists.h"

void lists_add(lists *l, int64_t key, int64_t node)
{
    l->next[node] = l->head[key];
    l->head[key] = node;
    l->bits[key >> 6] |= UINT64_C(1) << (key & 63);
    l->some[key >> 12] |= UINT64_C(1) << (key >> 6 & 63);
}

void lists_remove(lists *l, int64_t key, int64_t before, int64_t node)
{
    if (before >= 0)
        l->next[before] = l->next[node];
    else
        l->head[key] = l->next[node];
    if (l->head[key] >= 0)
        return;
    l->bits[key >> 6] &= ~(UINT64_C(1) << (key & 63));
    if (!l->bits[key >> 6])
        l->some[key >> 12] &= ~(UINT64_C(1) << (key >> 6 & 63));
}

int64_t lists_next(const lists *l, int64_t from)
{
    if (from >= l->n_keys)
        return -1;
    uint64_t word = l->bits[from >> 6] & (~UINT64_C(0) << (from & 63));
    if (word)
        return (from & ~INT64_C(63)) + __builtin_ctzll(word);
    int64_t next_word = (from >> 6) + 1;
    int64_t at = next_word >> 6;
    if (at >= l->n_some)
        return -1;
    uint64_t some = l->some[at] & (~UINT64_C(0) << (next_word & 63));
    while (!some && ++at < l->n_some)
        some = l->some[at];
    if (!some)
        return -1;
    int64_t found = at * 64 + __builtin_ctzll(some);
    return found * 64 + __builtin_ctzll(l->bits[found]);
}

status lists_init(lists *l, int64_t n_keys, int64_t n_nodes, arena *a)
{
    l->n_keys = n_keys;
    l->n_some = (n_keys >> 12) + 1;
    TRY(arena_calloc(a, (size_t)n_keys, sizeof *l->head, (void **)&l->head));
    TRY(arena_calloc(a, (size_t)n_nodes + 1, sizeof *l->next, (void **)&l->next));
    TRY(arena_calloc(a, (size_t)(n_keys >> 6) + 1, sizeof *l->bits, (void **)&l->bits));
    TRY(arena_calloc(a, (size_t)l->n_some, sizeof *l->some, (void **)&l->some));
    for (int64_t k = 0; k < n_keys; k++)
        l->head[k] = -1;
    return ST_OK;
}
