/* batch.c: storage, checks, digest and file form of a packed row. */
#include "proto/batch.h"

#include <math.h>
#include <string.h>

/* Largest side or frame count of a grid, in patches: their product fits an int64 with room. */
enum { GRID_MAX = 65536 };

/* One entry per tensor, in name order: this is the order of the digest. */
typedef enum tensor_id {
    T_CU_SEQLENS,
    T_DOC_PART,
    T_DOC_SAMPLE_ID,
    T_GRID_THW,
    T_INPUT_IDS,
    T_LABELS,
    T_LOSS_WEIGHT,
    T_PIXELS,
    T_PIXELS_VIDEO,
    T_POSITION_IDS,
    T_VISUAL_ROW,
    T_COUNT
} tensor_id;

static const struct {
    const char *name;
    st_dtype dtype;
    int n_dims;
} tensor_table[T_COUNT] = {
    [T_CU_SEQLENS] = {"cu_seqlens", DT_I32, 1},
    [T_DOC_PART] = {"doc_part", DT_I32, 1},
    [T_DOC_SAMPLE_ID] = {"doc_sample_id", DT_U64, 1},
    [T_GRID_THW] = {"grid_thw", DT_I32, 2},
    [T_INPUT_IDS] = {"input_ids", DT_I32, 1},
    [T_LABELS] = {"labels", DT_I32, 1},
    [T_LOSS_WEIGHT] = {"loss_weight", DT_F32, 1},
    [T_PIXELS] = {"pixels", DT_U8, 2},
    [T_PIXELS_VIDEO] = {"pixels_video", DT_U8, 2},
    [T_POSITION_IDS] = {"position_ids", DT_I32, 2},
    [T_VISUAL_ROW] = {"visual_row", DT_I32, 1},
};

/* In files the 8-byte tensor comes first and the bytes last, so that all are aligned. */
static const tensor_id file_order[T_COUNT] = {
    T_DOC_SAMPLE_ID, T_CU_SEQLENS,   T_DOC_PART,   T_GRID_THW, T_INPUT_IDS,    T_LABELS,
    T_LOSS_WEIGHT,   T_POSITION_IDS, T_VISUAL_ROW, T_PIXELS,   T_PIXELS_VIDEO,
};

status row_alloc(row *r, arena *a, int with_weight)
{
    size_t n_tokens = (size_t)r->n_tokens, n_docs = (size_t)r->n_docs;
    row n = *r;

    TRY(arena_calloc(a, n_tokens, sizeof(int32_t), (void **)&n.input_ids));
    TRY(arena_calloc(a, n_tokens, sizeof(int32_t), (void **)&n.labels));
    TRY(arena_calloc(a, n_tokens, 3 * sizeof(int32_t), (void **)&n.position_ids));
    TRY(arena_calloc(a, n_docs + 1, sizeof(int32_t), (void **)&n.cu_seqlens));
    TRY(arena_calloc(a, n_tokens, sizeof(int32_t), (void **)&n.visual_row));
    TRY(arena_calloc(a, (size_t)r->n_items, 3 * sizeof(int32_t), (void **)&n.grid_thw));
    TRY(arena_calloc(a, (size_t)r->n_patches, PATCH_BYTES, (void **)&n.pixels));
    n.pixels_video = NULL;
    if (r->n_video_patches > 0)
        TRY(arena_calloc(a, (size_t)r->n_video_patches, VIDEO_PATCH_BYTES,
                         (void **)&n.pixels_video));
    n.loss_weight = NULL;
    if (with_weight)
        TRY(arena_calloc(a, n_tokens, sizeof(float), (void **)&n.loss_weight));
    TRY(arena_calloc(a, n_docs, sizeof(uint64_t), (void **)&n.doc_sample_id));
    TRY(arena_calloc(a, n_docs, sizeof(int32_t), (void **)&n.doc_part));
    for (size_t t = 0; t < n_tokens; t++) {
        n.labels[t] = NO_LABEL;
        n.visual_row[t] = -1;
    }
    n.cursor = "";
    n.quarantine = "";
    *r = n;
    return ST_OK;
}

