/* SPDX-License-Identifier: Apache-2.0 */
/* arena.h: memory of one lifetime (a process, a row, a sample) that is freed all at once.
 *
 * An arena grows in blocks, up to a cap, and is then reset, or released to a mark that was set
 * earlier. Both keep the blocks, so an arena that is reset after every row soon allocates nothing.
 * A pointer is valid until the reset or release that covers it. An arena belongs to one thread. */
#ifndef TESSERA_COMMON_BASE_ARENA_H
#define TESSERA_COMMON_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct arena_block arena_block;

typedef struct arena {
    arena_block *first;
    arena_block *current;
    size_t used_bytes; /* given out since the last reset, padding for alignment included */
    size_t cap_bytes;  /* most used_bytes; 0 = no cap */
} arena;

/* A point in an arena's life. */
typedef struct arena_mark {
    arena_block *block;
    size_t block_used;
    size_t used_bytes;
} arena_mark;

/* Makes an empty arena; allocates nothing. cap_bytes 0: no cap. */
void arena_init(arena *memory, size_t cap_bytes);
/* Frees everything. Accepts NULL and an arena that is all zeros. */
void arena_done(arena *memory);

/* Gives n_bytes (0 is allowed), aligned to 64 bytes and not cleared. ST_NO_MEMORY if the cap would
 * be passed or the machine has no memory. */
WARN_UNUSED status arena_alloc(arena *memory, size_t n_bytes, void **out);
/* The same for `count` items of `size` bytes, set to zero. ST_NO_MEMORY also if count * size
 * overflows. */
WARN_UNUSED status arena_calloc(arena *memory, size_t count, size_t size, void **out);
/* Copies `length` bytes of text and ends the copy with a NUL. */
WARN_UNUSED status arena_strndup(arena *memory, const char *text, size_t length, char **out);

/* Notes the present point; arena_release gives back what was allocated after it. A release makes
 * the marks that were set after its own mark invalid. */
arena_mark arena_save(const arena *memory);
void arena_release(arena *memory, arena_mark mark);
/* Gives back everything and keeps the blocks for reuse. */
void arena_reset(arena *memory);
/* The same, but frees the blocks if together they are larger than keep_bytes. */
void arena_trim(arena *memory, size_t keep_bytes);

#endif
