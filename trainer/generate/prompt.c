/* SPDX-License-Identifier: Apache-2.0 */
/* prompt.c: see prompt.h. Pictures lie in the order in which documents show them, so the pictures
 * of consecutive tokens are a run of the row's items, patches and visual rows. */
#include "trainer/generate/prompt.h"

#include <string.h>

int64_t replies_of_row(const row *packed, reply *out)
{
    int64_t count = 0;
    for (int64_t doc = 0; doc < packed->n_docs; doc++) {
        const int64_t end = packed->cu_seqlens[doc + 1];
        for (int64_t i = packed->cu_seqlens[doc]; i < end; i++) {
            const int64_t begin = i;
            while (i < end && packed->labels[i] != NO_LABEL)
                i++;
            if (i == begin)
                continue;
            if (out)
                out[count] = (reply){.doc = doc, .begin = begin, .end = i};
            count++;
        }
    }
    return count;
}

/* How many merged rows (visual tokens) item `index` has. */
static int64_t item_rows(const row *packed, int64_t index)
{
    const int32_t *grid_thw = &packed->grid_thw[3 * index];
    return (int64_t)grid_thw[0] * grid_thw[1] * grid_thw[2] / (MERGE_SIDE * MERGE_SIDE);
}

/* How many merged rows the items of a span have. */
static int64_t span_rows(const row *packed, const prompt_span *items)
{
    int64_t rows = 0;
    for (int64_t i = items->first; i < items->last; i++)
        rows += item_rows(packed, i);
    return rows;
}

/* Finds the items that the tokens [begin, end) show. */
static prompt_span items_of_tokens(const row *packed, int64_t begin, int64_t end_token)
{
    prompt_span items = {0};
    int64_t low = -1, high = -1;
    for (int64_t i = begin; i < end_token; i++)
        if (packed->visual_row[i] >= 0) {
            if (low < 0)
                low = packed->visual_row[i];
            high = packed->visual_row[i];
        }
    if (low < 0)
        return items;
    while (items.first_row + item_rows(packed, items.first) <= low)
        items.first_row += item_rows(packed, items.first++);
    int64_t end = items.first_row;
    for (items.last = items.first; items.last < packed->n_items && end <= high; items.last++)
        end += item_rows(packed, items.last);
    return items;
}

/* Consecutive tokens of a row, and what they show. */
typedef struct token_range {
    int64_t begin, end;
    prompt_span items;
} token_range;

static token_range tokens_of(const row *packed, int64_t begin, int64_t end)
{
    return (token_range){begin, end, items_of_tokens(packed, begin, end)};
}

/* The tokens of a document's prefix: none if it has none. */
static token_range tokens_before(const row *packed, int64_t doc)
{
    const int64_t before = row_tokens_before(packed, doc);
    const int64_t begin = before ? packed->cu_seqlens[packed->doc_prefix[doc]] : 0;
    return tokens_of(packed, begin, begin + before);
}

void prompt_items(const row *packed, int64_t doc, prompt_span out[PROMPT_SPANS])
{
    out[0] = tokens_before(packed, doc).items;
    out[1] = tokens_of(packed, packed->cu_seqlens[doc], packed->cu_seqlens[doc + 1]).items;
}

/* How far a row that is being written has come. */
typedef struct written {
    int64_t tokens, items, rows; /* rows: merged visual rows */
} written;

/* Appends tokens with their pictures, and with labels and weights if asked. */
static void append_tokens(const row *packed, const token_range *from, bool labels, written *at,
                          row *out)
{
    const int64_t count = from->end - from->begin, merged = MERGE_SIDE * MERGE_SIDE;
    const int64_t rows = span_rows(packed, &from->items);
    const size_t bytes = (size_t)count * sizeof(int32_t);
    memcpy(out->input_ids + at->tokens, packed->input_ids + from->begin, bytes);
    for (int64_t i = 0; i < count; i++)
        if (packed->visual_row[from->begin + i] >= 0)
            out->visual_row[at->tokens + i] =
                (int32_t)(packed->visual_row[from->begin + i] - from->items.first_row + at->rows);
    for (int axis = 0; axis < 3; axis++)
        memcpy(out->position_ids + axis * out->n_tokens + at->tokens,
               packed->position_ids + axis * packed->n_tokens + from->begin, bytes);
    if (labels)
        memcpy(out->labels + at->tokens, packed->labels + from->begin, bytes);
    if (labels && packed->loss_weight)
        memcpy(out->loss_weight + at->tokens, packed->loss_weight + from->begin,
               (size_t)count * sizeof *packed->loss_weight);
    if (rows) {
        memcpy(out->grid_thw + 3 * at->items, packed->grid_thw + 3 * from->items.first,
               (size_t)(from->items.last - from->items.first) * 3 * sizeof(int32_t));
        memcpy(out->pixels + at->rows * merged * PATCH_BYTES,
               packed->pixels + from->items.first_row * merged * PATCH_BYTES,
               (size_t)(rows * merged * PATCH_BYTES));
    }
    at->tokens += count;
    at->items += from->items.last - from->items.first;
    at->rows += rows;
}

