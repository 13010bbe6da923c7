/* probe_gradients.c: cuts each parameter's gradient into the pieces that the folder stores, and
 * transposes experts if the folder keeps them so. */
#include "trainer/cli/probe_gradients.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/checkpoint/hf_check.h"
#include "trainer/model/convert.h"

static status stored_layout(const params *p, const char *folder, expert_layout *out)
{
    hf_folder f = {0};
    hf_report report = {0};
    TRY(hf_folder_open(folder, &f));
    status st = hf_check(&f, p, &report);
    *out = report.layout;
    hf_report_done(&report);
    hf_folder_close(&f);
    return st;
}

/* Copies columns [column, column + rows) of one matrix, `from` [in, out], to [rows, in]. */
static void put_transposed(const double *from, int64_t in, int64_t out, int64_t column,
                           int64_t rows, double *to)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < in; j++)
            *to++ = from[j * out + column + i];
}

/* Picks and arranges the values of one piece from those of its whole parameter. */
static void arrange_piece(const param_piece *piece, const double *all, double *to)
{
    const param *q = piece->weight;
    if (piece->expert < 0 && !piece->exchanged) {
        memcpy(to, all, (size_t)q->count * sizeof *to);
        return;
    }
    const int64_t in = q->shape[1], out = q->shape[2];
    if (piece->expert >= 0) {
        put_transposed(all + piece->expert * in * out, in, out, piece->column, piece->shape[0], to);
        return;
    }
    for (int64_t e = 0; e < q->shape[0]; e++)
        put_transposed(all + e * in * out, in, out, 0, out, to + e * in * out);
}

static status put_tensor(const param_piece *piece, st_dtype dtype, const double *all,
                         double *values, arena *a, st_tensor *out)
{
    const size_t bytes = (size_t)piece->count * st_dtype_size(dtype);
    char name[160], *kept;
    void *data;
    int n = snprintf(name, sizeof name, "grad.%s", piece->name);
    TRY(arena_strndup(a, name, (size_t)n, &kept));
    TRY(arena_alloc(a, bytes, &data));
    arrange_piece(piece, all, values);
    convert_from_double(data, dtype, values, piece->count);
    *out = (st_tensor){
        .name = kept, .dtype = dtype, .n_dims = piece->n_dims, .data = span_of(data, bytes)};
    memcpy(out->shape, piece->shape, (size_t)piece->n_dims * sizeof *out->shape);
    return ST_OK;
}

static status read_gradient(const param *q, stream *s, double factor, double *all)
{
    TRY(params_read(q->grad, s, 0, q->count, all));
    for (int64_t i = 0; i < q->count; i++)
        all[i] *= factor;
    return ST_OK;
}

static status put_tensors(const param_piece *pieces, int64_t n, stream *s, double factor, arena *a,
                          st_tensor *out)
{
    int64_t most = 1;
    for (int64_t i = 0; i < n; i++)
        most = pieces[i].weight->count > most ? pieces[i].weight->count : most;
    double *all = malloc((size_t)most * sizeof *all), *values = malloc((size_t)most * sizeof *all);
    status st = all && values ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for gradients");
    for (int64_t i = 0; i < n && st == ST_OK; i++) {
        if (i == 0 || pieces[i].weight != pieces[i - 1].weight)
            st = read_gradient(pieces[i].weight, s, factor, all);
        if (st == ST_OK)
            st = put_tensor(&pieces[i], s->dev->backend->acc, all, values, a, &out[i]);
    }
    free(values);
    free(all);
    return st;
}

status probe_gradients(const params *p, stream *s, const char *folder, double factor, arena *a,
                       st_tensor **out, int64_t *out_n)
{
    expert_layout stored;
    param_piece *pieces = NULL;
    int64_t n = 0;
    TRY(stored_layout(p, folder, &stored));
    TRY(params_pieces(p, stored, &pieces, &n));
    st_tensor *list = calloc((size_t)n + 1, sizeof *list);
    status st = list ? put_tensors(pieces, n, s, factor, a, list)
                     : FAIL(ST_NO_MEMORY, "no memory for %lld gradients", (long long)n);
    free(pieces);
    if (st != ST_OK) {
        free(list);
        return st;
    }
    *out = list;
    *out_n = n;
    return ST_OK;
}
