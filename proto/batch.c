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

status row_alloc(row *packed, arena *memory, unsigned optional)
{
    size_t n_tokens = (size_t)packed->n_tokens, n_docs = (size_t)packed->n_docs;
    row next = *packed;

    TRY(arena_calloc(memory, n_tokens, sizeof(int32_t), (void **)&next.input_ids));
    TRY(arena_calloc(memory, n_tokens, sizeof(int32_t), (void **)&next.labels));
    TRY(arena_calloc(memory, n_tokens, 3 * sizeof(int32_t), (void **)&next.position_ids));
    TRY(arena_calloc(memory, n_docs + 1, sizeof(int32_t), (void **)&next.cu_seqlens));
    TRY(arena_calloc(memory, n_tokens, sizeof(int32_t), (void **)&next.visual_row));
    TRY(arena_calloc(memory, (size_t)packed->n_items, 3 * sizeof(int32_t),
                     (void **)&next.grid_thw));
    next.pixels = next.pixels_video = NULL;
    if (!packed->items)
        TRY(arena_calloc(memory, (size_t)packed->n_patches, PATCH_BYTES, (void **)&next.pixels));
    if (!packed->items && packed->n_video_patches > 0)
        TRY(arena_calloc(memory, (size_t)packed->n_video_patches, VIDEO_PATCH_BYTES,
                         (void **)&next.pixels_video));
    next.loss_weight = NULL;
    next.doc_prefix = NULL;
    if (optional & ROW_WEIGHTS)
        TRY(arena_calloc(memory, n_tokens, sizeof(float), (void **)&next.loss_weight));
    TRY(arena_calloc(memory, n_docs, sizeof(uint64_t), (void **)&next.doc_sample_id));
    TRY(arena_calloc(memory, n_docs, sizeof(int32_t), (void **)&next.doc_part));
    if (optional & ROW_PREFIXES)
        TRY(arena_calloc(memory, n_docs, sizeof(int32_t), (void **)&next.doc_prefix));
    for (size_t doc = 0; doc < n_docs && next.doc_prefix; doc++)
        next.doc_prefix[doc] = -1;
    for (size_t token = 0; token < n_tokens; token++) {
        next.labels[token] = NO_LABEL;
        next.visual_row[token] = -1;
    }
    next.cursor = "";
    next.quarantine = "";
    next.references = "";
    next.worker = "";
    *packed = next;
    return ST_OK;
}

int64_t row_squares(const row *packed)
{
    int64_t sum = 0;
    for (int64_t doc = 0; doc < packed->n_docs; doc++) {
        const int64_t count = packed->cu_seqlens[doc + 1] - packed->cu_seqlens[doc];
        sum += count * count + 2 * count * row_tokens_before(packed, doc);
    }
    return sum;
}

/* Makes *out a view of one tensor of the row; false if the row does not have it. */
static bool view(const row *packed, tensor_id id, st_tensor *out)
{
    const void *data = NULL;
    int64_t how_many = 0, columns = 0;
    switch (id) {
    case T_CU_SEQLENS:
        data = packed->cu_seqlens, how_many = packed->n_docs + 1;
        break;
    case T_DOC_PART:
        data = packed->doc_part, how_many = packed->n_docs;
        break;
    case T_DOC_PREFIX:
        data = packed->doc_prefix, how_many = packed->n_docs;
        break;
    case T_DOC_SAMPLE_ID:
        data = packed->doc_sample_id, how_many = packed->n_docs;
        break;
    case T_GRID_THW:
        data = packed->grid_thw, how_many = packed->n_items, columns = 3;
        break;
    case T_INPUT_IDS:
        data = packed->input_ids, how_many = packed->n_tokens;
        break;
    case T_LABELS:
        data = packed->labels, how_many = packed->n_tokens;
        break;
    case T_LOSS_WEIGHT:
        data = packed->loss_weight, how_many = packed->n_tokens;
        break;
    case T_PIXELS:
        data = packed->pixels, how_many = packed->n_patches, columns = PATCH_BYTES;
        break;
    case T_PIXELS_VIDEO:
        data = packed->pixels_video, how_many = packed->n_video_patches,
        columns = VIDEO_PATCH_BYTES;
        break;
    case T_POSITION_IDS:
        data = packed->position_ids, how_many = 3, columns = packed->n_tokens;
        break;
    case T_VISUAL_ROW:
        data = packed->visual_row, how_many = packed->n_tokens;
        break;
    case T_COUNT:
        return false;
    }
    if ((id == T_LOSS_WEIGHT && !packed->loss_weight) ||
        (id == T_DOC_PREFIX && !packed->doc_prefix) || (id == T_PIXELS_VIDEO && how_many == 0))
        return false;
    st_tensor tensor = {.name = tensor_table[id].name,
                        .dtype = tensor_table[id].dtype,
                        .n_dims = tensor_table[id].n_dims,
                        .shape = {how_many, columns}};
    size_t count = (size_t)how_many * (tensor.n_dims == 2 ? (size_t)columns : 1);
    tensor.data = span_of(data, count * st_dtype_size(tensor.dtype));
    *out = tensor;
    return true;
}

