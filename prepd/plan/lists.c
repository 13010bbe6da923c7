/* lists.c: linked lists by key, and two levels of bits to find the next list that is not empty. */
#include "prepd/plan/lists.h"

void lists_add(lists *all, int64_t key, int64_t node)
{
    all->next[node] = all->head[key];
    all->head[key] = node;
    all->bits[key >> 6] |= UINT64_C(1) << (key & 63);
    all->some[key >> 12] |= UINT64_C(1) << (key >> 6 & 63);
}

void lists_remove(lists *all, int64_t key, int64_t before, int64_t node)
{
    if (before >= 0)
        all->next[before] = all->next[node];
    else
        all->head[key] = all->next[node];
    if (all->head[key] >= 0)
        return;
    all->bits[key >> 6] &= ~(UINT64_C(1) << (key & 63));
    if (!all->bits[key >> 6])
        all->some[key >> 12] &= ~(UINT64_C(1) << (key >> 6 & 63));
}

int64_t lists_next(const lists *all, int64_t from)
{
    if (from >= all->n_keys)
        return -1;
    uint64_t word = all->bits[from >> 6] & (~UINT64_C(0) << (from & 63));
    if (word)
        return (from & ~INT64_C(63)) + __builtin_ctzll(word);
    int64_t next_word = (from >> 6) + 1;
    int64_t at = next_word >> 6;
    if (at >= all->n_some)
        return -1;
    uint64_t some = all->some[at] & (~UINT64_C(0) << (next_word & 63));
    while (!some && ++at < all->n_some)
        some = all->some[at];
    if (!some)
        return -1;
    int64_t found = at * 64 + __builtin_ctzll(some);
    return found * 64 + __builtin_ctzll(all->bits[found]);
}

status lists_init(lists *all, int64_t n_keys, int64_t n_nodes, arena *memory)
{
    all->n_keys = n_keys;
    all->n_some = (n_keys >> 12) + 1;
    TRY(arena_calloc(memory, (size_t)n_keys, sizeof *all->head, (void **)&all->head));
    TRY(arena_calloc(memory, (size_t)n_nodes + 1, sizeof *all->next, (void **)&all->next));
    TRY(arena_calloc(memory, (size_t)(n_keys >> 6) + 1, sizeof *all->bits, (void **)&all->bits));
    TRY(arena_calloc(memory, (size_t)all->n_some, sizeof *all->some, (void **)&all->some));
    for (int64_t k = 0; k < n_keys; k++)
        all->head[k] = -1;
    return ST_OK;
}
