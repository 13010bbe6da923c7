/* prompt.c: see prompt.h. Pictures lie in the order in which documents show them, so a document's
 * pictures are a run of the row's items, patches and visual rows. */
#include "trainer/generate/prompt.h"

#include <string.h>

/* How many merged rows (visual tokens) item `index` has. */
static int64_t item_rows(const row *packed, int64_t index)
{
    const int32_t *grid_thw = &packed->grid_thw[3 * index];
    return (int64_t)grid_thw[0] * grid_thw[1] * grid_thw[2] / (MERGE_SIDE * MERGE_SIDE);
}

/* Finds the items that the tokens [begin, end) show. */
static void items_of_tokens(const row *packed, int64_t begin, int64_t end_token, prompt_span *out)
{
    int64_t low = -1, high = -1;
    for (int64_t i = begin; i < end_token; i++)
        if (packed->visual_row[i] >= 0) {
            if (low < 0)
                low = packed->visual_row[i];
            high = packed->visual_row[i];
        }
    *out = (prompt_span){0};
    if (low < 0)
        return;
    while (out->first_row + item_rows(packed, out->first) <= low)
        out->first_row += item_rows(packed, out->first++);
    int64_t end = out->first_row;
    for (out->last = out->first; out->last < packed->n_items && end <= high; out->last++)
        end += item_rows(packed, out->last);
}

void prompt_items(const row *packed, int64_t doc, prompt_span *out)
{
    items_of_tokens(packed, packed->cu_seqlens[doc], packed->cu_seqlens[doc + 1], out);
}

/* Cuts out the first `count` tokens of a document, without labels, and the pictures that they show.
 */
static status cut_document(const row *packed, int64_t doc, int64_t count, arena *memory, row *out)
{
    if (packed->n_video_patches)
        return FAIL(ST_BAD_INPUT, "a document with video cannot be cut out of its row");
    if (row_is_prefix(packed, doc) || row_tokens_before(packed, doc) > 0)
        return FAIL(ST_BAD_INPUT,
                    "sample %llu shares its beginning with others of its row, so that its document "
                    "alone is not the sample",
                    (unsigned long long)packed->doc_sample_id[doc]);
    int64_t begin = packed->cu_seqlens[doc];
    prompt_span items;
    items_of_tokens(packed, begin, begin + count, &items);
    int64_t first = items.first, last = items.last, base = items.first_row, rows = 0;
    for (int64_t i = first; i < last; i++)
        rows += item_rows(packed, i);

    memset(out, 0, sizeof *out);
    out->n_tokens = count;
    out->n_docs = 1;
    out->n_items = last - first;
    out->n_patches = rows * MERGE_SIDE * MERGE_SIDE;
    TRY(row_alloc(out, memory, packed->loss_weight ? ROW_WEIGHTS : 0));
    out->cu_seqlens[1] = (int32_t)count;
    memcpy(out->input_ids, packed->input_ids + begin, (size_t)count * sizeof(int32_t));
    for (int64_t j = 0; j < count; j++)
        if (packed->visual_row[begin + j] >= 0)
            out->visual_row[j] = (int32_t)(packed->visual_row[begin + j] - base);
    for (int axis = 0; axis < 3; axis++)
        memcpy(out->position_ids + axis * count,
               packed->position_ids + axis * packed->n_tokens + begin,
               (size_t)count * sizeof(int32_t));
    if (out->n_items)
        memcpy(out->grid_thw, packed->grid_thw + 3 * first,
               (size_t)out->n_items * 3 * sizeof(int32_t));
    if (out->n_patches)
        memcpy(out->pixels, packed->pixels + base * MERGE_SIDE * MERGE_SIDE * PATCH_BYTES,
               (size_t)out->n_patches * PATCH_BYTES);
    out->doc_sample_id[0] = packed->doc_sample_id[doc];
    return ST_OK;
}

status prompt_of_reply(const row *packed, const reply *to, arena *memory, row *out)
{
    return cut_document(packed, to->doc, to->begin - packed->cu_seqlens[to->doc], memory, out);
}

status prompt_whole_document(const row *packed, int64_t doc, arena *memory, row *out)
{
    int64_t begin = packed->cu_seqlens[doc], count = packed->cu_seqlens[doc + 1] - begin;
    TRY(cut_document(packed, doc, count, memory, out));
    memcpy(out->labels, packed->labels + begin, (size_t)count * sizeof *packed->labels);
    if (packed->loss_weight)
        memcpy(out->loss_weight, packed->loss_weight + begin,
               (size_t)count * sizeof *packed->loss_weight);
    return ST_OK;
}