/* Patches of item i; its grid has been checked. */
static int64_t item_patches(const row *r, int64_t i)
{
    const int32_t *g = r->grid_thw + 3 * i;
    return (int64_t)g[0] * g[1] * g[2];
}

static status check_counts(const row *r, const char *source)
{
    const int64_t n[] = {r->n_tokens, r->n_docs, r->n_items, r->n_patches, r->n_video_patches};
    for (size_t i = 0; i < sizeof n / sizeof n[0]; i++)
        if (n[i] < 0 || n[i] > INT32_MAX)
            return FAIL_IN(ST_BAD_INPUT, source, "count %zu of a row is %lld, expected 0 to %d", i,
                           (long long)n[i], INT32_MAX);
    if (r->n_patches + r->n_video_patches > INT32_MAX)
        return FAIL_IN(ST_BAD_INPUT, source, "%lld patches in a row, expected at most %d",
                       (long long)(r->n_patches + r->n_video_patches), INT32_MAX);
    return ST_OK;
}

static status check_documents(const row *r, const char *source)
{
    if (r->cu_seqlens[0] != 0 || r->cu_seqlens[r->n_docs] != r->n_tokens)
        return FAIL_IN(ST_BAD_INPUT, source, "cu_seqlens runs from %d to %d, expected 0 to %lld",
                       r->cu_seqlens[0], r->cu_seqlens[r->n_docs], (long long)r->n_tokens);
    for (int64_t d = 0; d < r->n_docs; d++) {
        int32_t from = r->cu_seqlens[d], to = r->cu_seqlens[d + 1];
        if (to <= from || to > r->n_tokens)
            return FAIL_IN(
                ST_BAD_INPUT, source,
                "document %lld has borders %d and %d, expected rising within %lld tokens",
                (long long)d, from, to, (long long)r->n_tokens);
        if (r->labels[from] != NO_LABEL)
            return FAIL_IN(ST_BAD_INPUT, source,
                           "the first token of document %lld has label %d, expected %d: nothing "
                           "precedes it",
                           (long long)d, r->labels[from], NO_LABEL);
        if (r->doc_part[d] < 0)
            return FAIL_IN(ST_BAD_INPUT, source, "doc_part[%lld] is %d, expected 0 or more",
                           (long long)d, r->doc_part[d]);
    }
    return ST_OK;
}

static status check_tokens(const row *r, const char *source)
{
    int64_t n = r->n_tokens;
    for (int64_t t = 0; t < n; t++) {
        if (r->input_ids[t] < 0)
            return FAIL_IN(ST_BAD_INPUT, source, "input_ids[%lld] is %d, expected 0 or more",
                           (long long)t, r->input_ids[t]);
        if (r->labels[t] < 0 && r->labels[t] != NO_LABEL)
            return FAIL_IN(ST_BAD_INPUT, source, "labels[%lld] is %d, expected %d or a token id",
                           (long long)t, r->labels[t], NO_LABEL);
        if (r->loss_weight && !(isfinite(r->loss_weight[t]) && r->loss_weight[t] >= 0))
            return FAIL_IN(ST_BAD_INPUT, source,
                           "loss_weight[%lld] is %g, expected finite and not negative",
                           (long long)t, (double)r->loss_weight[t]);
    }
    for (int64_t i = 0; i < 3 * n; i++)
        if (r->position_ids[i] < 0)
            return FAIL_IN(ST_BAD_INPUT, source,
                           "position_ids[%lld, %lld] is %d, expected 0 or more", (long long)(i / n),
                           (long long)(i % n), r->position_ids[i]);
    return ST_OK;
}

/* Grids possible, their patches together as many as the row has. */
static status check_grids(const row *r, const char *source)
{
    int64_t total = 0;
    for (int64_t i = 0; i < r->n_items; i++) {
        const int32_t *g = r->grid_thw + 3 * i;
        if (g[0] < 1 || g[1] < 1 || g[2] < 1 || g[0] > GRID_MAX || g[1] > GRID_MAX ||
            g[2] > GRID_MAX || g[1] % MERGE_SIDE || g[2] % MERGE_SIDE)
            return FAIL_IN(
                ST_BAD_INPUT, source,
                "grid_thw[%lld] is %d x %d x %d, expected 1 to %d, height and width even",
                (long long)i, g[0], g[1], g[2], GRID_MAX);
        total += item_patches(r, i);
        if (total > INT32_MAX)
            return FAIL_IN(ST_BAD_INPUT, source, "grid_thw sums to over %d patches", INT32_MAX);
    }
    if (total != r->n_patches + r->n_video_patches)
        return FAIL_IN(
            ST_BAD_INPUT, source,
            "grid_thw sums to %lld patches, the row has %lld of images and %lld of videos",
            (long long)total, (long long)r->n_patches, (long long)r->n_video_patches);
    return ST_OK;
}

