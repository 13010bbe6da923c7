/* batch.c: allocates a packed row, computes its digest, and converts it to and from safetensors.
 * The checks are in batch_check.c. */
#include "proto/batch.h"

#include <string.h>

#include "proto/batch_check.h"

/* The tensors in the order of their names, which is the order of the digest. */
typedef enum tensor_id {
    T_CU_SEQLENS,
    T_DOC_PART,
    T_DOC_PREFIX,
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
    [T_DOC_PREFIX] = {"doc_prefix", DT_I32, 1},
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

/* The order in files: 8-byte elements first and bytes last, so that every tensor is aligned. */
static const tensor_id file_order[T_COUNT] = {
    T_DOC_SAMPLE_ID, T_CU_SEQLENS,  T_DOC_PART,     T_DOC_PREFIX, T_GRID_THW, T_INPUT_IDS,
    T_LABELS,        T_LOSS_WEIGHT, T_POSITION_IDS, T_VISUAL_ROW, T_PIXELS,   T_PIXELS_VIDEO,
};

status row_alloc(row *r, arena *a, unsigned optional)
{
    size_t n_tokens = (size_t)r->n_tokens, n_docs = (size_t)r->n_docs;
    row n = *r;

    TRY(arena_calloc(a, n_tokens, sizeof(int32_t), (void **)&n.input_ids));
    TRY(arena_calloc(a, n_tokens, sizeof(int32_t), (void **)&n.labels));
    TRY(arena_calloc(a, n_tokens, 3 * sizeof(int32_t), (void **)&n.position_ids));
    TRY(arena_calloc(a, n_docs + 1, sizeof(int32_t), (void **)&n.cu_seqlens));
    TRY(arena_calloc(a, n_tokens, sizeof(int32_t), (void **)&n.visual_row));
    TRY(arena_calloc(a, (size_t)r->n_items, 3 * sizeof(int32_t), (void **)&n.grid_thw));
    n.pixels = n.pixels_video = NULL;
    if (!r->items)
        TRY(arena_calloc(a, (size_t)r->n_patches, PATCH_BYTES, (void **)&n.pixels));
    if (!r->items && r->n_video_patches > 0)
        TRY(arena_calloc(a, (size_t)r->n_video_patches, VIDEO_PATCH_BYTES,
                         (void **)&n.pixels_video));
    n.loss_weight = NULL;
    n.doc_prefix = NULL;
    if (optional & ROW_WEIGHTS)
        TRY(arena_calloc(a, n_tokens, sizeof(float), (void **)&n.loss_weight));
    TRY(arena_calloc(a, n_docs, sizeof(uint64_t), (void **)&n.doc_sample_id));
    TRY(arena_calloc(a, n_docs, sizeof(int32_t), (void **)&n.doc_part));
    if (optional & ROW_PREFIXES)
        TRY(arena_calloc(a, n_docs, sizeof(int32_t), (void **)&n.doc_prefix));
    for (size_t d = 0; d < n_docs && n.doc_prefix; d++)
        n.doc_prefix[d] = -1;
    for (size_t t = 0; t < n_tokens; t++) {
        n.labels[t] = NO_LABEL;
        n.visual_row[t] = -1;
    }
    n.cursor = "";
    n.quarantine = "";
    n.references = "";
    *r = n;
    return ST_OK;
}

int64_t row_squares(const row *r)
{
    int64_t sum = 0;
    for (int64_t d = 0; d < r->n_docs; d++) {
        const int64_t n = r->cu_seqlens[d + 1] - r->cu_seqlens[d];
        sum += n * n + 2 * n * row_tokens_before(r, d);
    }
    return sum;
}

/* Makes *out a view of one tensor of the row; false if the row does not have it. */
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
    case T_DOC_PREFIX:
        data = r->doc_prefix, n = r->n_docs;
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
    if ((id == T_LOSS_WEIGHT && !r->loss_weight) || (id == T_DOC_PREFIX && !r->doc_prefix) ||
        (id == T_PIXELS_VIDEO && n == 0))
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

static void add_items(hasher *h, const row *r, bool videos)
{
    const size_t each = videos ? VIDEO_PATCH_BYTES : PATCH_BYTES;
    for (int64_t i = 0; i < r->n_items; i++) {
        const int32_t *g = r->grid_thw + 3 * i;
        if (r->items[i].is_video == videos)
            hasher_add(h, r->items[i].patches, (size_t)g[0] * (size_t)g[1] * (size_t)g[2] * each);
    }
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
        hasher_add_text(h, t.name);
        hasher_add_text(h, dtype);
        hasher_add_u64(h, (uint64_t)t.n_dims);
        for (int d = 0; d < t.n_dims; d++)
            hasher_add_u64(h, (uint64_t)t.shape[d]);
        if (r->items && (id == T_PIXELS || id == T_PIXELS_VIDEO))
            add_items(h, r, id == T_PIXELS_VIDEO);
        else if (t.data.size > 0)
            hasher_add(h, t.data.data, t.data.size);
    }
    *out = hasher_value(h);
    hasher_free(&h);
    return ST_OK;
}

