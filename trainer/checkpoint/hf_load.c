/* hf_load.c: see hf_load.h. */
#include "trainer/checkpoint/hf_load.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/checkpoint/hf_check.h"
#include "trainer/model/convert.h"

enum { CHUNK = 1 << 18 /* values moved at once */ };

/* n values of t from element `first` on */
static void take(const st_tensor *t, int64_t first, int64_t n, double *to)
{
    size_t size = st_dtype_size(t->dtype);
    span part = span_of(t->data.data + (size_t)first * size, (size_t)n * size);
    convert_to_double(to, part.data, t->dtype, n);
    st_forget(part); /* so that a file larger than memory passes through a little of it */
}

static status load_whole(const param *p, stream *s, const st_tensor *t, double *buffer)
{
    for (int64_t at = 0; at < p->count; at += CHUNK) {
        int64_t n = p->count - at < CHUNK ? p->count - at : CHUNK;
        take(t, at, n, buffer);
        TRY(params_write(p, s, at, n, buffer));
    }
    return ST_OK;
}

/* to [in, out], columns [column, column + rows) = the transpose of from [rows, in] */
static void put_transposed(double *to, int64_t in, int64_t out, int64_t column, int64_t rows,
                           const double *from)
{
    for (int64_t i = 0; i < in; i++)
        for (int64_t j = 0; j < rows; j++)
            to[i * out + column + j] = from[j * in + i];
}

typedef struct expert_buffers {
    double *matrix, *stored; /* [in, out] of one expert, and as stored */
} expert_buffers;

/* One fused tensor [E, out, in]. */
static status load_exchanged(const param *p, stream *s, const st_tensor *t, expert_buffers b)
{
    int64_t in = p->shape[1], out = p->shape[2];
    for (int64_t e = 0; e < p->shape[0]; e++) {
        take(t, e * in * out, in * out, b.stored);
        put_transposed(b.matrix, in, out, 0, out, b.stored);
        TRY(params_write(p, s, e * in * out, in * out, b.matrix));
    }
    return ST_OK;
}

/* The pieces of one parameter, [n]: experts in order, gate before up. */
static status load_experts(const hf_folder *f, const param_piece *piece, int64_t n, stream *s,
                           expert_buffers b)
{
    const param *p = piece->p;
    int64_t in = p->shape[1], out = p->shape[2];
    for (int64_t i = 0; i < n; i++) {
        take(hf_folder_find(f, piece[i].name), 0, piece[i].count, b.stored);
        put_transposed(b.matrix, in, out, piece[i].column, piece[i].shape[0], b.stored);
        if (piece[i].column + piece[i].shape[0] == out)
            TRY(params_write(p, s, piece[i].expert * in * out, in * out, b.matrix));
    }
    return ST_OK;
}

static status load_all(const hf_folder *f, const param_piece *pieces, int64_t n, stream *s)
{
    int64_t largest = CHUNK;
    for (int64_t i = 0; i < n; i++) {
        const param *p = pieces[i].p;
        if (p->group == GROUP_EXPERTS && p->shape[1] * p->shape[2] > largest)
            largest = p->shape[1] * p->shape[2];
    }
    expert_buffers b = {malloc((size_t)largest * sizeof(double)),
                        malloc((size_t)largest * sizeof(double))};
    status st = b.matrix && b.stored ? ST_OK : FAIL(ST_NO_MEMORY, "no memory to load weights");
    for (int64_t i = 0, run = 1; i < n && st == ST_OK; i += run) {
        const param *p = pieces[i].p;
        for (run = 1; i + run < n && pieces[i + run].p == p;)
            run++;
        if (pieces[i].expert >= 0)
            st = load_experts(f, &pieces[i], run, s, b);
        else if (pieces[i].exchanged)
            st = load_exchanged(p, s, hf_folder_find(f, pieces[i].name), b);
        else
            st = load_whole(p, s, hf_folder_find(f, pieces[i].name), b.matrix);
    }
    free(b.matrix);
    free(b.stored);
    return st;
}

status hf_load(params *p, stream *s, const model_dims *d, const char *folder)
{
    (void)d; /* the registry was made from it */
    hf_folder f = {0};
    hf_report report = {0};
    param_piece *pieces = NULL;
    int64_t n = 0;
    TRY(hf_folder_open(folder, &f));
    status st;
    TRY_OR(done, hf_check(&f, p, &report));
    TRY_OR(done, hf_report_status(&report, folder));
    TRY_OR(done, params_pieces(p, report.layout, &pieces, &n));
    st = load_all(&f, pieces, n, s);
done:
    free(pieces);
    hf_report_done(&report);
    hf_folder_close(&f);
    return st;
}