/* Where a walk over visual_row stands. */
typedef struct visual_walk {
    int64_t item;      /* the item being read, -1 = between items */
    int32_t next, end; /* its next merged row and the one after its last */
    int32_t id;        /* its token id */
    int64_t n_seen;    /* items met so far */
} visual_walk;

/* Merged row m starts item *out, or fails. Items are few and mostly new, so look at the next
 * unseen one first and search only for an image shared with an earlier document. */
static status find_item(const row *r, const char *source, int64_t t, int64_t n_seen,
                        int64_t seen_rows, int64_t *out)
{
    int64_t m = r->visual_row[t], start = 0;
    if (m == seen_rows && n_seen < r->n_items) {
        *out = n_seen;
        return ST_OK;
    }
    for (int64_t i = 0; i < n_seen; i++) {
        if (start == m) {
            *out = i;
            return ST_OK;
        }
        start += item_patches(r, i) / (MERGE_SIDE * MERGE_SIDE);
    }
    return FAIL_IN(ST_BAD_INPUT, source,
                   "visual_row[%lld] is %lld, expected the first row of an item (the next new item "
                   "begins at row %lld)",
                   (long long)t, (long long)m, (long long)seen_rows);
}

/* Every visual token continues its item or begins one; items end inside the document they began
 * in; new items come in grid_thw order and none is left out. */
static status check_visual(const row *r, const char *source)
{
    visual_walk w = {.item = -1};
    int64_t seen_rows = 0, doc = 0;
    for (int64_t t = 0; t < r->n_tokens; t++) {
        if (t == r->cu_seqlens[doc + 1]) {
            doc++;
            if (w.item >= 0)
                return FAIL_IN(ST_BAD_INPUT, source,
                               "item %lld is cut by the end of document %lld at token %lld",
                               (long long)w.item, (long long)(doc - 1), (long long)t);
        }
        int32_t m = r->visual_row[t];
        if (m == -1)
            continue;
        if (w.item < 0) {
            TRY(find_item(r, source, t, w.n_seen, seen_rows, &w.item));
            int32_t rows = (int32_t)(item_patches(r, w.item) / (MERGE_SIDE * MERGE_SIDE));
            w.next = m;
            w.end = m + rows;
            w.id = r->input_ids[t];
            if (w.item == w.n_seen) {
                w.n_seen++;
                seen_rows += rows;
            }
        }
        if (m != w.next || r->input_ids[t] != w.id)
            return FAIL_IN(ST_BAD_INPUT, source,
                           "visual_row[%lld] is %d with token id %d, expected row %d of item %lld "
                           "with id %d",
                           (long long)t, m, r->input_ids[t], w.next, (long long)w.item, w.id);
        if (++w.next == w.end)
            w.item = -1;
    }
    if (w.item >= 0)
        return FAIL_IN(ST_BAD_INPUT, source, "item %lld is cut by the end of the row",
                       (long long)w.item);
    if (w.n_seen != r->n_items)
        return FAIL_IN(ST_BAD_INPUT, source, "item %lld of %lld has no tokens", (long long)w.n_seen,
                       (long long)r->n_items);
    return ST_OK;
}

/* Patches of the items whose token id is id, and whether one of them has several frames. */
typedef struct id_class {
    int32_t id;
    int64_t patches;
    bool has_frames;
} id_class;

