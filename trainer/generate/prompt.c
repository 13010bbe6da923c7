/* prompt.c: see prompt.h. Pictures lie in the order in which documents show them, so a document's
 * pictures are a run of the row's items, patches and visual rows. */
#include "trainer/generate/prompt.h"

#include <string.h>

/* How many merged rows (visual tokens) item i has. */
static int64_t item_rows(const row *r, int64_t i)
{
    const int32_t *g = &r->grid_thw[3 * i];
    return (int64_t)g[0] * g[1] * g[2] / (MERGE_SIDE * MERGE_SIDE);
}

/* Finds the items that the tokens [begin, end) show. */
static void items_of_tokens(const row *r, int64_t begin, int64_t end_token, prompt_span *out)
{
    int64_t low = -1, high = -1;
    for (int64_t t = begin; t < end_token; t++)
        if (r->visual_row[t] >= 0) {
            if (low < 0)
                low = r->visual_row[t];
            high = r->visual_row[t];
        }
    *out = (prompt_span){0};
    if (low < 0)
        return;
    while (out->first_row + item_rows(r, out->first) <= low)
        out->first_row += item_rows(r, out->first++);
    int64_t end = out->first_row;
    for (out->last = out->first; out->last < r->n_items && end <= high; out->last++)
        end += item_rows(r, out->last);
}

void prompt_items(const row *r, int64_t doc, prompt_span *out)
{
    items_of_tokens(r, r->cu_seqlens[doc], r->cu_seqlens[doc + 1], out);
}

/* Cuts out the first n tokens of a document, without labels, and the pictures that they show. */
static status cut_document(const row *r, int64_t doc, int64_t n, arena *a, row *out)
{
    if (r->n_video_patches)
        return FAIL(ST_BAD_INPUT, "a document with video cannot be cut out of its row");
    int64_t begin = r->cu_seqlens[doc];
    prompt_span items;
    items_of_tokens(r, begin, begin + n, &items);
    int64_t first = items.first, last = items.last, base = items.first_row, rows = 0;
    for (int64_t i = first; i < last; i++)
        rows += item_rows(r, i);

    memset(out, 0, sizeof *out);
    out->n_tokens = n;
    out->n_docs = 1;
    out->n_items = last - first;
    out->n_patches = rows * MERGE_SIDE * MERGE_SIDE;
    TRY(row_alloc(out, a, r->loss_weight ? ROW_WEIGHTS : 0));
    out->cu_seqlens[1] = (int32_t)n;
    memcpy(out->input_ids, r->input_ids + begin, (size_t)n * sizeof(int32_t));
    for (int64_t t = 0; t < n; t++)
        if (r->visual_row[begin + t] >= 0)
            out->visual_row[t] = (int32_t)(r->visual_row[begin + t] - base);
    for (int axis = 0; axis < 3; axis++)
        memcpy(out->position_ids + axis * n, r->position_ids + axis * r->n_tokens + begin,
               (size_t)n * sizeof(int32_t));
    if (out->n_items)
        memcpy(out->grid_thw, r->grid_thw + 3 * first, (size_t)out->n_items * 3 * sizeof(int32_t));
    if (out->n_patches)
        memcpy(out->pixels, r->pixels + base * MERGE_SIDE * MERGE_SIDE * PATCH_BYTES,
               (size_t)out->n_patches * PATCH_BYTES);
    out->doc_sample_id[0] = r->doc_sample_id[doc];
    return ST_OK;
}

status prompt_of_reply(const row *r, const reply *to, arena *a, row *out)
{
    return cut_document(r, to->doc, to->begin - r->cu_seqlens[to->doc], a, out);
}

status prompt_whole_document(const row *r, int64_t doc, arena *a, row *out)
{
    int64_t begin = r->cu_seqlens[doc], n = r->cu_seqlens[doc + 1] - begin;
    TRY(cut_document(r, doc, n, a, out));
    memcpy(out->labels, r->labels + begin, (size_t)n * sizeof *r->labels);
    if (r->loss_weight)
        memcpy(out->loss_weight, r->loss_weight + begin, (size_t)n * sizeof *r->loss_weight);
    return ST_OK;
}
