/* arena.c: a list of blocks, each twice as large as the one before up to MAX_DOUBLED. `current` is
 * the block that memory is taken from; the blocks after it are empty and are used again. */
#include "common/base/arena.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64, MIN_BLOCK = 64 * 1024, MAX_DOUBLED = 64 * 1024 * 1024 };

struct arena_block {
    arena_block *next;
    size_t size;
    size_t used;
    _Alignas(ALIGN) unsigned char data[];
};

void arena_init(arena *a, size_t cap_bytes)
{
    memset(a, 0, sizeof *a);
    a->cap_bytes = cap_bytes;
}

void arena_done(arena *a)
{
    if (!a)
        return;
    for (arena_block *b = a->first, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    memset(a, 0, sizeof *a);
}

static arena_block *block_new(size_t size)
{
    size_t total = sizeof(arena_block) + size;
    total = (total + ALIGN - 1) / ALIGN * ALIGN;
    arena_block *b = (arena_block *)aligned_alloc(ALIGN, total);
    if (!b)
        return NULL;
    b->next = NULL;
    b->size = size;
    b->used = 0;
    return b;
}

status arena_alloc(arena *a, size_t n_bytes, void **out)
{
    if (n_bytes > SIZE_MAX / 2)
        return FAIL(ST_NO_MEMORY, "a request for %zu bytes of memory cannot be met", n_bytes);
    size_t n = (n_bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (a->cap_bytes &&
        n > a->cap_bytes - (a->used_bytes < a->cap_bytes ? a->used_bytes : a->cap_bytes))
        return FAIL(ST_NO_MEMORY,
                    "%zu more bytes would pass this arena's cap of %zu bytes (%zu are in use)", n,
                    a->cap_bytes, a->used_bytes);
    arena_block *b = a->current;
    while (b && b->size - b->used < n) {
        b = b->next; /* left over from before a reset; nothing in it is in use */
        if (b)
            b->used = 0;
    }
    if (!b) {
        size_t size = a->current ? a->current->size * 2 : MIN_BLOCK;
        if (size > MAX_DOUBLED)
            size = MAX_DOUBLED;
        if (size < n)
            size = n;
        b = block_new(size);
        if (!b)
            return FAIL(ST_NO_MEMORY, "no memory for a block of %zu bytes", size);
        if (a->current) {
            b->next = a->current->next;
            a->current->next = b;
        } else {
            a->first = b;
        }
    }
    a->current = b;
    *out = b->data + b->used;
    b->used += n;
    a->used_bytes += n;
    return ST_OK;
}

status arena_calloc(arena *a, size_t n, size_t size, void **out)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes))
        return FAIL(ST_NO_MEMORY, "the size of %zu items of %zu bytes overflows", n, size);
    void *p;
    TRY(arena_alloc(a, bytes, &p));
    memset(p, 0, bytes);
    *out = p;
    return ST_OK;
}

status arena_strndup(arena *a, const char *s, size_t n, char **out)
{
    void *p;
    TRY(arena_alloc(a, n + 1, &p));
    if (n)
        memcpy(p, s, n);
    ((char *)p)[n] = 0;
    *out = (char *)p;
    return ST_OK;
}

arena_mark arena_save(const arena *a)
{
    arena_mark m = {a->current, a->current ? a->current->used : 0, a->used_bytes};
    return m;
}

void arena_release(arena *a, arena_mark mark)
{
    assert(mark.used_bytes <= a->used_bytes);
    a->current = mark.block ? mark.block : a->first;
    if (a->current)
        a->current->used = mark.block ? mark.block_used : 0;
    a->used_bytes = mark.used_bytes;
    /* Blocks after the current one are emptied when arena_alloc comes to them. */
}

void arena_reset(arena *a)
{
    a->current = a->first;
    if (a->first)
        a->first->used = 0;
    a->used_bytes = 0;
}

void arena_trim(arena *a, size_t keep_bytes)
{
    size_t held_bytes = 0;
    arena_reset(a);
    for (const arena_block *b = a->first; b; b = b->next)
        held_bytes += b->size;
    if (held_bytes > keep_bytes) {
        const size_t cap_bytes = a->cap_bytes;
        arena_done(a);
        arena_init(a, cap_bytes);
    }
}