/* Sorts the items into at most two classes by token id. class_of [I] u8. */
static status classify(const row *r, const char *source, id_class c[2], int *out_n,
                       uint8_t *class_of)
{
    int n = 0;
    int64_t item = 0, start = 0;
    for (int64_t t = 0; t < r->n_tokens && item < r->n_items; t++) {
        if (r->visual_row[t] != start)
            continue;
        int32_t id = r->input_ids[t];
        int k = 0;
        while (k < n && c[k].id != id)
            k++;
        if (k == 2)
            return FAIL_IN(ST_BAD_INPUT, source,
                           "items have the token ids %d, %d and %d, expected one for images and "
                           "one for videos",
                           c[0].id, c[1].id, id);
        if (k == n)
            c[n++] = (id_class){.id = id};
        c[k].patches += item_patches(r, item);
        c[k].has_frames |= r->grid_thw[3 * item] > 1;
        class_of[item] = (uint8_t)k;
        start += item_patches(r, item++) / (MERGE_SIDE * MERGE_SIDE);
    }
    *out_n = n;
    return ST_OK;
}

status row_find_videos(const row *r, const char *source, uint8_t *out_is_video)
{
    id_class c[2] = {{0}, {0}};
    int n = 0;
    TRY(classify(r, source, c, &n, out_is_video));
    /* The video class is the one that fits the patch counts; where both fit, the larger id, as in
     * Qwen3-VL (video_token_id = image_token_id + 1). */
    int video = -1;
    for (int k = 0; k < n; k++) {
        int64_t others = n == 2 ? c[1 - k].patches : 0;
        bool fits = c[k].patches == r->n_video_patches && others == r->n_patches &&
                    !(n == 2 && c[1 - k].has_frames);
        if (fits && (video < 0 || c[k].id > c[video].id))
            video = k;
    }
    bool none = n == 0 || (n == 1 && r->n_video_patches == 0 && !c[0].has_frames);
    if (video < 0 && !none)
        return FAIL_IN(ST_BAD_INPUT, source,
                       "no reading of the token ids makes %lld image and %lld video patches (an "
                       "image has one frame)",
                       (long long)r->n_patches, (long long)r->n_video_patches);
    for (int64_t i = 0; i < r->n_items; i++)
        out_is_video[i] = video >= 0 && out_is_video[i] == video;
    return ST_OK;
}

/* Only that a reading exists: the kinds themselves are for those who cut pixels. */
static status check_kinds(const row *r, const char *source)
{
    uint8_t few[64], *kinds = few;
    arena scratch;
    arena_init(&scratch, 0);
    status st = ST_OK;
    if (r->n_items > (int64_t)sizeof few)
        TRY_OR(done, arena_alloc(&scratch, (size_t)r->n_items, (void **)&kinds));
    st = row_find_videos(r, source, kinds);
done:
    arena_done(&scratch);
    return st;
}

status row_check(const row *r, const char *source)
{
    TRY(check_counts(r, source));
    TRY(check_documents(r, source));
    TRY(check_tokens(r, source));
    TRY(check_grids(r, source));
    TRY(check_visual(r, source));
    return check_kinds(r, source);
}

/* One tensor of the row as a view; false if the row does not have it. */
static bool view(const row *r, tensor_id id, st_tensor *out)
{
    const void *data = NULL;
    int64_t n = 0, columns = 0;
    switch (id) {
    case T_CU_SEQLENS:
        data = r->cu_seqlens, n = r->n_docs + 1;
        break;
    case T_DOC_PART:
        data = r->doc_part, n = r->n_docs;
        break;
    case T_DOC_SAMPLE_ID:
        data = r->doc_sample_id, n = r->n_docs;
        break;
    case T_GRID_THW:
        data = r->grid_thw, n = r->n_items, columns = 3;
        break;
    case T_INPUT_IDS:
        data = r->input_ids, n = r->n_tokens;
        break;
    case T_LABELS:
        data = r->labels, n = r->n_tokens;
        break;
    case T_LOSS_WEIGHT:
        data = r->loss_weight, n = r->n_tokens;
        break;
    case T_PIXELS:
        data = r->pixels, n = r->n_patches, columns = PATCH_BYTES;
        break;
    case T_PIXELS_VIDEO:
        data = r->pixels_video, n = r->n_video_patches, columns = VIDEO_PATCH_BYTES;
        break;
    case T_POSITION_IDS:
        data = r->position_ids, n = 3, columns = r->n_tokens;
        break;
    case T_VISUAL_ROW:
        data = r->visual_row, n = r->n_tokens;
        break;
    case T_COUNT:
        return false;
    }
    if ((id == T_LOSS_WEIGHT && !r->loss_weight) || (id == T_PIXELS_VIDEO && n == 0))
        return false;
    st_tensor t = {.name = tensor_table[id].name,
                   .dtype = tensor_table[id].dtype,
                   .n_dims = tensor_table[id].n_dims,
                   .shape = {n, columns}};
    size_t count = (size_t)n * (t.n_dims == 2 ? (size_t)columns : 1);
    t.data = span_of(data, count * st_dtype_size(t.dtype));
    *out = t;
    return true;
}