static void add_sizes(const row *packed, const token_range *of, batch_caps *inout_sum)
{
    const int64_t items = of->items.last - of->items.first;
    inout_sum->tokens += of->end - of->begin;
    inout_sum->items += items;
    inout_sum->frames += items; /* a picture is one frame */
    inout_sum->patches += span_rows(packed, &of->items) * MERGE_SIDE * MERGE_SIDE;
}

/* Allocates a row of these sizes, which must have no video. */
static status begin_row(const row *packed, const batch_caps *sizes, unsigned optional,
                        arena *memory, row *out)
{
    if (packed->n_video_patches)
        return FAIL(ST_BAD_INPUT, "a document with video cannot be cut out of its row");
    *out = (row){.n_tokens = sizes->tokens,
                 .n_docs = sizes->docs,
                 .n_items = sizes->items,
                 .n_patches = sizes->patches};
    return row_alloc(out, memory, optional);
}

/* Makes a row of one document from the first tokens of a document's sample: those of its prefix,
 * and of its own those before the place `end`. */
static status cut_sample(const row *packed, int64_t doc, int64_t end, bool labels, arena *memory,
                         row *out)
{
    const token_range list[] = {tokens_before(packed, doc),
                                tokens_of(packed, packed->cu_seqlens[doc], end)};
    const bool weights = labels && packed->loss_weight;
    batch_caps sizes = {.docs = 1};
    written at = {0};
    for (int i = 0; i < 2; i++)
        add_sizes(packed, &list[i], &sizes);
    TRY(begin_row(packed, &sizes, weights ? ROW_WEIGHTS : 0, memory, out));
    for (int i = 0; i < 2; i++)
        append_tokens(packed, &list[i], labels, &at, out);
    out->cu_seqlens[1] = (int32_t)out->n_tokens;
    out->doc_sample_id[0] = packed->doc_sample_id[doc];
    return ST_OK;
}

static token_range tokens_of_reply(const row *packed, const reply *to)
{
    return tokens_of(packed, packed->cu_seqlens[to->doc], to->begin);
}

batch_caps prompt_sizes(const row *packed, const reply *replies, int64_t count)
{
    const token_range before = tokens_before(packed, replies[0].doc);
    batch_caps sizes = {.docs = count > 1 ? count + 1 : 1};
    add_sizes(packed, &before, &sizes);
    for (int64_t i = 0; i < count; i++) {
        const token_range own = tokens_of_reply(packed, &replies[i]);
        add_sizes(packed, &own, &sizes);
    }
    return sizes;
}

/* Appends tokens as document `doc`. */
static void append_document(const row *packed, const token_range *from, int64_t doc,
                            uint64_t sample, written *at, row *out)
{
    append_tokens(packed, from, false, at, out);
    out->cu_seqlens[doc + 1] = (int32_t)at->tokens;
    out->doc_sample_id[doc] = sample;
    out->doc_part[doc] = doc > 0 ? 0 : -1;
    out->doc_prefix[doc] = doc > 0 ? 0 : -1;
}

status prompt_of_branches(const row *packed, const reply *replies, int64_t count, arena *memory,
                          row *out)
{
    const token_range before = tokens_before(packed, replies[0].doc);
    const batch_caps sizes = prompt_sizes(packed, replies, count);
    written at = {0};
    if (count == 1)
        return prompt_of_reply(packed, replies, memory, out);
    TRY(begin_row(packed, &sizes, ROW_PREFIXES, memory, out));
    append_document(packed, &before, 0, packed->doc_sample_id[replies[0].doc], &at, out);
    for (int64_t i = 0; i < count; i++) {
        const token_range own = tokens_of_reply(packed, &replies[i]);
        append_document(packed, &own, i + 1, packed->doc_sample_id[replies[i].doc], &at, out);
    }
    return ST_OK;
}

status prompt_of_reply(const row *packed, const reply *to, arena *memory, row *out)
{
    return cut_sample(packed, to->doc, to->begin, false, memory, out);
}

status prompt_whole_sample(const row *packed, int64_t doc, arena *memory, row *out)
{
    return cut_sample(packed, doc, packed->cu_seqlens[doc + 1], true, memory, out);
}
