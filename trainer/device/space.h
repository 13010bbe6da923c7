/* SPDX-License-Identifier: Apache-2.0 */
/* space.h: how one block of memory is cut into arrays. The same layout code runs twice: first
 * without a base, to learn how much it needs, then with a base, to hand out addresses. So sizes and
 * addresses cannot disagree.
 *
 * Arrays that are never alive at the same time may share bytes: space_mark before the first user,
 * space_rewind or space_turn after each. `peak` is then what the block must hold. */
#ifndef TESSERA_TRAINER_DEVICE_SPACE_H
#define TESSERA_TRAINER_DEVICE_SPACE_H

#include <stddef.h>
#include <stdint.h>

typedef struct space {
    char *base; /* NULL: only measure */
    size_t used, peak;
} space;

enum { SPACE_ALIGN = 256 };

/* Takes `count` items of `size` bytes, aligned to SPACE_ALIGN. Returns NULL while measuring. */
static inline void *space_take(space *sp, int64_t count, size_t size)
{
    size_t at = sp->used;
    size_t bytes = (size_t)count * size;
    sp->used += (bytes + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN;
    if (sp->used > sp->peak)
        sp->peak = sp->used;
    return sp->base ? sp->base + at : NULL;
}

/* The present end of what is taken, for space_rewind or space_turn. */
static inline size_t space_mark(const space *sp)
{
    return sp->used;
}

/* Gives back everything that was taken since `mark`. */
static inline void space_rewind(space *sp, size_t mark)
{
    sp->used = mark;
}

/* Ends one of several users of the bytes from `mark` on. *inout_top, which starts as `mark`, keeps
 * the end of the largest; after the last user, rewind to it. */
static inline void space_turn(space *sp, size_t mark, size_t *inout_top)
{
    if (sp->used > *inout_top)
        *inout_top = sp->used;
    sp->used = mark;
}

#endif