void row_tensors(const row *r, int with_pixels, st_tensor out[ROW_TENSORS], size_t *out_n)
{
    size_t n = 0;
    for (int i = 0; i < T_COUNT; i++) {
        tensor_id id = file_order[i];
        if (!with_pixels && (id == T_PIXELS || id == T_PIXELS_VIDEO))
            continue;
        if (view(r, id, &out[n]))
            n++;
    }
    *out_n = n;
}

status row_digest(const row *r, hash128 *out)
{
    hasher *h = NULL;
    TRY(hasher_new(&h));
    for (int id = 0; id < T_COUNT; id++) {
        st_tensor t;
        if (!view(r, (tensor_id)id, &t))
            continue;
        const char *dtype = st_dtype_name(t.dtype);
        hasher_add(h, t.name, strlen(t.name) + 1);
        hasher_add(h, dtype, strlen(dtype) + 1);
        hasher_add_u64(h, (uint64_t)t.n_dims);
        for (int d = 0; d < t.n_dims; d++)
            hasher_add_u64(h, (uint64_t)t.shape[d]);
        if (t.data.size > 0)
            hasher_add(h, t.data.data, t.data.size);
    }
    *out = hasher_value(h);
    hasher_free(&h);
    return ST_OK;
}

/* The tensor's bytes if it has this shape; columns 0 = of one dimension. NULL if absent and
 * optional. */
static status take(const st_file *f, tensor_id id, const char *source, int64_t n, int64_t columns,
                   bool optional, void **out)
{
    const char *name = tensor_table[id].name;
    const st_tensor *t;
    *out = NULL;
    if (optional && !st_find(f, name))
        return ST_OK;
    TRY(st_want(f, name, tensor_table[id].dtype, tensor_table[id].n_dims, source, &t));
    if (t->shape[0] != n || (t->n_dims == 2 && t->shape[1] != columns))
        return FAIL_IN(ST_BAD_INPUT, source, "%s has shape [%lld, %lld], expected [%lld, %lld]",
                       name, (long long)t->shape[0], (long long)(t->n_dims == 2 ? t->shape[1] : 1),
                       (long long)n, (long long)(t->n_dims == 2 ? columns : 1));
    if ((uintptr_t)t->data.data % st_dtype_size(t->dtype))
        return FAIL_IN(ST_BAD_INPUT, source,
                       "%s is not aligned to its %zu-byte elements; order the tensors by falling "
                       "element size and pad the header to 8",
                       name, st_dtype_size(t->dtype));
    *out = (void *)(uintptr_t)t->data.data;
    return ST_OK;
}

/* Rows of a tensor that gives a count; absent counts as none where optional. */
static status count_of(const st_file *f, tensor_id id, const char *source, bool optional,
                       int64_t *out)
{
    const st_tensor *t;
    *out = 0;
    if (optional && !st_find(f, tensor_table[id].name))
        return ST_OK;
    TRY(st_want(f, tensor_table[id].name, tensor_table[id].dtype, tensor_table[id].n_dims, source,
                &t));
    *out = t->shape[0];
    return ST_OK;
}

/* On the wire nothing but the row's own tensors is accepted: what is not digested is not sent. */
static status refuse_others(const st_file *f, const char *source)
{
    for (size_t i = 0; i < f->n_tensors; i++) {
        int id = 0;
        while (id < T_COUNT && strcmp(f->tensors[i].name, tensor_table[id].name))
            id++;
        if (id == T_COUNT || id == T_PIXELS || id == T_PIXELS_VIDEO)
            return FAIL_IN(ST_BAD_INPUT, source, "a row block on the wire has no tensor \"%s\"",
                           f->tensors[i].name);
    }
    return ST_OK;
}

