/* SPDX-License-Identifier: Apache-2.0 */
/* real_lies.c: how liars change real rows. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/prepd/real_doc.h"
#include "tests/sim/prepd/real_row.h"

/* Changes of what the tag tells. Each gives false where the row has nothing of the kind. */
static bool lie_id(row *packed)
{
    if (packed->n_docs > 0)
        packed->doc_sample_id[packed->n_docs - 1]++;
    return packed->n_docs > 0;
}

/* A branch has no parts. */
static bool lie_part(row *packed)
{
    const int64_t last = packed->n_docs - 1;
    const bool any = last >= 0 && (!packed->doc_prefix || packed->doc_prefix[last] < 0);
    if (any)
        packed->doc_part[last]++;
    return any;
}

/* The first document takes a token of the second. */
static bool lie_length(row *packed)
{
    if (packed->n_docs < 2 || packed->cu_seqlens[2] - packed->cu_seqlens[1] < 2)
        return false;
    packed->labels[++packed->cu_seqlens[1]] = NO_LABEL;
    return true;
}

/* A label of the last document does not count. Nobody knows how many a part of a text has, which
 * has them on all tokens but the first. */
static bool lie_targets(row *packed)
{
    if (packed->n_docs == 0)
        return false;
    const real_head head = real_head_at(packed, packed->cu_seqlens[packed->n_docs - 1]);
    const bool any = head.targets > 0 && head.targets < head.tokens - 1;
    if (any)
        packed->labels[packed->n_tokens - 1] = NO_LABEL;
    return any;
}

static bool lie_grid(row *packed)
{
    for (int64_t i = 0; i < packed->n_items; i++) {
        int32_t *grid = packed->grid_thw + 3 * i;
        const int32_t height = grid[1];
        if (height == grid[2])
            continue;
        grid[1] = grid[2];
        grid[2] = height;
        return true;
    }
    return false;
}

/* Changes of what only another worker can tell. */
static bool lie_token(row *packed)
{
    if (packed->n_docs > 0)
        packed->input_ids[0] ^= 1;
    return packed->n_docs > 0;
}

static bool lie_pixel(row *packed)
{
    uint8_t *pixels = packed->n_patches > 0 ? packed->pixels : packed->pixels_video;
    if (pixels && packed->n_items > 0)
        *pixels ^= 1;
    return pixels && packed->n_items > 0;
}

static bool lie_label(row *packed)
{
    const int64_t last = packed->n_tokens - 1;
    const bool any = packed->n_docs > 0 && packed->labels[last] != NO_LABEL;
    if (any)
        packed->labels[last] ^= 1;
    return any;
}

bool real_lie(row *packed, row_lie lie, uint64_t luck)
{
    static bool (*const of_ids[])(row *) = {lie_id, lie_part, lie_length, lie_targets, lie_grid},
                                      (*const of_content[])(row *) = {lie_token, lie_pixel,
                                                                      lie_label};
    enum {
        N_IDS = sizeof of_ids / sizeof *of_ids,
        N_CONTENT = sizeof of_content / sizeof *of_content
    };
    if (lie == ROW_LIES_CONTENT || lie == ROW_FLIPS || lie == ROW_KILLS)
        return of_content[luck % N_CONTENT](packed) || lie_token(packed);
    /* One in N_IDS + 1 changes nothing here: then the message is damaged. */
    const uint64_t which = luck % (N_IDS + 1);
    return which < N_IDS && of_ids[which](packed);
}

void real_damage(wire_msg *message, uint64_t luck)
{
    const size_t n_parts = wire_msg_parts(message),
                 which = n_parts > 2 ? 2 + luck % (n_parts - 2) : 1;
    const span was = wire_msg_part(message, which);
    uint8_t *copy = malloc(was.size);
    if (!copy)
        abort();
    memcpy(copy, was.data, was.size);
    copy[luck / 64 % was.size] ^= (uint8_t)(1u << luck % 8);
    if (wire_msg_set(message, which, copy, was.size) != ST_OK)
        abort();
    free(copy);
}
