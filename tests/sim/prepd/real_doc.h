/* SPDX-License-Identifier: Apache-2.0 */
/* real_doc.h: what the tensors of a real row (real_row.h) hold for a document: all of it follows
 * from the content hash of the document (row_content.h), which lies in the position ids of its
 * first token, so that a receiver can tell every other value from it.
 *
 *   token       0            1 .. visual                 the rest
 *   ids         by content   REAL_IMAGE or REAL_VIDEO    by content
 *   positions   content      the grid, at each item's    the token's place
 *                            first token, else its place
 *   labels      none         none                        the last `targets` have their ids
 *
 * The first bytes of an item's pixels follow from the content of the document that shows it first;
 * those of a bad one are zero, as in reality. */
#ifndef TESSERA_TESTS_SIM_PREPD_REAL_DOC_H
#define TESSERA_TESTS_SIM_PREPD_REAL_DOC_H

#include "proto/row/batch.h"
#include "tests/sim/common/sim_random.h"

enum { REAL_IMAGE = 151655, REAL_VIDEO = 151656, REAL_TEXT_IDS = 150000 };

/* What the first token of a document says. */
typedef struct real_head {
    uint64_t content;
    bool bad;
    int32_t tokens, targets; /* both below 8192 */
} real_head;

static inline int32_t real_text_id(uint64_t content, int64_t place)
{
    return 1 + (int32_t)(sim_random_mix(content + (uint64_t)place) % REAL_TEXT_IDS);
}

/* The first eight bytes of item `nth` of a document. */
static inline uint64_t real_pixels(const real_head *head, int64_t nth)
{
    return head->bad ? 0 : sim_random_mix(head->content ^ (uint64_t)(nth + 1) << 32);
}

/* Writes the positions of token `at` of a row: time, height, width. */
static inline void real_put_positions(row *packed, int64_t at, int32_t time, int32_t height,
                                      int32_t width)
{
    packed->position_ids[at] = time;
    packed->position_ids[packed->n_tokens + at] = height;
    packed->position_ids[2 * packed->n_tokens + at] = width;
}

static inline bool real_has_positions(const row *packed, int64_t at, int32_t time, int32_t height,
                                      int32_t width)
{
    return packed->position_ids[at] == time &&
           packed->position_ids[packed->n_tokens + at] == height &&
           packed->position_ids[2 * packed->n_tokens + at] == width;
}

enum { HEAD_BITS = 30, HEAD_MASK = (1 << HEAD_BITS) - 1, COUNT_BITS = 13 };

static inline void real_put_head(row *packed, int64_t at, const real_head *head)
{
    const uint64_t last = head->content >> 2 * HEAD_BITS | (uint64_t)head->bad << 4 |
                          (uint64_t)head->targets << 5 | (uint64_t)head->tokens << (5 + COUNT_BITS);
    real_put_positions(packed, at, (int32_t)(head->content & HEAD_MASK),
                       (int32_t)(head->content >> HEAD_BITS & HEAD_MASK), (int32_t)last);
}

static inline real_head real_head_at(const row *packed, int64_t at)
{
    const uint64_t first = (uint64_t)packed->position_ids[at],
                   second = (uint64_t)packed->position_ids[packed->n_tokens + at],
                   last = (uint64_t)packed->position_ids[2 * packed->n_tokens + at];
    return (real_head){.content = first | second << HEAD_BITS | last << 2 * HEAD_BITS,
                       .bad = last >> 4 & 1,
                       .targets = (int32_t)(last >> 5 & ((1 << COUNT_BITS) - 1)),
                       .tokens = (int32_t)(last >> (5 + COUNT_BITS))};
}

#endif
