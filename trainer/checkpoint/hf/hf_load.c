/* SPDX-License-Identifier: Apache-2.0 */
/* hf_load.c: see hf_load.h. Files are mapped into memory and read tensor by tensor; of each, a rank
 * takes the elements that it stores. Letters: i a row, j a column of an expert's matrix. */
#include "trainer/checkpoint/hf/hf_load.h"

#include <stdlib.h>

#include "trainer/checkpoint/hf/hf_check.h"
#include "trainer/model/dims/convert.h"
#include "trainer/model/params/quantised.h"

enum {
    PIECE = 1 << 14, /* values that a thread takes at once */
    COLUMNS = 16,    /* columns that a thread transposes at once: two cache lines of doubles */
};

status hf_values_open(int64_t largest, int64_t longest, int threads, int64_t *inout_bytes,
                      hf_values *out)
{
    const int64_t most = largest > HF_VALUES_CHUNK ? largest : HF_VALUES_CHUNK;
    *out = (hf_values){.longest = longest, .bytes = inout_bytes};
    out->taken = malloc((size_t)most * sizeof(double));
    out->columns = malloc((size_t)(threads * COLUMNS * longest) * sizeof(double) + 1);
    if (!out->taken || !out->columns)
        return FAIL(ST_NO_MEMORY, "no memory to load weights");
    return pool_new(threads, &out->threads);
}

void hf_values_close(hf_values *values)
{
    pool_free(&values->threads);
    free(values->taken);
    free(values->columns);
}

/* Drops the elements [first, end) from memory. */
static void forget_rows(const st_tensor *tensor, int64_t first, int64_t end)
{
    size_t size = st_dtype_size(tensor->dtype);
    st_forget(span_of(tensor->data.data + (size_t)first * size, (size_t)(end - first) * size));
}

static void read_elements(const st_tensor *tensor, int64_t first, int64_t count, double *to)
{
    const size_t size = st_dtype_size(tensor->dtype);
    convert_to_double(to, tensor->data.data + (size_t)first * size, tensor->dtype, count);
}

typedef struct taking {
    const hf_values *values;
    const param *weight;
    const st_tensor *tensor;
    int64_t at, count;
} taking;

static void take_piece(const void *context, int64_t task, int thread)
{
    const taking *all = context;
    const int64_t first = task * PIECE, left = all->count - first;
    const int64_t end = first + (left < PIECE ? left : PIECE);
    (void)thread;
    for (int64_t i = first, run = 0; i < end; i += run) {
        int64_t stored;
        run = slice_run(&all->weight->held, all->at + i, end - i, &stored);
        read_elements(all->tensor, stored, run, all->values->taken + i);
    }
}

void hf_values_take(hf_values *values, const param *weight, const st_tensor *tensor, int64_t at,
                    int64_t count)
{
    const taking all = {values, weight, tensor, at, count};
    int64_t first, last;
    *values->bytes += count * (int64_t)st_dtype_size(tensor->dtype);
    if (count == 0)
        return;
    pool_run(values->threads, (count + PIECE - 1) / PIECE, take_piece, &all);
    slice_run(&weight->held, at, 1, &first);
    slice_run(&weight->held, at + count - 1, 1, &last);
    forget_rows(tensor, first, last + 1);
}

typedef struct transposing {
    const hf_values *values;
    const param *weight;
    const hf_columns *from;
} transposing;

/* The row of the tensor that has column j of this rank's matrix; -1: none. */
static int64_t row_of(const transposing *all, int64_t j)
{
    const slice *box = &all->weight->held; /* [E, in, parts, out / parts] */
    const int64_t stored = j / box->count[3] * box->size[3] + box->first[3] + j % box->count[3];
    const int64_t row = stored - all->from->column;
    return row >= 0 && row < all->from->rows ? row : -1;
}

/* The element of the tensor that begins the part of a row that this rank holds. */
static int64_t first_of(const transposing *all, int64_t row)
{
    const slice *box = &all->weight->held;
    return all->from->first + row * box->size[1] + box->first[1];
}

/* Takes COLUMNS neighbouring columns, so that whole cache lines are written. */
static void take_some_columns(const void *context, int64_t task, int thread)
{
    const transposing *all = context;
    const hf_values *values = all->values;
    const int64_t in = all->weight->held.count[1], out = all->weight->local[2];
    double *column = values->columns + thread * COLUMNS * values->longest;
    int64_t place[COLUMNS], count = 0;
    for (int64_t j = task * COLUMNS; j < (task + 1) * COLUMNS && j < out; j++) {
        const int64_t row = row_of(all, j);
        if (row < 0)
            continue;
        read_elements(all->from->tensor, first_of(all, row), in, column + count * in);
        place[count++] = j;
    }
    for (int64_t i = 0; i < in; i++)
        for (int64_t k = 0; k < count; k++)
            values->taken[i * out + place[k]] = column[k * in + i];
}

void hf_values_take_columns(hf_values *values, const param *weight, const hf_columns *from)
{
    const transposing all = {values, weight, from};
    const int64_t in = weight->held.count[1], out = weight->local[2];
    int64_t begin = -1, end = 0, count = 0;
    for (int64_t j = 0; j < out; j++) {
        const int64_t row = row_of(&all, j);
        if (row < 0)
            continue;
        begin = begin < 0 ? first_of(&all, row) : begin;
        end = first_of(&all, row) + in;
        count++;
    }
    *values->bytes += count * in * (int64_t)st_dtype_size(from->tensor->dtype);
    if (count == 0)
        return;
    pool_run(values->threads, (out + COLUMNS - 1) / COLUMNS, take_some_columns, &all);
    forget_rows(from->tensor, begin, end);
}