void row_tensors(const row *packed, int with_pixels, st_tensor out[ROW_TENSORS], size_t *out_n)
{
    size_t count = 0;
    for (int i = 0; i < T_COUNT; i++) {
        tensor_id id = file_order[i];
        if (!with_pixels && (id == T_PIXELS || id == T_PIXELS_VIDEO))
            continue;
        if (view(packed, id, &out[count]))
            count++;
    }
    *out_n = count;
}

static void add_items(hasher *hash, const row *packed, bool videos)
{
    const size_t each = videos ? VIDEO_PATCH_BYTES : PATCH_BYTES;
    for (int64_t i = 0; i < packed->n_items; i++) {
        const int32_t *grid = packed->grid_thw + 3 * i;
        if (packed->items[i].is_video == videos)
            hasher_add(hash, packed->items[i].patches,
                       (size_t)grid[0] * (size_t)grid[1] * (size_t)grid[2] * each);
    }
}

status row_digest(const row *packed, hash128 *out)
{
    hasher *hash = NULL;
    TRY(hasher_new(&hash));
    for (int id = 0; id < T_COUNT; id++) {
        st_tensor tensor;
        if (!view(packed, (tensor_id)id, &tensor))
            continue;
        const char *dtype = st_dtype_name(tensor.dtype);
        hasher_add_text(hash, tensor.name);
        hasher_add_text(hash, dtype);
        hasher_add_u64(hash, (uint64_t)tensor.n_dims);
        for (int dim = 0; dim < tensor.n_dims; dim++)
            hasher_add_u64(hash, (uint64_t)tensor.shape[dim]);
        if (packed->items && (id == T_PIXELS || id == T_PIXELS_VIDEO))
            add_items(hash, packed, id == T_PIXELS_VIDEO);
        else if (tensor.data.size > 0)
            hasher_add(hash, tensor.data.data, tensor.data.size);
    }
    *out = hasher_value(hash);
    hasher_free(&hash);
    return ST_OK;
}

/* Finds a tensor of the shape [length, columns], or [length] if it has one dimension. *out points
 * to its bytes; it is NULL if the tensor is optional and absent. */
static status take_tensor(const st_file *tensors, tensor_id id, const char *source, int64_t length,
                          int64_t columns, bool optional, void **out)
{
    const char *name = tensor_table[id].name;
    const st_tensor *tensor;
    *out = NULL;
    if (optional && !st_find(tensors, name))
        return ST_OK;
    TRY(st_want(tensors, name, tensor_table[id].dtype, tensor_table[id].n_dims, source, &tensor));
    if (tensor->shape[0] != length || (tensor->n_dims == 2 && tensor->shape[1] != columns))
        return FAIL_IN(ST_BAD_INPUT, source, "%s has shape [%lld, %lld], expected [%lld, %lld]",
                       name, (long long)tensor->shape[0],
                       (long long)(tensor->n_dims == 2 ? tensor->shape[1] : 1), (long long)length,
                       (long long)(tensor->n_dims == 2 ? columns : 1));
    if ((uintptr_t)tensor->data.data % st_dtype_size(tensor->dtype))
        return FAIL_IN(
            ST_BAD_INPUT, source,
            "%s is not aligned to its %zu-byte elements: sort the tensors by element size, "
            "largest first, and pad the header to a multiple of 8",
            name, st_dtype_size(tensor->dtype));
    *out = (void *)(uintptr_t)tensor->data.data;
    return ST_OK;
}

/* The first dimension of a tensor whose rows give a count; 0 if it is optional and absent. */
static status count_of(const st_file *tensors, tensor_id id, const char *source, bool optional,
                       int64_t *out)
{
    const st_tensor *tensor;
    *out = 0;
    if (optional && !st_find(tensors, tensor_table[id].name))
        return ST_OK;
    TRY(st_want(tensors, tensor_table[id].name, tensor_table[id].dtype, tensor_table[id].n_dims,
                source, &tensor));
    *out = tensor->shape[0];
    return ST_OK;
}

/* On the wire a block may hold nothing but the row's own tensors,
 * all of which the digest covers. */
static status refuse_others(const st_file *tensors, const char *source)
{
    for (size_t i = 0; i < tensors->n_tensors; i++) {
        int id = 0;
        while (id < T_COUNT && strcmp(tensors->tensors[i].name, tensor_table[id].name))
            id++;
        if (id == T_COUNT || id == T_PIXELS || id == T_PIXELS_VIDEO)
            return FAIL_IN(ST_BAD_INPUT, source,
                           "the row block has a tensor \"%s\", which no row has on the wire",
                           tensors->tensors[i].name);
    }
    return ST_OK;
}

