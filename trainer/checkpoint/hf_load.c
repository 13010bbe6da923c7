/* hf_load.c: see hf_load.h. Files are mapped into memory and read tensor by tensor; of each, a rank
 * takes the elements that it stores (hf_values.h). */
#include "trainer/checkpoint/hf_load.h"

#include <stdlib.h>

#include "trainer/checkpoint/hf_check.h"
#include "trainer/checkpoint/hf_values.h"
#include "trainer/model/quantised.h"

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
    const int threads =
        device_has_storage(queue->dev)
            ? pool_share_of(registry->total, queue->dev->host_ranks, HF_VALUES_THREADS)
            : 0;
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
