/* SPDX-License-Identifier: Apache-2.0 */
/* hf_slices.c: see hf_plan.h. A rank walks over the elements that it stores of a tensor, in
 * chunks, and writes each run that is also consecutive in the file with one pwrite. For layouts in
 * which an expert's matrix is transposed, it writes the rank's part of each column instead. */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trainer/checkpoint/hf/hf_plan.h"
#include "common/base/file.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/model/dims/convert.h"
#include "trainer/model/params/lora_params.h"

enum { CHUNK = 1 << 18 /* values moved at once, but of a matrix that is transposed */ };

/* A tensor's place in an open file. */
typedef struct target {
    const char *path;
    int fd;
    off_t at; /* where its first byte is */
    st_dtype dtype;
    const uint8_t *source; /* the tensor's bytes in the source's file, or NULL (hf_item) */
    bool copies;           /* these are written as they are: no adapter is added */
    bool alone;            /* this rank writes all of it, also what is left in the source's files */
    int64_t *bytes;        /* counts the bytes of values */
} target;

typedef struct buffers {
    double *values; /* [CHUNK], or one expert's matrix if that is more, in the rank's own order */
    double *column; /* [CHUNK] one column of them; the next two likewise */
    double *source; /* of the source's file */
    void *bytes;    /* in the file's dtype */
} buffers;

static status put_bytes(const target *place, const void *data, size_t size, off_t at)
{
    const char *from = data;
    while (size > 0) {
        ssize_t sent = pwrite(place->fd, from, size, at);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent == 0)
            errno = ENOSPC;
        if (sent <= 0)
            return FAIL_IN(ST_IO, place->path, "%s", strerror(errno));
        from += sent;
        at += sent;
        size -= (size_t)sent;
    }
    return ST_OK;
}

static void add_values(const uint8_t *bytes, st_dtype dtype, int64_t count, double *inout,
                       double *room)
{
    convert_to_double(room, bytes, dtype, count);
    for (int64_t i = 0; i < count; i++)
        inout[i] += room[i];
}

/* Writes `count` values at element `stored` of the tensor: `from`, the source's, or their sum. */
static status put_values(const target *place, int64_t stored, int64_t count, double *from,
                         const buffers *rooms)
{
    size_t size = st_dtype_size(place->dtype);
    *place->bytes += count * (int64_t)size;
    const uint8_t *source = place->source ? place->source + (size_t)stored * size : NULL;
    if (source && !place->copies)
        add_values(source, place->dtype, count, from, rooms->source);
    if (!place->copies)
        convert_from_double(rooms->bytes, place->dtype, from, count);
    return put_bytes(place, place->copies ? source : rooms->bytes, (size_t)count * size,
                     place->at + (off_t)((size_t)stored * size));
}

/* Writes the local elements [first, first + count) of a tensor that is stored in its own order. */
static status put_runs(const param *weight, const target *file, int64_t first, int64_t count,
                       const buffers *rooms)
{
    for (int64_t i = 0, run, stored; i < count; i += run) {
        run = slice_run(&weight->held, first + i, count - i, &stored);
        TRY(put_values(file, stored, run, rooms->values + i, rooms));
    }
    return ST_OK;
}

/* The columns [column, column + rows) of one expert's matrix [in, out], which the file has as rows
 * [rows, in]. */
typedef struct transposed {
    int64_t expert, column, rows;
    int64_t first; /* the element of the tensor with which the first of these rows begins */
} transposed;

/* Of the local elements [first, first + count), which are all of one expert, writes those in the
 * columns of `matrix`. Column j of the local matrix has the elements begin <= i * out + j < end, so
 * i runs from ceil((begin - j) / out) to ceil((end - j) / out). */