/* ---- loading ---- */

/* The values of a tensor that this rank stores, in runs that can be written at once. */
static status load_as_held(const param *weight, stream *queue, const st_tensor *tensor,
                           hf_values *values)
{
    const int64_t end = weight->own_first + weight->own_n;
    const int64_t most = quantised_run(weight, HF_VALUES_CHUNK);
    for (int64_t at = weight->own_first; at < end; at += most) {
        const int64_t count = end - at < most ? end - at : most;
        hf_values_take(values, weight, tensor, at, count);
        TRY(params_write_by(weight, queue, at, count, values->taken, values->threads));
    }
    return ST_OK;
}

/* Whether this rank stores some of an expert, numbered over the whole tensor. */
static bool stores_expert(const param *weight, int64_t expert)
{
    int64_t size = weight->local[1] * weight->local[2],
            at = (expert - weight->held.first[0]) * size;
    return at >= 0 && at < weight->own_first + weight->own_n && at + size > weight->own_first;
}

static status put_expert(const param *weight, stream *queue, int64_t expert, hf_values *values)
{
    int64_t size = weight->local[1] * weight->local[2];
    return params_write_by(weight, queue, (expert - weight->held.first[0]) * size, size,
                           values->taken, values->threads);
}

/* Loads one fused tensor [E, out, in]. */
static status load_exchanged(const param *weight, stream *queue, const st_tensor *tensor,
                             hf_values *values)
{
    int64_t in = weight->shape[1], out = weight->shape[2], first = weight->held.first[0];
    for (int64_t i = first; i < first + weight->held.count[0]; i++) {
        if (!stores_expert(weight, i))
            continue;
        hf_values_take_columns(values, weight, &(hf_columns){tensor, i * in * out, 0, out});
        TRY(put_expert(weight, queue, i, values));
    }
    return ST_OK;
}

/* Loads the pieces [count] of one parameter: one matrix per expert, in order, gate before up. */
static status load_experts(const hf_folder *folder, const param_piece *piece, int64_t count,
                           stream *queue, hf_values *values)
{
    const param *weight = piece->weight;
    for (int64_t i = 0; i < count; i++) {
        if (!stores_expert(weight, piece[i].expert))
            continue;
        hf_values_take_columns(values, weight,
                               &(hf_columns){hf_folder_find(folder, piece[i].name), 0,
                                             piece[i].column, piece[i].shape[0]});
        if (piece[i].column + piece[i].shape[0] == weight->shape[2])
            TRY(put_expert(weight, queue, piece[i].expert, values));
    }
    return ST_OK;
}

static status load_all(params *registry, const hf_folder *folder, const param_piece *pieces,
                       int64_t count, bool frozen_only, stream *queue)
{
    const int threads = pool_share_of(registry->total, queue->dev->host_ranks, HF_VALUES_THREADS);
    int64_t largest = 0, longest = 0;
    for (int64_t i = 0; i < count; i++) {
        const param *weight = pieces[i].weight;
        const bool matrix = weight->group == GROUP_EXPERTS;
        const int64_t size = matrix ? weight->local[1] * weight->local[2] : 0;
        largest = size > largest ? size : largest;
        longest = matrix && weight->local[1] > longest ? weight->local[1] : longest;
    }
    hf_values values;
    status st = hf_values_open(largest, longest, threads, &registry->bytes_read, &values);
    for (int64_t i = 0, run = 1; i < count && st == ST_OK; i += run) {
        const param *weight = pieces[i].weight;
        for (run = 1; i + run < count && pieces[i + run].weight == weight;)
            run++;
        if (frozen_only && !weight->frozen)
            continue;
        if (pieces[i].expert >= 0)
            st = load_experts(folder, &pieces[i], run, queue, &values);
        else if (pieces[i].exchanged)
            st = load_exchanged(weight, queue, hf_folder_find(folder, pieces[i].name), &values);
        else
            st = load_as_held(weight, queue, hf_folder_find(folder, pieces[i].name), &values);
    }
    hf_values_close(&values);
    return st;
}

static status load_folder(params *registry, stream *queue, const char *folder, bool frozen_only)
{
    hf_folder hf = {0};
    hf_report report = {0};
    param_piece *pieces = NULL;
    int64_t count = 0;
    TRY(hf_folder_open(folder, &hf));
    status st;
    TRY_OR(done, hf_check(&hf, registry, &report));
    TRY_OR(done, hf_report_status(&report, folder));
    TRY_OR(done, params_pieces(registry, report.layout, &pieces, &count));
    st = load_all(registry, &hf, pieces, count, frozen_only, queue);
done:
    free(pieces);
    hf_report_done(&report);
    hf_folder_close(&hf);
    return st;
}

status hf_load(params *registry, stream *queue, const char *folder)
{
    return load_folder(registry, queue, folder, false);
}

status hf_load_frozen(params *registry, stream *queue, const char *folder)
{
    return load_folder(registry, queue, folder, true);
}
