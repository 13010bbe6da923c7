/* hf_load.c: see hf_load.h. Files are mapped into memory and read tensor by tensor; of each, a rank
 * takes the elements that it stores. Values go through double, which holds all accepted dtypes
 * exactly. Experts are stored as [in, out] in the registry, so the layouts with [out, in] are
 * transposed one expert at a time. */
#include "trainer/checkpoint/hf_load.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/checkpoint/hf_check.h"
#include "trainer/model/convert.h"
#include "trainer/model/quantised.h"

enum { CHUNK = 1 << 18 /* values moved at once */ };

typedef struct load_buffers {
    double *matrix;   /* [CHUNK], or [in, out] of one expert as this rank holds it */
    double *row;      /* [in] */
    int64_t *bytes;   /* counts the bytes taken from the files */
    bool counts_only; /* values are not read, because the device has no storage for them */
} load_buffers;

/* Reads `count` values of a tensor from element `first` on. */
static void read_elements(const st_tensor *tensor, int64_t first, int64_t count, double *to,
                          const load_buffers *buffers)
{
    const int64_t size = (int64_t)st_dtype_size(tensor->dtype);
    *buffers->bytes += count * size;
    if (!buffers->counts_only)
        convert_to_double(to, tensor->data.data + first * size, tensor->dtype, count);
}

/* Drops the elements [first, end) from memory, so that a file larger than memory can be read. */
static void forget_rows(const st_tensor *tensor, int64_t first, int64_t end)
{
    size_t size = st_dtype_size(tensor->dtype);
    st_forget(span_of(tensor->data.data + (size_t)first * size, (size_t)(end - first) * size));
}

static status load_as_held(const param *weight, stream *queue, const st_tensor *tensor,
                           load_buffers buffers)
{
    const int64_t end = weight->own_first + weight->own_n, most = quantised_run(weight, CHUNK);
    for (int64_t at = weight->own_first; at < end; at += most) {
        int64_t count = end - at < most ? end - at : most;
        int64_t begin = -1, stored = 0, run = 0;
        for (int64_t i = 0; i < count; i += run) {
            run = slice_run(&weight->held, at + i, count - i, &stored);
            read_elements(tensor, stored, run, buffers.matrix + i, &buffers);
            begin = begin < 0 ? stored : begin;
        }
        forget_rows(tensor, begin, stored + run);
        TRY(params_write(weight, queue, at, count, buffers.matrix));
    }
    return ST_OK;
}

/* The tensor has, from element `first` on, the rows [rows, in], which are the columns [column,
 * column + rows) of one expert's matrix [in, out]. Puts those that this rank holds into
 * b.matrix. */
static void take_columns(const param *weight, const st_tensor *tensor, int64_t first,
                         int64_t column, int64_t rows, load_buffers buffers)
{
    const slice *box = &weight->held; /* [E, in, parts, out / parts] */
    int64_t stored_in = box->size[1], in = box->count[1], out = weight->local[2], begin = -1,
            end = 0;
    for (int64_t j = 0; j < out; j++) {
        int64_t from =
            j / box->count[3] * box->size[3] + box->first[3] + j % box->count[3] - column;
        if (from < 0 || from >= rows)
            continue;
        int64_t at = first + from * stored_in + box->first[1];
        read_elements(tensor, at, in, buffers.row, &buffers);
        for (int64_t i = 0; i < in && !buffers.counts_only; i++)
            buffers.matrix[i * out + j] = buffers.row[i];
        begin = begin < 0 ? at : begin;
        end = at + in;
    }
    if (begin >= 0)
        forget_rows(tensor, begin, end);
}

/* Whether this rank stores some of an expert, numbered over the whole tensor. */
static bool stores_expert(const param *weight, int64_t expert)
{
    int64_t size = weight->local[1] * weight->local[2],
            at = (expert - weight->held.first[0]) * size;
    return at >= 0 && at < weight->own_first + weight->own_n && at + size > weight->own_first;
}

static status put_expert(const param *weight, stream *queue, int64_t expert, load_buffers buffers)
{
    int64_t size = weight->local[1] * weight->local[2];
    return params_write(weight, queue, (expert - weight->held.first[0]) * size, size,
                        buffers.matrix);
}

/* Loads one fused tensor [E, out, in]. */
static status load_exchanged(const param *weight, stream *queue, const st_tensor *tensor,
                             load_buffers buffers)
{
    int64_t in = weight->shape[1], out = weight->shape[2], first = weight->held.first[0];
    for (int64_t i = first; i < first + weight->held.count[0]; i++) {
        if (!stores_expert(weight, i))
            continue;
        take_columns(weight, tensor, i * in * out, 0, out, buffers);
        TRY(put_expert(weight, queue, i, buffers));
    }
    return ST_OK;
}

/* Loads the pieces [count] of one parameter: one matrix per expert, in order, gate before up. */
static status load_experts(const hf_folder *folder, const param_piece *piece, int64_t count,
                           stream *queue, load_buffers buffers)
{
    const param *weight = piece->weight;
    for (int64_t i = 0; i < count; i++) {
        if (!stores_expert(weight, piece[i].expert))
            continue;
        take_columns(weight, hf_folder_find(folder, piece[i].name), 0, piece[i].column,
                     piece[i].shape[0], buffers);
        if (piece[i].column + piece[i].shape[0] == weight->shape[2])
            TRY(put_expert(weight, queue, piece[i].expert, buffers));
    }
    return ST_OK;
}

static status load_all(const hf_folder *folder, const param_piece *pieces, int64_t count,
                       bool frozen_only, stream *queue, int64_t *inout_bytes)
{
    int64_t largest = CHUNK, longest = 1;
    for (int64_t i = 0; i < count; i++) {
        const param *weight = pieces[i].weight;
        if (weight->group != GROUP_EXPERTS)
            continue;
        largest = weight->local[1] * weight->local[2] > largest
                      ? weight->local[1] * weight->local[2]
                      : largest;
        longest = weight->local[1] > longest ? weight->local[1] : longest;
    }
    load_buffers buffers = {malloc((size_t)largest * sizeof(double)),
                            malloc((size_t)longest * sizeof(double)), inout_bytes,
                            !device_has_storage(queue->dev)};
    status st =
        buffers.matrix && buffers.row ? ST_OK : FAIL(ST_NO_MEMORY, "no memory to load weights");
    for (int64_t i = 0, run = 1; i < count && st == ST_OK; i += run) {
        const param *weight = pieces[i].weight;
        for (run = 1; i + run < count && pieces[i + run].weight == weight;)
            run++;
        if (frozen_only && !weight->frozen)
            continue;
        if (pieces[i].expert >= 0)
            st = load_experts(folder, &pieces[i], run, queue, buffers);
        else if (pieces[i].exchanged)
            st = load_exchanged(weight, queue, hf_folder_find(folder, pieces[i].name), buffers);
        else
            st = load_as_held(weight, queue, hf_folder_find(folder, pieces[i].name), buffers);
    }
    free(buffers.matrix);
    free(buffers.row);
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
    st = load_all(&hf, pieces, count, frozen_only, queue, &registry->bytes_read);
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
