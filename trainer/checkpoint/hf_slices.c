/* hf_slices.c: see hf_slices.h. A rank walks over the elements that it stores of a tensor, in
 * chunks, and writes each run that is also consecutive in the file with one pwrite. For layouts in
 * which an expert's matrix is transposed, it writes the rank's part of each column instead. */
#include "trainer/checkpoint/hf_slices.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trainer/model/convert.h"
#include "trainer/model/lora_params.h"

enum { CHUNK = 1 << 18 /* values moved at once */ };

/* A tensor's place in an open file. */
typedef struct target {
    const char *path;
    int fd;
    off_t at; /* where its first byte is */
    st_dtype dtype;
    bool counts_only; /* the device has no values, and the file keeps a hole there */
    int64_t *bytes;   /* counts the bytes of values */
} target;

typedef struct buffers {
    double *values; /* [CHUNK] in the rank's own order */
    double *column; /* [CHUNK] one column of them */
    void *bytes;    /* [CHUNK] in the file's dtype */
} buffers;

static status put_bytes(const target *t, const void *data, size_t size, off_t at)
{
    const char *from = data;
    while (size > 0) {
        ssize_t n = pwrite(t->fd, from, size, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = ENOSPC;
        if (n <= 0)
            return FAIL_IN(ST_IO, t->path, "%s", strerror(errno));
        from += n;
        at += n;
        size -= (size_t)n;
    }
    return ST_OK;
}

/* Writes n values at element `stored` of the tensor. */
static status put_values(const target *t, int64_t stored, int64_t n, const double *from,
                         void *bytes)
{
    size_t size = st_dtype_size(t->dtype);
    *t->bytes += n * (int64_t)size;
    if (t->counts_only)
        return ST_OK;
    convert_from_double(bytes, t->dtype, from, n);
    return put_bytes(t, bytes, (size_t)n * size, t->at + (off_t)((size_t)stored * size));
}

/* Writes the local elements [first, first + n) of a tensor that is stored in its own order. */
static status put_runs(const param *p, const target *file, int64_t first, int64_t n,
                       const buffers *b)
{
    for (int64_t i = 0, run, stored; i < n; i += run) {
        run = slice_run(&p->held, first + i, n - i, &stored);
        TRY(put_values(file, stored, run, b->values + i, b->bytes));
    }
    return ST_OK;
}

/* The columns [column, column + rows) of one expert's matrix [in, out], which the file has as rows
 * [rows, in]. */
typedef struct transposed {
    int64_t expert, column, rows;
    int64_t first; /* the element of the tensor with which the first of these rows begins */
} transposed;

/* Of the local elements [first, first + n), which are all of one expert, writes those in the
 * columns of `matrix`. Column j of the local matrix has the elements begin <= i * out + j < end, so
 * i runs from ceil((begin - j) / out) to ceil((end - j) / out). */
static status put_columns(const param *p, const target *file, const transposed *matrix,
                          int64_t first, int64_t n, const buffers *b)
{
    const slice *box = &p->held; /* [E, in, parts, out / parts] */
    const int64_t out = p->local[2], in = box->size[1];
    const int64_t begin = first % (p->local[1] * out), end = begin + n;
    for (int64_t j = 0; j < out; j++) {
        int64_t column =
            j / box->count[3] * box->size[3] + box->first[3] + j % box->count[3] - matrix->column;
        int64_t low = (begin - j + out - 1) / out, high = (end - j + out - 1) / out;
        if (column < 0 || column >= matrix->rows || high <= low)
            continue;
        for (int64_t i = low; i < high && !file->counts_only; i++)
            b->column[i - low] = b->values[i * out + j - begin];
        TRY(put_values(file, matrix->first + column * in + box->first[1] + low, high - low,
                       b->column, b->bytes));
    }
    return ST_OK;
}

/* Writes all that this rank stores of one piece. */
static status put_piece(const param_piece *piece, const target *file, stream *s, const buffers *b)
{
    const param *p = piece->weight;
    const int64_t end = p->own_first + p->own_n, matrix = p->local[1] * p->local[2];
    const bool transposes = piece->exchanged || piece->expert >= 0;
    for (int64_t at = p->own_first, n; at < end; at += n) {
        n = end - at < CHUNK ? end - at : CHUNK;
        if (transposes && n > matrix - at % matrix) /* one expert at a time */
            n = matrix - at % matrix;
        int64_t expert = transposes ? p->held.first[0] + at / matrix : 0;
        if (piece->expert >= 0 && piece->expert != expert)
            continue;
        if (!file->counts_only)
            TRY(lora_read_merged(p, s, at, n, b->values));
        if (!transposes) {
            TRY(put_runs(p, file, at, n, b));
            continue;
        }
        transposed m = {.expert = expert, .column = piece->column, .rows = piece->shape[0]};
        if (piece->exchanged)
            m = (transposed){
                .expert = expert, .rows = p->shape[2], .first = expert * p->shape[1] * p->shape[2]};
        TRY(put_columns(p, file, &m, at, n, b));
    }
    return ST_OK;
}

static status put_file(const hf_item *items, int64_t n, const char *path, bool with_header,
                       stream *s, const buffers *b, int64_t *inout_bytes)
{
    uint8_t *header = NULL;
    size_t size = 0;
    target file = {.path = path, .counts_only = !device_has_storage(s->dev), .bytes = inout_bytes};
    TRY(hf_header(items, n, &header, &size));
    off_t end = (off_t)size;
    for (int64_t i = 0; i < n; i++)
        end += (off_t)(items[i].piece.count * (int64_t)st_dtype_size(items[i].dtype));
    status st = ST_OK;
    file.fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (file.fd < 0) {
        free(header);
        return FAIL_IN(ST_CANT_CREATE, path, "%s", strerror(errno));
    }
    if (ftruncate(file.fd, end) != 0)
        st = FAIL_IN(ST_IO, path, "ftruncate: %s", strerror(errno));
    if (st == ST_OK && with_header)
        st = put_bytes(&file, header, size, 0);
    file.at = (off_t)size;
    for (int64_t i = 0; i < n && st == ST_OK; i++) {
        file.dtype = items[i].dtype;
        st = put_piece(&items[i].piece, &file, s, b);
        file.at += (off_t)(items[i].piece.count * (int64_t)st_dtype_size(file.dtype));
    }
    if (st == ST_OK && !file.counts_only && fsync(file.fd) != 0)
        st = FAIL_IN(ST_IO, path, "fsync: %s", strerror(errno));
    if (close(file.fd) != 0 && st == ST_OK)
        st = FAIL_IN(ST_IO, path, "%s", strerror(errno));
    free(header);
    return st;
}

status hf_write_slices(const hf_plan *plan, const char *folder, bool with_headers, stream *s,
                       int64_t *out_bytes)
{
    int64_t bytes = 0;
    buffers b = {malloc(CHUNK * sizeof(double)), malloc(CHUNK * sizeof(double)),
                 malloc(CHUNK * sizeof(double))};
    status st =
        b.values && b.column && b.bytes ? ST_OK : FAIL(ST_NO_MEMORY, "no memory to write weights");
    for (int64_t file = 0, first = 0, n; file < plan->n_files && st == ST_OK; file++, first += n) {
        char path[STATUS_PATH_MAX];
        for (n = 0; first + n < plan->count && plan->items[first + n].file == file;)
            n++;
        st = hf_path(path, folder, plan->files[file]);
        if (st == ST_OK)
            st = put_file(plan->items + first, n, path, with_headers, s, &b, &bytes);
    }
    free(b.values);
    free(b.column);
    free(b.bytes);
    if (out_bytes)
        *out_bytes = bytes;
    return st;
}
