/* SPDX-License-Identifier: Apache-2.0 */
/* row_content.h: what a simulated row holds in place of tokens and pixels: for every document a
 * hash of all that its lease says of it. The simulated worker computes it from the lease that came
 * over the wire, the reference from the plan, and where they differ, the row is wrong. */
#ifndef TESSERA_TESTS_SIM_PREPD_ROW_CONTENT_H
#define TESSERA_TESTS_SIM_PREPD_ROW_CONTENT_H

#include <stddef.h>
#include <stdint.h>

#include "tests/sim/common/sim_random.h"

typedef struct doc_content {
    int64_t sample, part, tokens, from, whole, prefix, before, n_pictures;
    bool shared;
    uint64_t turns, pictures; /* hashes; a branch has no pictures of its own */
} doc_content;

static inline uint64_t content_add(uint64_t hash, uint64_t value)
{
    return sim_random_mix(hash ^ (value + UINT64_C(0x9e3779b97f4a7c15)));
}

static inline uint64_t content_add_text(uint64_t hash, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        hash = content_add(hash, (uint8_t)text[i]);
    return content_add(hash, size);
}

/* A picture of a document: its file and the grid of patches that it becomes. */
static inline uint64_t content_add_picture(uint64_t hash, const char *name, size_t name_bytes,
                                           int64_t bytes, int64_t height, int64_t width,
                                           int64_t rows, int64_t columns)
{
    hash = content_add_text(hash, name, name_bytes);
    hash = content_add(hash, (uint64_t)bytes);
    hash = content_add(hash, (uint64_t)height << 32 | (uint64_t)width);
    return content_add(hash, (uint64_t)rows << 32 | (uint64_t)columns);
}

/* A frame that is taken from a clip. */
static inline uint64_t content_add_frame(uint64_t hash, int64_t number)
{
    return content_add(hash, (uint64_t)number + 7);
}

static inline uint64_t content_hash(const doc_content *of)
{
    uint64_t hash = content_add(of->turns, of->pictures);
    hash = content_add(hash, (uint64_t)of->sample);
    hash = content_add(hash, (uint64_t)of->part << 32 | (uint64_t)of->tokens);
    hash = content_add(hash, (uint64_t)of->from << 32 | (uint64_t)of->whole);
    hash = content_add(hash, (uint64_t)of->prefix << 32 | (uint64_t)of->before);
    return content_add(hash, (uint64_t)of->n_pictures << 1 | of->shared);
}

#endif