static status put_columns(const param *weight, const target *file, const transposed *matrix,
                          int64_t first, int64_t count, const buffers *rooms)
{
    const slice *box = &weight->held; /* [E, in, parts, out / parts] */
    const int64_t out = weight->local[2], in = box->size[1];
    const int64_t begin = first % (weight->local[1] * out), end = begin + count;
    for (int64_t j = 0; j < out; j++) {
        int64_t column =
            j / box->count[3] * box->size[3] + box->first[3] + j % box->count[3] - matrix->column;
        int64_t low = (begin - j + out - 1) / out, high = (end - j + out - 1) / out;
        if (column < 0 || column >= matrix->rows || high <= low)
            continue;
        for (int64_t i = low; i < high && !file->copies; i++)
            rooms->column[i - low] = rooms->values[i * out + j - begin];
        TRY(put_values(file, matrix->first + column * in + box->first[1] + low, high - low,
                       rooms->column, rooms));
    }
    return ST_OK;
}

/* Reads a matrix with its adapter, or what the adapter adds to the source. */
static status read_values(const param *weight, const target *file, stream *queue, int64_t first,
                          int64_t count, double *to)
{
    if (!file->source)
        return lora_read_merged(weight, queue, first, count, to);
    memset(to, 0, (size_t)count * sizeof *to);
    return lora_merge(weight, queue, first, count, to);
}

/* Writes what this rank has to write of one piece. */
static status put_piece(const param_piece *piece, const target *file, stream *queue,
                        const buffers *rooms)
{
    const param *weight = piece->weight;
    const int64_t start = file->alone ? 0 : weight->own_first,
                  end = file->alone ? weight->n_local : start + weight->own_n,
                  matrix = weight->local[1] * weight->local[2];
    const bool transposes = piece->exchanged || piece->expert >= 0;
    for (int64_t at = start, i; at < end; at += i) {
        const int64_t most = transposes ? matrix - at % matrix : CHUNK; /* one expert at a time */
        i = end - at < most ? end - at : most;
        int64_t expert = transposes ? weight->held.first[0] + at / matrix : 0;
        if (piece->expert >= 0 && piece->expert != expert)
            continue;
        if (!file->copies)
            TRY(read_values(weight, file, queue, at, i, rooms->values));
        if (!transposes) {
            TRY(put_runs(weight, file, at, i, rooms));
            continue;
        }
        transposed turned = {.expert = expert, .column = piece->column, .rows = piece->shape[0]};
        if (piece->exchanged)
            turned = (transposed){.expert = expert,
                                  .rows = weight->shape[2],
                                  .first = expert * weight->shape[1] * weight->shape[2]};
        TRY(put_columns(weight, file, &turned, at, i, rooms));
    }
    return ST_OK;
}

/* *out: the header of a safetensors file of items [count], in heap memory. */
static status make_header(const hf_item *items, int64_t count, uint8_t **out, size_t *out_size)
{
    static const st_meta meta = {"format", "pt"}; /* transformers refuses a file without it */
    st_tensor *list = calloc((size_t)(count > 0 ? count : 1), sizeof *list);
    if (!list)
        return FAIL(ST_NO_MEMORY, "no memory for %lld tensors", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        const param_piece *piece = &items[i].piece;
        list[i] =
            (st_tensor){.name = piece->name, .dtype = items[i].dtype, .n_dims = piece->n_dims};
        memcpy(list[i].shape, piece->shape, (size_t)piece->n_dims * sizeof(int64_t));
        list[i].data.size = (size_t)piece->count * st_dtype_size(items[i].dtype);
    }
    status st = st_header(list, (size_t)count, &meta, 1, out, out_size);
    free(list);
    return st;
}

