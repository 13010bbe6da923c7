/* arena.h: memory of one lifetime (process, row, sample), given back at once.
 *
 * An arena grows by blocks up to a cap and is reset or released to a mark; after the first rows a
 * reset arena allocates nothing. Pointers are valid until the reset or release that covers them.
 * Not shared between threads. */
#ifndef TESSERA_COMMON_BASE_ARENA_H
#define TESSERA_COMMON_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct arena_block arena_block;

typedef struct arena {
    arena_block *first;
    arena_block *current;
    size_t used_bytes; /* handed out since the last reset, alignment included */
    size_t cap_bytes;  /* ST_NO_MEMORY beyond this; 0 = no cap */
} arena;

typedef struct arena_mark {
    arena_block *block;
    size_t block_used;
    size_t used_bytes;
} arena_mark;

void arena_init(arena *a, size_t cap_bytes);
void arena_done(arena *a); /* accepts a zeroed or half-built arena */

/* n_bytes (0 allowed) aligned to 64, not cleared. ST_NO_MEMORY past the cap or the machine. */
WARN_UNUSED status arena_alloc(arena *a, size_t n_bytes, void **out);
/* The same, cleared, for n items; refuses n * size overflow. */
WARN_UNUSED status arena_calloc(arena *a, size_t n, size_t size, void **out);
/* A terminated copy of n bytes. */
WARN_UNUSED status arena_strndup(arena *a, const char *s, size_t n, char **out);

arena_mark arena_save(const arena *a);
void arena_release(arena *a, arena_mark mark);
void arena_reset(arena *a);
/* A reset; of an arena that holds more than this nothing is kept. */
void arena_trim(arena *a, size_t keep_bytes);

#endif
