/* SPDX-License-Identifier: Apache-2.0 */
/* batch.c: allocates a packed row, computes its digest, and converts it to and from safetensors.
 * The checks are in batch_check.c. */
#include "proto/row/batch.h"

#include <stddef.h>
#include <string.h>

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

/* Where a tensor is in a row, and its shape: [count + more], or [count, columns]. */
typedef struct tensor_form {
    const char *name;
    st_dtype dtype;
    int n_dims;
    size_t data, count; /* offsets of its pointer and of its count in struct row */
    int64_t more, columns;
    bool optional; /* a file may lack it */
} tensor_form;

#define IN_ROW(data, count) offsetof(row, data), offsetof(row, count)
static const tensor_form forms[T_COUNT] = {
    [T_CU_SEQLENS] = {"cu_seqlens", DT_I32, 1, IN_ROW(cu_seqlens, n_docs), 1, 0, false},
    [T_DOC_PART] = {"doc_part", DT_I32, 1, IN_ROW(doc_part, n_docs), 0, 0, false},
    [T_DOC_PREFIX] = {"doc_prefix", DT_I32, 1, IN_ROW(doc_prefix, n_docs), 0, 0, true},
    [T_DOC_SAMPLE_ID] = {"doc_sample_id", DT_U64, 1, IN_ROW(doc_sample_id, n_docs), 0, 0, false},
    [T_GRID_THW] = {"grid_thw", DT_I32, 2, IN_ROW(grid_thw, n_items), 0, 3, false},
    [T_INPUT_IDS] = {"input_ids", DT_I32, 1, IN_ROW(input_ids, n_tokens), 0, 0, false},
    [T_LABELS] = {"labels", DT_I32, 1, IN_ROW(labels, n_tokens), 0, 0, false},
    [T_LOSS_WEIGHT] = {"loss_weight", DT_F32, 1, IN_ROW(loss_weight, n_tokens), 0, 0, true},
    [T_PIXELS] = {"pixels", DT_U8, 2, IN_ROW(pixels, n_patches), 0, PATCH_BYTES, true},
    [T_PIXELS_VIDEO] = {"pixels_video", DT_U8, 2, IN_ROW(pixels_video, n_video_patches), 0,
                        VIDEO_PATCH_BYTES, true},
    [T_POSITION_IDS] = {"position_ids", DT_I32, 2, IN_ROW(position_ids, n_tokens), 0, 0, false},
    [T_VISUAL_ROW] = {"visual_row", DT_I32, 1, IN_ROW(visual_row, n_tokens), 0, 0, false},
};

static void shape_of(const row *packed, tensor_id id, int64_t out[2])
{
    int64_t count;
    memcpy(&count, (const char *)packed + forms[id].count, sizeof count);
    out[0] = id == T_POSITION_IDS ? 3 : count + forms[id].more;
    out[1] = id == T_POSITION_IDS ? count : forms[id].columns;
}

static size_t elements_of(const int64_t shape[2], int n_dims)
{
    return (size_t)shape[0] * (n_dims == 2 ? (size_t)shape[1] : 1);
}

static void set_data(row *packed, tensor_id id, const void *data)
{
    memcpy((char *)packed + forms[id].data, &data, sizeof data);
}

/* Whether row_alloc allocates this tensor. */
static bool is_wanted(const row *packed, tensor_id id, unsigned optional)
{
    switch (id) {
    case T_PIXELS:
        return !packed->items;
    case T_PIXELS_VIDEO:
        return !packed->items && packed->n_video_patches > 0;
    case T_LOSS_WEIGHT:
        return optional & ROW_WEIGHTS;
    case T_DOC_PREFIX:
        return optional & ROW_PREFIXES;
    default:
        return true;
    }
}

status row_alloc(row *packed, arena *memory, unsigned optional)
{
    row next = *packed;
    for (int id = 0; id < T_COUNT; id++) {
        int64_t shape[2];
        void *data = NULL;
        shape_of(packed, (tensor_id)id, shape);
        if (is_wanted(packed, (tensor_id)id, optional))
            TRY(arena_calloc(memory, elements_of(shape, forms[id].n_dims),
                             st_dtype_size(forms[id].dtype), &data));
        set_data(&next, (tensor_id)id, data);
    }
    for (int64_t doc = 0; doc < next.n_docs && next.doc_prefix; doc++)
        next.doc_prefix[doc] = -1;
    for (int64_t token = 0; token < next.n_tokens; token++) {
        next.labels[token] = NO_LABEL;
        next.visual_row[token] = -1;
    }
    next.cursor = next.quarantine = next.references = next.worker = "";
    *packed = next;
    return ST_OK;
}

/* Every row of a stream is counted, and of a row of texts that would be most of what its tag costs,
 * so several labels are compared at a time. */
