/* SPDX-License-Identifier: Apache-2.0 */
/* arena.c: a list of blocks, each twice as large as the one before up to MAX_DOUBLED. `current` is
 * the block that memory is taken from; the blocks after it are empty and are used again. */
#include "common/base/arena.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Under AddressSanitizer, memory that is not allocated is poisoned: the padding after an allocation,
 * the rest of a block, and everything that was released. */
#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif
#ifdef HAS_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, n_bytes)   ((void)(at), (void)(n_bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, n_bytes) ((void)(at), (void)(n_bytes))
#endif

enum { ALIGN = 64, MIN_BLOCK = 64 * 1024, MAX_DOUBLED = 64 * 1024 * 1024 };

struct arena_block {
    arena_block *next;
    size_t size;
    size_t used;
    _Alignas(ALIGN) unsigned char data[];
};

void arena_init(arena *memory, size_t cap_bytes)
{
    memset(memory, 0, sizeof *memory);
    memory->cap_bytes = cap_bytes;
}

void arena_done(arena *memory)
{
    if (!memory)
        return;
    for (arena_block *block = memory->first, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    memset(memory, 0, sizeof *memory);
}

static arena_block *block_new(size_t size)
{
    size_t total = sizeof(arena_block) + size;
    total = (total + ALIGN - 1) / ALIGN * ALIGN;
    arena_block *block = (arena_block *)aligned_alloc(ALIGN, total);
    if (!block)
        return NULL;
    block->next = NULL;
    block->size = size;
    block->used = 0;
    ASAN_POISON_MEMORY_REGION(block->data, size);
    return block;
}

/* Gives back what is beyond the first `used` bytes. */
static void block_release(arena_block *block, size_t used)
{
    block->used = used;
    ASAN_POISON_MEMORY_REGION(block->data + used, block->size - used);
}

status arena_alloc(arena *memory, size_t n_bytes, void **out)
{
    if (n_bytes > SIZE_MAX / 2)
        return FAIL(ST_NO_MEMORY, "a request for %zu bytes of memory cannot be met", n_bytes);
    size_t count = (n_bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (memory->cap_bytes &&
        count > memory->cap_bytes - (memory->used_bytes < memory->cap_bytes ? memory->used_bytes
                                                                            : memory->cap_bytes))
        return FAIL(ST_NO_MEMORY,
                    "%zu more bytes would pass this arena's cap of %zu bytes (%zu are in use)",
                    count, memory->cap_bytes, memory->used_bytes);
    arena_block *block = memory->current;
    while (block && block->size - block->used < count) {
        block = block->next; /* left over from before a reset; nothing in it is in use */
        if (block)
            block_release(block, 0);
    }
    if (!block) {
        size_t size = memory->current ? memory->current->size * 2 : MIN_BLOCK;
        if (size > MAX_DOUBLED)
            size = MAX_DOUBLED;
        if (size < count)
            size = count;
        block = block_new(size);
        if (!block)
            return FAIL(ST_NO_MEMORY, "no memory for a block of %zu bytes", size);
        if (memory->current) {
            block->next = memory->current->next;
            memory->current->next = block;
        } else {
            memory->first = block;
        }
    }
    memory->current = block;
    *out = block->data + block->used;
    ASAN_UNPOISON_MEMORY_REGION(*out, n_bytes);
    block->used += count;
    memory->used_bytes += count;
    return ST_OK;
}

status arena_calloc(arena *memory, size_t count, size_t size, void **out)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return FAIL(ST_NO_MEMORY, "the size of %zu items of %zu bytes overflows", count, size);
    void *room;
    TRY(arena_alloc(memory, bytes, &room));
    memset(room, 0, bytes);
    *out = room;
    return ST_OK;
}

status arena_strndup(arena *memory, const char *text, size_t length, char **out)
{
    void *room;
    TRY(arena_alloc(memory, length + 1, &room));
    if (length)
        memcpy(room, text, length);
    ((char *)room)[length] = 0;
    *out = (char *)room;
    return ST_OK;
}

arena_mark arena_save(const arena *memory)
{
    arena_mark mark = {memory->current, memory->current ? memory->current->used : 0,
                       memory->used_bytes};
    return mark;
}

void arena_release(arena *memory, arena_mark mark)
{
    assert(mark.used_bytes <= memory->used_bytes);
    memory->current = mark.block ? mark.block : memory->first;
    if (memory->current)
        block_release(memory->current, mark.block ? mark.block_used : 0);
    memory->used_bytes = mark.used_bytes;
    /* Blocks after the current one are emptied when arena_alloc comes to them. */
}

void arena_reset(arena *memory)
{
    memory->current = memory->first;
    if (memory->first)
        block_release(memory->first, 0);
    memory->used_bytes = 0;
}

void arena_trim(arena *memory, size_t keep_bytes)
{
    size_t held_bytes = 0;
    arena_reset(memory);
    for (const arena_block *block = memory->first; block; block = block->next)
        held_bytes += block->size;
    if (held_bytes > keep_bytes) {
        const size_t cap_bytes = memory->cap_bytes;
        arena_done(memory);
        arena_init(memory, cap_bytes);
    }
}
