#include "trainer/eval/generate.h"

#include <stdlib.h>
#include <string.h>

static status push(token_list *l, int32_t id)
{
    if (l->n == l->capacity) {
        size_t capacity = l->capacity ? 2 * l->capacity : 32;
        int32_t *ids = realloc(l->id, capacity * sizeof *ids);
        if (!ids)
            return FAIL(ST_NO_MEMORY, "generate: out of memory");
        l->id = ids;
        l->capacity = capacity;
    }
    l->id[l->n++] = id;
    return ST_OK;
}

/* Merged rows of item i. */
static int64_t item_rows(const row *r, int64_t i)
{
    const int32_t *g = &r->grid_thw[3 * i];
    return (int64_t)g[0] * g[1] * g[2] / (MERGE_SIDE * MERGE_SIDE);
}

/* The items [first, last) a document's visual rows fall into, and the merged row the first begins
 * at. */
static void items_of(const row *r, int64_t doc, int64_t *first, int64_t *last, int64_t *base)
{
    int64_t low = -1, high = -1;
    for (int64_t t = r->cu_seqlens[doc]; t < r->cu_seqlens[doc + 1]; t++)
        if (r->visual_row[t] >= 0) {
            if (low < 0)
                low = r->visual_row[t];
            high = r->visual_row[t];
        }
    *first = *last = *base = 0;
    if (low < 0)
        return;
    while (*base + item_rows(r, *first) <= low)
        *base += item_rows(r, (*first)++);
    int64_t end = *base;
    for (*last = *first; *last < r->n_items && end <= high; (*last)++)
        end += item_rows(r, *last);
}

/* The first n tokens of a document without labels, with room for `extra` more, and its images. */
static status cut_document(const row *r, int64_t doc, int64_t n, int64_t extra, arena *a, row *out)
{
    if (r->n_video_patches)
        return FAIL(ST_BAD_INPUT, "documents with video can not be cut out of their row");
    int64_t begin = r->cu_seqlens[doc];
    int64_t first, last, base, rows = 0;
    items_of(r, doc, &first, &last, &base);
    for (int64_t i = first; i < last; i++)
        rows += item_rows(r, i);

    memset(out, 0, sizeof *out);
    out->n_tokens = n + extra;
    out->n_docs = 1;
    out->n_items = last - first;
    out->n_patches = rows * MERGE_SIDE * MERGE_SIDE;
    TRY(row_alloc(out, a, r->loss_weight != NULL));
    out->n_tokens = n; /* the rest is room to grow */
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

status generate_prompt(const row *r, int64_t doc, int64_t extra, arena *a, row *out)
{
    int64_t begin = r->cu_seqlens[doc], end = r->cu_seqlens[doc + 1], cut = begin;
    while (cut < end && r->labels[cut] == NO_LABEL)
        cut++;
    return cut_document(r, doc, cut - begin, extra, a, out);
}

status generate_document(const row *r, int64_t doc, arena *a, row *out)
{
    int64_t begin = r->cu_seqlens[doc], n = r->cu_seqlens[doc + 1] - begin;
    TRY(cut_document(r, doc, n, 0, a, out));
    memcpy(out->labels, r->labels + begin, (size_t)n * sizeof *r->labels);
    if (r->loss_weight)
        memcpy(out->loss_weight, r->loss_weight + begin, (size_t)n * sizeof *r->loss_weight);
    return ST_OK;
}

/* One text token more: position_ids is [3, n_tokens], so its streams are spread again. */
static void grow(row *r, int32_t id)
{
    int64_t n = r->n_tokens;
    int32_t next = 0;
    for (int64_t i = 0; i < 3 * n; i++)
        if (r->position_ids[i] >= next)
            next = r->position_ids[i] + 1;
    for (int axis = 2; axis > 0; axis--)
        memmove(r->position_ids + axis * (n + 1), r->position_ids + axis * n,
                (size_t)n * sizeof(int32_t));
    for (int axis = 0; axis < 3; axis++)
        r->position_ids[axis * (n + 1) + n] = next;
    r->input_ids[n] = id;
    r->labels[n] = NO_LABEL;
    r->visual_row[n] = -1;
    r->n_tokens = n + 1;
    r->cu_seqlens[1] = (int32_t)(n + 1);
}

/* Logits come in the device's activation dtype; bf16 is the upper half of a float. */
static double logit_at(const void *logits, st_dtype dtype, int64_t i)
{
    if (dtype == DT_F64)
        return ((const double *)logits)[i];
    if (dtype == DT_F32)
        return (double)((const float *)logits)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)logits)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* Places of pictures are no words of an answer: an untrained model may like them best, and nothing
 * stands behind one that was not asked about. */
static int32_t best_word(const void *logits, st_dtype dtype, int64_t n, const model_dims *d)
{
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++) {
        if (i == d->image_token || i == d->video_token)
            continue;
        if (best < 0 || logit_at(logits, dtype, i) > logit_at(logits, dtype, best))
            best = i;
    }
    return (int32_t)best;
}

bool generate_can(const session *s, const row *r)
{
    const st_dtype act = s->device->v->act;
    return (act == DT_F32 || act == DT_F64 || act == DT_BF16) && !r->n_video_patches;
}

status generate_answer(session *s, const row *r, int64_t doc, int64_t max_new, token_list *out)
{
    const backend_vtable *v = s->device->v;
    if (!generate_can(s, r))
        return FAIL(ST_BAD_DEVICE,
                    "generate: reads logits of f32, f64 or bf16 (%s gives %s), and "
                    "rows without video",
                    v->name, st_dtype_name(v->act));
    int64_t vocab = s->dims.text.vocab;
    size_t bytes = (size_t)vocab * st_dtype_size(v->act);
    void *logits = NULL, *host = NULL;
    int32_t *last = NULL;
    arena a;
    arena_init(&a, 0);
    status st = ST_OK;
    row prompt;
    TRY_OR(done, v->alloc(s->device, bytes, &logits));
    TRY_OR(done, v->alloc(s->device, sizeof *last, (void **)&last));
    TRY_OR(done, arena_alloc(&a, bytes, &host));
    TRY_OR(done, generate_prompt(r, doc, max_new, &a, &prompt));
    for (int64_t i = 0; i < max_new && prompt.n_tokens < s->cap.tokens; i++) {
        device_batch *batch;
        loss_sums sums = {s->sums.loss, s->sums.weight, s->sums.aux};
        int32_t at = (int32_t)(prompt.n_tokens - 1);
        TRY_OR(done, stage_rows(s->stager, s->stream, &prompt, 1, &batch));
        TRY_OR(done, model_forward(s->model, s->stream, batch, &sums, NULL, NULL));
        TRY_OR(done, v->to_device(s->stream, last, &at, sizeof at));
        TRY_OR(done, model_logits(s->model, s->stream, last, 1, logits));
        TRY_OR(done, v->to_host(s->stream, host, logits, bytes));
        TRY_OR(done, v->wait(s->stream));
        int32_t id = best_word(host, v->act, vocab, &s->dims);
        if (id == s->dims.eos_token)
            break;
        TRY_OR(done, push(out, id));
        grow(&prompt, id);
    }
done:
    v->release(s->device, logits);
    v->release(s->device, last);
    arena_done(&a);
    return st;
}