status row_from_tensors(const st_file *f, const char *source, int with_pixels, row *out)
{
    row r = {0};
    TRY(count_of(f, T_INPUT_IDS, source, false, &r.n_tokens));
    TRY(count_of(f, T_DOC_SAMPLE_ID, source, false, &r.n_docs));
    TRY(count_of(f, T_GRID_THW, source, false, &r.n_items));
    if (with_pixels) {
        TRY(count_of(f, T_PIXELS, source, true, &r.n_patches));
        TRY(count_of(f, T_PIXELS_VIDEO, source, true, &r.n_video_patches));
    } else {
        TRY(refuse_others(f, source));
    }
    TRY(check_counts(&r, source));

    int64_t n = r.n_tokens;
    TRY(take(f, T_CU_SEQLENS, source, r.n_docs + 1, 0, false, (void **)&r.cu_seqlens));
    TRY(take(f, T_DOC_PART, source, r.n_docs, 0, false, (void **)&r.doc_part));
    TRY(take(f, T_DOC_SAMPLE_ID, source, r.n_docs, 0, false, (void **)&r.doc_sample_id));
    TRY(take(f, T_GRID_THW, source, r.n_items, 3, false, (void **)&r.grid_thw));
    TRY(take(f, T_INPUT_IDS, source, n, 0, false, (void **)&r.input_ids));
    TRY(take(f, T_LABELS, source, n, 0, false, (void **)&r.labels));
    TRY(take(f, T_LOSS_WEIGHT, source, n, 0, true, (void **)&r.loss_weight));
    TRY(take(f, T_POSITION_IDS, source, 3, n, false, (void **)&r.position_ids));
    TRY(take(f, T_VISUAL_ROW, source, n, 0, false, (void **)&r.visual_row));
    if (with_pixels) {
        TRY(take(f, T_PIXELS, source, r.n_patches, PATCH_BYTES, true, (void **)&r.pixels));
        TRY(take(f, T_PIXELS_VIDEO, source, r.n_video_patches, VIDEO_PATCH_BYTES, true,
                 (void **)&r.pixels_video));
        TRY(row_check(&r, source));
    } else {
        /* Which one-frame items are videos is known from the image parts (codec.c). */
        for (int64_t i = 0; i < r.n_items; i++) {
            const int32_t *g = r.grid_thw + 3 * i;
            if (g[0] < 1 || g[1] < 1 || g[2] < 1 || g[0] > GRID_MAX || g[1] > GRID_MAX ||
                g[2] > GRID_MAX || r.n_patches + r.n_video_patches > INT32_MAX)
                return FAIL_IN(ST_BAD_INPUT, source,
                               "grid_thw[%lld] is %d x %d x %d, expected 1 to %d each",
                               (long long)i, g[0], g[1], g[2], GRID_MAX);
            *(g[0] > 1 ? &r.n_video_patches : &r.n_patches) += item_patches(&r, i);
        }
    }
    const char *cursor = st_meta_find(f, "cursor"), *quarantine = st_meta_find(f, "quarantine");
    r.cursor = cursor ? cursor : "";
    r.quarantine = quarantine ? quarantine : "";
    *out = r;
    return ST_OK;
}

size_t row_meta(const row *r, st_meta out[2])
{
    size_t n = 0;
    if (r->cursor && r->cursor[0])
        out[n++] = (st_meta){"cursor", r->cursor};
    if (r->quarantine && r->quarantine[0])
        out[n++] = (st_meta){"quarantine", r->quarantine};
    return n;
}

status row_save(const row *r, const char *path)
{
    st_tensor tensors[ROW_TENSORS];
    size_t n;
    st_meta meta[2];
    row_tensors(r, 1, tensors, &n);
    return st_write(path, tensors, n, meta, row_meta(r, meta));
}

status row_open(const char *path, st_file *file, row *out)
{
    st_file f;
    TRY(st_open(path, &f));
    status st = row_from_tensors(&f, path, 1, out);
    if (st != ST_OK) {
        st_close(&f);
        return st;
    }
    *file = f;
    return ST_OK;
}