/* Finds a tensor of the shape [n, columns], or [n] if it has one dimension. *out points to its
 * bytes; it is NULL if the tensor is optional and absent. */
static status take_tensor(const st_file *f, tensor_id id, const char *source, int64_t n,
                          int64_t columns, bool optional, void **out)
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
        return FAIL_IN(
            ST_BAD_INPUT, source,
            "%s is not aligned to its %zu-byte elements: sort the tensors by element size, "
            "largest first, and pad the header to a multiple of 8",
            name, st_dtype_size(t->dtype));
    *out = (void *)(uintptr_t)t->data.data;
    return ST_OK;
}

/* The first dimension of a tensor whose rows give a count; 0 if it is optional and absent. */
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

/* On the wire a block may hold nothing but the row's own tensors, all of which the digest covers.
 */
static status refuse_others(const st_file *f, const char *source)
{
    for (size_t i = 0; i < f->n_tensors; i++) {
        int id = 0;
        while (id < T_COUNT && strcmp(f->tensors[i].name, tensor_table[id].name))
            id++;
        if (id == T_COUNT || id == T_PIXELS || id == T_PIXELS_VIDEO)
            return FAIL_IN(ST_BAD_INPUT, source,
                           "the row block has a tensor \"%s\", which no row has on the wire",
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
    TRY(row_check_counts(&r, source));

    int64_t n = r.n_tokens;
    TRY(take_tensor(f, T_CU_SEQLENS, source, r.n_docs + 1, 0, false, (void **)&r.cu_seqlens));
    TRY(take_tensor(f, T_DOC_PART, source, r.n_docs, 0, false, (void **)&r.doc_part));
    TRY(take_tensor(f, T_DOC_PREFIX, source, r.n_docs, 0, true, (void **)&r.doc_prefix));
    TRY(take_tensor(f, T_DOC_SAMPLE_ID, source, r.n_docs, 0, false, (void **)&r.doc_sample_id));
    TRY(take_tensor(f, T_GRID_THW, source, r.n_items, 3, false, (void **)&r.grid_thw));
    TRY(take_tensor(f, T_INPUT_IDS, source, n, 0, false, (void **)&r.input_ids));
    TRY(take_tensor(f, T_LABELS, source, n, 0, false, (void **)&r.labels));
    TRY(take_tensor(f, T_LOSS_WEIGHT, source, n, 0, true, (void **)&r.loss_weight));
    TRY(take_tensor(f, T_POSITION_IDS, source, 3, n, false, (void **)&r.position_ids));
    TRY(take_tensor(f, T_VISUAL_ROW, source, n, 0, false, (void **)&r.visual_row));
    if (with_pixels) {
        TRY(take_tensor(f, T_PIXELS, source, r.n_patches, PATCH_BYTES, true, (void **)&r.pixels));
        TRY(take_tensor(f, T_PIXELS_VIDEO, source, r.n_video_patches, VIDEO_PATCH_BYTES, true,
                        (void **)&r.pixels_video));
        TRY(row_check(&r, source));
    } else {
        /* A guess that codec.c corrects: only the image parts tell clips of one frame from
         * pictures. */
        TRY(row_check_grids(&r, source));
        for (int64_t i = 0; i < r.n_items; i++) {
            const int32_t *g = r.grid_thw + 3 * i;
            *(g[0] > 1 ? &r.n_video_patches : &r.n_patches) += (int64_t)g[0] * g[1] * g[2];
        }
    }
    const char *cursor = st_meta_find(f, "cursor"), *quarantine = st_meta_find(f, "quarantine");
    r.cursor = cursor ? cursor : "";
    r.quarantine = quarantine ? quarantine : "";
    const char *references = st_meta_find(f, "references");
    r.references = references ? references : "";
    *out = r;
    return ST_OK;
}

size_t row_meta(const row *r, st_meta out[ROW_META])
{
    size_t n = 0;
    if (r->cursor && r->cursor[0])
        out[n++] = (st_meta){"cursor", r->cursor};
    if (r->quarantine && r->quarantine[0])
        out[n++] = (st_meta){"quarantine", r->quarantine};
    if (r->references && r->references[0])
        out[n++] = (st_meta){"references", r->references};
    return n;
}

status row_save(const row *r, const char *path)
{
    st_tensor tensors[ROW_TENSORS];
    size_t n;
    st_meta meta[ROW_META];
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