static status put_file(const hf_item *items, int64_t count, const char *path, hf_part own,
                       stream *queue, const buffers *rooms, int64_t *inout_bytes)
{
    uint8_t *header = NULL;
    size_t size = 0;
    target file = {.path = path, .alone = own.alone, .bytes = inout_bytes};
    TRY(make_header(items, count, &header, &size));
    off_t end = (off_t)size;
    for (int64_t i = 0; i < count; i++)
        end += (off_t)(items[i].piece.count * (int64_t)st_dtype_size(items[i].dtype));
    status st = ST_OK;
    file.fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (own.alone ? O_TRUNC : 0), 0666);
    if (file.fd < 0) {
        free(header);
        return FAIL_IN(ST_CANT_CREATE, path, "%s", strerror(errno));
    }
    if (ftruncate(file.fd, end) != 0)
        st = FAIL_IN(ST_IO, path, "ftruncate: %s", strerror(errno));
    if (st == ST_OK && own.with_header)
        st = put_bytes(&file, header, size, 0);
    file.at = (off_t)size;
    for (int64_t i = 0; i < count && st == ST_OK; i++) {
        file.dtype = items[i].dtype;
        file.source = items[i].source;
        file.copies = file.source && !items[i].piece.weight->lora;
        st = put_piece(&items[i].piece, &file, queue, rooms);
        const size_t bytes = (size_t)items[i].piece.count * st_dtype_size(file.dtype);
        if (file.source)
            st_forget(span_of(file.source, bytes)); /* a base may be larger than memory */
        file.at += (off_t)bytes;
    }
    if (st == ST_OK && fsync(file.fd) != 0)
        st = FAIL_IN(ST_IO, path, "fsync: %s", strerror(errno));
    if (close(file.fd) != 0 && st == ST_OK)
        st = FAIL_IN(ST_IO, path, "%s", strerror(errno));
    free(header);
    return st;
}

/* Writes a file under another name and renames it when it is whole. */
static status put_alone(const hf_item *items, int64_t count, const char *path, hf_part own,
                        stream *queue, const buffers *rooms, int64_t *inout_bytes)
{
    char temp[STATUS_PATH_MAX + 8];
    snprintf(temp, sizeof temp, "%s.tmp", path);
    status st = put_file(items, count, temp, own, queue, rooms, inout_bytes);
    if (st == ST_OK && rename(temp, path) != 0)
        st = FAIL_IN(ST_IO, path, "rename: %s", strerror(errno));
    if (st != ST_OK)
        unlink(temp);
    return st == ST_OK ? file_sync_parent(path) : st;
}

/* Values of the largest matrix that is transposed, on this rank. */
static int64_t largest_matrix(const hf_plan *plan)
{
    int64_t largest = 0;
    for (int64_t i = 0; i < plan->count; i++) {
        const param_piece *piece = &plan->items[i].piece;
        const int64_t matrix = piece->weight->local[1] * piece->weight->local[2];
        if ((piece->exchanged || piece->expert >= 0) && matrix > largest)
            largest = matrix;
    }
    return largest;
}

status hf_write_slices(const hf_plan *plan, const char *folder, hf_part own, stream *queue,
                       int64_t *out_bytes)
{
    const int64_t largest = largest_matrix(plan);
    const size_t room = sizeof(double) * (size_t)(largest > CHUNK ? largest : CHUNK);
    int64_t bytes = 0;
    buffers rooms = {malloc(room), malloc(CHUNK * sizeof(double)), malloc(CHUNK * sizeof(double)),
                     malloc(CHUNK * sizeof(double))};
    status st = rooms.values && rooms.column && rooms.source && rooms.bytes
                    ? ST_OK
                    : FAIL(ST_NO_MEMORY, "no memory to write weights");
    for (int64_t file = 0, first = 0, i; file < plan->n_files && st == ST_OK; file++, first += i) {
        char path[STATUS_PATH_MAX];
        for (i = 0; first + i < plan->count && plan->items[first + i].file == file;)
            i++;
        st = hf_path(path, folder, plan->files[file]);
        if (st == ST_OK)
            st = (own.alone ? put_alone : put_file)(plan->items + first, i, path, own, queue,
                                                    &rooms, &bytes);
    }
    free(rooms.values);
    free(rooms.column);
    free(rooms.source);
    free(rooms.bytes);
    if (out_bytes)
        *out_bytes = bytes;
    return st;
}