status row_from_tensors(const st_file *tensors, const char *source, int with_pixels, row *out)
{
    row packed = {0};
    TRY(count_of(tensors, T_INPUT_IDS, source, false, &packed.n_tokens));
    TRY(count_of(tensors, T_DOC_SAMPLE_ID, source, false, &packed.n_docs));
    TRY(count_of(tensors, T_GRID_THW, source, false, &packed.n_items));
    if (with_pixels) {
        TRY(count_of(tensors, T_PIXELS, source, true, &packed.n_patches));
        TRY(count_of(tensors, T_PIXELS_VIDEO, source, true, &packed.n_video_patches));
    } else {
        TRY(refuse_others(tensors, source));
    }
    TRY(row_check_counts(&packed, source));

    int64_t n_tokens = packed.n_tokens;
    TRY(take_tensor(tensors, T_CU_SEQLENS, source, packed.n_docs + 1, 0, false,
                    (void **)&packed.cu_seqlens));
    TRY(take_tensor(tensors, T_DOC_PART, source, packed.n_docs, 0, false,
                    (void **)&packed.doc_part));
    TRY(take_tensor(tensors, T_DOC_PREFIX, source, packed.n_docs, 0, true,
                    (void **)&packed.doc_prefix));
    TRY(take_tensor(tensors, T_DOC_SAMPLE_ID, source, packed.n_docs, 0, false,
                    (void **)&packed.doc_sample_id));
    TRY(take_tensor(tensors, T_GRID_THW, source, packed.n_items, 3, false,
                    (void **)&packed.grid_thw));
    TRY(take_tensor(tensors, T_INPUT_IDS, source, n_tokens, 0, false, (void **)&packed.input_ids));
    TRY(take_tensor(tensors, T_LABELS, source, n_tokens, 0, false, (void **)&packed.labels));
    TRY(take_tensor(tensors, T_LOSS_WEIGHT, source, n_tokens, 0, true,
                    (void **)&packed.loss_weight));
    TRY(take_tensor(tensors, T_POSITION_IDS, source, 3, n_tokens, false,
                    (void **)&packed.position_ids));
    TRY(take_tensor(tensors, T_VISUAL_ROW, source, n_tokens, 0, false,
                    (void **)&packed.visual_row));
    if (with_pixels) {
        TRY(take_tensor(tensors, T_PIXELS, source, packed.n_patches, PATCH_BYTES, true,
                        (void **)&packed.pixels));
        TRY(take_tensor(tensors, T_PIXELS_VIDEO, source, packed.n_video_patches, VIDEO_PATCH_BYTES,
                        true, (void **)&packed.pixels_video));
        TRY(row_check(&packed, source));
    } else {
        /* A guess that codec.c corrects: only the image parts tell clips of one frame from
         * pictures. */
        TRY(row_check_grids(&packed, source));
        for (int64_t i = 0; i < packed.n_items; i++) {
            const int32_t *grid = packed.grid_thw + 3 * i;
            *(grid[0] > 1 ? &packed.n_video_patches : &packed.n_patches) +=
                (int64_t)grid[0] * grid[1] * grid[2];
        }
    }
    const char *cursor = st_meta_find(tensors, "cursor"),
               *quarantine = st_meta_find(tensors, "quarantine");
    packed.cursor = cursor ? cursor : "";
    packed.quarantine = quarantine ? quarantine : "";
    const char *references = st_meta_find(tensors, "references");
    packed.references = references ? references : "";
    packed.worker = "";
    *out = packed;
    return ST_OK;
}

size_t row_meta(const row *packed, st_meta out[ROW_META])
{
    size_t count = 0;
    if (packed->cursor && packed->cursor[0])
        out[count++] = (st_meta){"cursor", packed->cursor};
    if (packed->quarantine && packed->quarantine[0])
        out[count++] = (st_meta){"quarantine", packed->quarantine};
    if (packed->references && packed->references[0])
        out[count++] = (st_meta){"references", packed->references};
    return count;
}

status row_save(const row *packed, const char *path)
{
    st_tensor tensors[ROW_TENSORS];
    size_t count;
    st_meta meta[ROW_META];
    row_tensors(packed, 1, tensors, &count);
    return st_write(path, tensors, count, meta, row_meta(packed, meta));
}

status row_open(const char *path, st_file *file, row *out)
{
    st_file tensors;
    TRY(st_open(path, &tensors));
    status st = row_from_tensors(&tensors, path, 1, out);
    if (st != ST_OK) {
        st_close(&tensors);
        return st;
    }
    *file = tensors;
    return ST_OK;
}
