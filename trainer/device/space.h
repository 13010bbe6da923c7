/* space.h: how one block of memory is cut into arrays: the same layout code runs once without a
 * base, to learn the size, and once with it, to hand out addresses.
 *
 * Arrays that are never alive together share bytes: mark, lay out one user, rewind, lay out the
 * other; peak is what the block must hold. */
#ifndef TESSERA_TRAINER_DEVICE_SPACE_H
#define TESSERA_TRAINER_DEVICE_SPACE_H

#include <stddef.h>
#include <stdint.h>

typedef struct space {
    char *base; /* NULL: measure only */
    size_t used, peak;
} space;

enum { SPACE_ALIGN = 256 };

/* n items of `size` bytes, aligned to SPACE_ALIGN; NULL while measuring. */
static inline void *space_take(space *sp, int64_t n, size_t size)
{
    size_t at = sp->used;
    size_t bytes = (size_t)n * size;
    sp->used += (bytes + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN;
    if (sp->used > sp->peak)
        sp->peak = sp->used;
    return sp->base ? sp->base + at : NULL;
}

static inline size_t space_mark(const space *sp)
{
    return sp->used;
}

static inline void space_rewind(space *sp, size_t mark)
{
    sp->used = mark;
}

/* Ends one of several users of the bytes behind mark; after the last, rewind to *inout_top. */
static inline void space_turn(space *sp, size_t mark, size_t *inout_top)
{
    if (sp->used > *inout_top)
        *inout_top = sp->used;
    sp->used = mark;
}

#endif