int64_t row_count_targets(const row *packed, int64_t doc, int64_t end)
{
    typedef int32_t lanes __attribute__((vector_size(16)));
    enum { LANES = sizeof(lanes) / sizeof(int32_t) };
    const int32_t *at = packed->labels + packed->cu_seqlens[doc],
                  *last = packed->labels + packed->cu_seqlens[end];
    lanes even = {0}, odd = {0}, one, other; /* a lane that counts is -1 */
    int64_t count = 0;
    for (; last - at >= 2 * LANES; at += 2 * LANES) {
        memcpy(&one, at, sizeof one);
        memcpy(&other, at + LANES, sizeof other);
        even += one != NO_LABEL;
        odd += other != NO_LABEL;
    }
    for (; at < last; at++)
        count += *at != NO_LABEL;
    for (int lane = 0; lane < LANES; lane++)
        count -= even[lane] + odd[lane];
    return count;
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
    const void *data;
    st_tensor tensor = {
        .name = forms[id].name, .dtype = forms[id].dtype, .n_dims = forms[id].n_dims};
    memcpy(&data, (const char *)packed + forms[id].data, sizeof data);
    shape_of(packed, id, tensor.shape);
    if (((id == T_LOSS_WEIGHT || id == T_DOC_PREFIX) && !data) ||
        (id == T_PIXELS_VIDEO && tensor.shape[0] == 0))
        return false;
    tensor.data =
        span_of(data, elements_of(tensor.shape, tensor.n_dims) * st_dtype_size(tensor.dtype));
    *out = tensor;
    return true;
}

void row_tensors(const row *packed, int with_pixels, st_tensor out[ROW_TENSORS], size_t *out_n)
{
    size_t count = 0;
    for (size_t bytes = sizeof(uint64_t); bytes > 0; bytes /= 2)
        for (int id = 0; id < T_COUNT; id++)
            if (st_dtype_size(forms[id].dtype) == bytes &&
                (with_pixels || (id != T_PIXELS && id != T_PIXELS_VIDEO)) &&
                view(packed, (tensor_id)id, &out[count]))
                count++;
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

/* Takes a tensor of the row, whose counts are set. It stays NULL if it is optional and absent. */
static status take_tensor(const st_file *tensors, tensor_id id, const char *source, row *inout)
{
    const char *name = forms[id].name;
    const st_tensor *tensor;
    int64_t shape[2];
    if (forms[id].optional && !st_find(tensors, name))
        return ST_OK;
    TRY(st_want(tensors, name, forms[id].dtype, forms[id].n_dims, source, &tensor));
    shape_of(inout, id, shape);
    if (tensor->shape[0] != shape[0] || (tensor->n_dims == 2 && tensor->shape[1] != shape[1]))
        return FAIL_IN(ST_BAD_INPUT, source, "%s has shape [%lld, %lld], expected [%lld, %lld]",
                       name, (long long)tensor->shape[0],
                       (long long)(tensor->n_dims == 2 ? tensor->shape[1] : 1), (long long)shape[0],
                       (long long)(tensor->n_dims == 2 ? shape[1] : 1));
    if ((uintptr_t)tensor->data.data % st_dtype_size(tensor->dtype))
        return FAIL_IN(
            ST_BAD_INPUT, source,
            "%s is not aligned to its %zu-byte elements: sort the tensors by element size, "
            "largest first, and pad the header to a multiple of 8",
            name, st_dtype_size(tensor->dtype));
    set_data(inout, id, tensor->data.data);
    return ST_OK;
}

/* The first dimension of a tensor whose rows give a count; 0 if it is optional and absent. */
static status count_of(const st_file *tensors, tensor_id id, const char *source, int64_t *out)
{
    const st_tensor *tensor;
    *out = 0;
    if (forms[id].optional && !st_find(tensors, forms[id].name))
        return ST_OK;
    TRY(st_want(tensors, forms[id].name, forms[id].dtype, forms[id].n_dims, source, &tensor));
    *out = tensor->shape[0];
    return ST_OK;
}

/* On the wire a block may hold nothing but the row's own tensors,
 * all of which the digest covers. */
static status refuse_others(const st_file *tensors, const char *source)
{
    for (size_t i = 0; i < tensors->n_tensors; i++) {
        int id = 0;
        while (id < T_COUNT && strcmp(tensors->tensors[i].name, forms[id].name))
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
    TRY(count_of(tensors, T_INPUT_IDS, source, &packed.n_tokens));
    TRY(count_of(tensors, T_DOC_SAMPLE_ID, source, &packed.n_docs));
    TRY(count_of(tensors, T_GRID_THW, source, &packed.n_items));
    if (with_pixels) {
        TRY(count_of(tensors, T_PIXELS, source, &packed.n_patches));
        TRY(count_of(tensors, T_PIXELS_VIDEO, source, &packed.n_video_patches));
    } else {
        TRY(refuse_others(tensors, source));
    }
    TRY(row_check_counts(&packed, source));

    for (int id = 0; id < T_COUNT; id++)
        if (with_pixels || (id != T_PIXELS && id != T_PIXELS_VIDEO))
            TRY(take_tensor(tensors, (tensor_id)id, source, &packed));
    if (with_pixels) {
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
