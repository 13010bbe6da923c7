/* hf_load.c: see hf_load.h. Files are mapped into memory and read tensor by tensor; of each, a rank
 * takes the elements that it stores. Values go through double, which holds all accepted dtypes
 * exactly. Experts are stored as [in, out] in the registry, so the layouts with [out, in] are
 * transposed one expert at a time. */
#include "trainer/checkpoint/hf_load.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/checkpoint/hf_check.h"
#include "trainer/model/convert.h"

enum { CHUNK = 1 << 18 /* values moved at once */ };

typedef struct load_buffers {
    double *matrix;   /* [CHUNK], or [in, out] of one expert as this rank holds it */
    double *row;      /* [in] */
    int64_t *bytes;   /* counts the bytes taken from the files */
    bool counts_only; /* values are not read, because the device has no storage for them */
} load_buffers;

/* Reads n values of a tensor from element `first` on. */
static void read_elements(const st_tensor *tensor, int64_t first, int64_t n, double *to,
                          const load_buffers *b)
{
    const int64_t size = (int64_t)st_dtype_size(tensor->dtype);
    *b->bytes += n * size;
    if (!b->counts_only)
        convert_to_double(to, tensor->data.data + first * size, tensor->dtype, n);
}

/* Drops the elements [first, end) from memory, so that a file larger than memory can be read. */
static void forget_rows(const st_tensor *t, int64_t first, int64_t end)
{
    size_t size = st_dtype_size(t->dtype);
    st_forget(span_of(t->data.data + (size_t)first * size, (size_t)(end - first) * size));
}

static status load_as_held(const param *p, stream *s, const st_tensor *tensor, load_buffers b)
{
    const int64_t end = p->own_first + p->own_n;
    for (int64_t at = p->own_first; at < end; at += CHUNK) {
        int64_t n = end - at < CHUNK ? end - at : CHUNK;
        int64_t begin = -1, stored = 0, run = 0;
        for (int64_t i = 0; i < n; i += run) {
            run = slice_run(&p->held, at + i, n - i, &stored);
            read_elements(tensor, stored, run, b.matrix + i, &b);
            begin = begin < 0 ? stored : begin;
        }
        forget_rows(tensor, begin, stored + run);
        TRY(params_write(p, s, at, n, b.matrix));
    }
    return ST_OK;
}

/* The tensor has, from element `first` on, the rows [rows, in], which are the columns [column,
 * column + rows) of one expert's matrix [in, out]. Puts those that this rank holds into
 * b.matrix. */
static void take_columns(const param *p, const st_tensor *tensor, int64_t first, int64_t column,
                         int64_t rows, load_buffers b)
{
    const slice *box = &p->held; /* [E, in, parts, out / parts] */
    int64_t stored_in = box->size[1], in = box->count[1], out = p->local[2], begin = -1, end = 0;
    for (int64_t j = 0; j < out; j++) {
        int64_t from =
            j / box->count[3] * box->size[3] + box->first[3] + j % box->count[3] - column;
        if (from < 0 || from >= rows)
            continue;
        int64_t at = first + from * stored_in + box->first[1];
        read_elements(tensor, at, in, b.row, &b);
        for (int64_t i = 0; i < in && !b.counts_only; i++)
            b.matrix[i * out + j] = b.row[i];
        begin = begin < 0 ? at : begin;
        end = at + in;
    }
    if (begin >= 0)
        forget_rows(tensor, begin, end);
}

/* Whether this rank stores some of an expert, numbered over the whole tensor. */
static bool stores_expert(const param *p, int64_t expert)
{
    int64_t size = p->local[1] * p->local[2], at = (expert - p->held.first[0]) * size;
    return at >= 0 && at < p->own_first + p->own_n && at + size > p->own_first;
}

static status put_expert(const param *p, stream *s, int64_t expert, load_buffers b)
{
    int64_t size = p->local[1] * p->local[2];
    return params_write(p, s, (expert - p->held.first[0]) * size, size, b.matrix);
}

/* Loads one fused tensor [E, out, in]. */
static status load_exchanged(const param *p, stream *s, const st_tensor *tensor, load_buffers b)
{
    int64_t in = p->shape[1], out = p->shape[2], first = p->held.first[0];
    for (int64_t e = first; e < first + p->held.count[0]; e++) {
        if (!stores_expert(p, e))
            continue;
        take_columns(p, tensor, e * in * out, 0, out, b);
        TRY(put_expert(p, s, e, b));
    }
    return ST_OK;
}

/* Loads the pieces [n] of one parameter: one matrix per expert, in order, gate before up. */
static status load_experts(const hf_folder *folder, const param_piece *piece, int64_t n, stream *s,
                           load_buffers b)
{
    const param *p = piece->weight;
    for (int64_t i = 0; i < n; i++) {
        if (!stores_expert(p, piece[i].expert))
            continue;
        take_columns(p, hf_folder_find(folder, piece[i].name), 0, piece[i].column,
                     piece[i].shape[0], b);
        if (piece[i].column + piece[i].shape[0] == p->shape[2])
            TRY(put_expert(p, s, piece[i].expert, b));
    }
    return ST_OK;
}

static status load_all(const hf_folder *folder, const param_piece *pieces, int64_t n, stream *s,
                       int64_t *inout_bytes)
{
    int64_t largest = CHUNK, longest = 1;
    for (int64_t i = 0; i < n; i++) {
        const param *p = pieces[i].weight;
        if (p->group != GROUP_EXPERTS)
            continue;
        largest = p->local[1] * p->local[2] > largest ? p->local[1] * p->local[2] : largest;
        longest = p->local[1] > longest ? p->local[1] : longest;
    }
    load_buffers b = {malloc((size_t)largest * sizeof(double)),
                      malloc((size_t)longest * sizeof(double)), inout_bytes,
                      !device_has_storage(s->dev)};
    status st = b.matrix && b.row ? ST_OK : FAIL(ST_NO_MEMORY, "no memory to load weights");
    for (int64_t i = 0, run = 1; i < n && st == ST_OK; i += run) {
        const param *p = pieces[i].weight;
        for (run = 1; i + run < n && pieces[i + run].weight == p;)
            run++;
        if (pieces[i].expert >= 0)
            st = load_experts(folder, &pieces[i], run, s, b);
        else if (pieces[i].exchanged)
            st = load_exchanged(p, s, hf_folder_find(folder, pieces[i].name), b);
        else
            st = load_as_held(p, s, hf_folder_find(folder, pieces[i].name), b);
    }
    free(b.matrix);
    free(b.row);
    return st;
}

status hf_load(params *registry, stream *s, const char *folder)
{
    hf_folder f = {0};
    hf_report report = {0};
    param_piece *pieces = NULL;
    int64_t n = 0;
    TRY(hf_folder_open(folder, &f));
    status st;
    TRY_OR(done, hf_check(&f, registry, &report));
    TRY_OR(done, hf_report_status(&report, folder));
    TRY_OR(done, params_pieces(registry, report.layout, &pieces, &n));
    st = load_all(&f, pieces, n, s, &registry->bytes_read);
done:
    free(pieces);
    hf_report_done(&report);
    hf_folder_close(&f);
    return st;
}
