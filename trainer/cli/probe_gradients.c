/* probe_gradients.c: cuts each parameter's gradient into the pieces that the folder stores, and
 * transposes experts if the folder keeps them so. */
#include "trainer/cli/probe_gradients.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/checkpoint/hf/hf_check.h"
#include "trainer/model/dims/convert.h"

static status stored_layout(const params *registry, const char *folder, expert_layout *out)
{
    hf_folder hf = {0};
    hf_report report = {0};
    TRY(hf_folder_open(folder, &hf));
    status st = hf_check(&hf, registry, &report);
    *out = report.layout;
    hf_report_done(&report);
    hf_folder_close(&hf);
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
    const param *entry = piece->weight;
    if (piece->expert < 0 && !piece->exchanged) {
        memcpy(to, all, (size_t)entry->count * sizeof *to);
        return;
    }
    const int64_t in = entry->shape[1], out = entry->shape[2];
    if (piece->expert >= 0) {
        put_transposed(all + piece->expert * in * out, in, out, piece->column, piece->shape[0], to);
        return;
    }
    for (int64_t i = 0; i < entry->shape[0]; i++)
        put_transposed(all + i * in * out, in, out, 0, out, to + i * in * out);
}

static status put_tensor(const param_piece *piece, st_dtype dtype, const double *all,
                         double *values, arena *memory, st_tensor *out)
{
    const size_t bytes = (size_t)piece->count * st_dtype_size(dtype);
    char name[160], *kept;
    void *data;
    int length = snprintf(name, sizeof name, "grad.%s", piece->name);
    TRY(arena_strndup(memory, name, (size_t)length, &kept));
    TRY(arena_alloc(memory, bytes, &data));
    arrange_piece(piece, all, values);
    convert_from_double(data, dtype, values, piece->count);
    *out = (st_tensor){
        .name = kept, .dtype = dtype, .n_dims = piece->n_dims, .data = span_of(data, bytes)};
    memcpy(out->shape, piece->shape, (size_t)piece->n_dims * sizeof *out->shape);
    return ST_OK;
}

static status read_gradient(const param *entry, stream *queue, double factor, double *all)
{
    TRY(params_read(entry->grad, queue, 0, entry->count, all));
    for (int64_t i = 0; i < entry->count; i++)
        all[i] *= factor;
    return ST_OK;
}

static status put_tensors(const param_piece *pieces, int64_t count, stream *queue, double factor,
                          arena *memory, st_tensor *out)
{
    int64_t most = 1;
    for (int64_t i = 0; i < count; i++)
        most = pieces[i].weight->count > most ? pieces[i].weight->count : most;
    double *all = malloc((size_t)most * sizeof *all), *values = malloc((size_t)most * sizeof *all);
    status st = all && values ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for gradients");
    for (int64_t i = 0; i < count && st == ST_OK; i++) {
        if (i == 0 || pieces[i].weight != pieces[i - 1].weight)
            st = read_gradient(pieces[i].weight, queue, factor, all);
        if (st == ST_OK)
            st = put_tensor(&pieces[i], queue->dev->backend->acc, all, values, memory, &out[i]);
    }
    free(values);
    free(all);
    return st;
}

status probe_gradients(const params *registry, stream *queue, const char *folder, double factor,
                       arena *memory, st_tensor **out, int64_t *out_n)
{
    expert_layout stored;
    param_piece *pieces = NULL;
    int64_t count = 0;
    TRY(stored_layout(registry, folder, &stored));
    TRY(params_pieces(registry, stored, &pieces, &count));
    st_tensor *list = calloc((size_t)count + 1, sizeof *list);
    status st = list ? put_tensors(pieces, count, queue, factor, memory, list)
                     : FAIL(ST_NO_MEMORY, "no memory for %lld gradients", (long long)count);
    free(pieces);
    if (st != ST_OK) {
        free(list);
        return st;
    }
    *out = list;
    *out_n = count;
    return ST_OK;
}
