/* SPDX-License-Identifier: Apache-2.0 */
/* params_states.c: see params_states.h. Where no row is coded and master values are in acc, or act
 * is acc, the states of an element lie where its act does, and rows need no places. */
#include "trainer/model/params/params_states.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/ops/state_codes.h"

enum { PLACED = 16 }; /* bytes: the states of a row begin at multiples of this */

int64_t states_own_of(const unit_span *in, const param *row, int rank, int64_t *out_first)
{
    int64_t begin = in->piece * rank, end = begin + in->piece;
    begin = begin > row->at ? begin : row->at;
    end = end < row->at + row->n_local ? end : row->at + row->n_local;
    *out_first = end > begin ? begin - row->at : 0;
    return end > begin ? end - begin : 0;
}

static bool is_updated(const param *row)
{
    return !row->frozen && !row->elsewhere && row->own_n > 0;
}

/* Bytes of `count` codes or floats of a row in a block of moments that has codes. */
static int64_t moment_bytes(const param *row, int64_t count, size_t acc)
{
    return round_up(count * (row->coded ? 1 : (int64_t)acc), PLACED);
}

static int64_t scale_bytes(const param *row, int64_t count)
{
    const int64_t blocks = (count + STATE_BLOCK - 1) / STATE_BLOCK;
    return row->coded ? round_up(blocks * (int64_t)sizeof(float), PLACED) : 0;
}

/* Bytes of `count` master values of a row, where only those of some rows are in acc. */
static int64_t master_bytes(const params *registry, const param *row, int64_t count, size_t acc)
{
    return registry->act_masters && !row->act_master ? round_up(count * (int64_t)acc, PLACED) : 0;
}

bool states_are_placed(const params *registry, st_dtype act, st_dtype acc)
{
    return registry->coded || (registry->act_masters && act != acc);
}

/* Adds to bytes what each rank of span `number` needs of a block of moments. */
static void add_states(const params *registry, int64_t number, st_dtype act, st_dtype acc,
                       int64_t *bytes)
{
    const unit_span *in = &registry->spans[number];
    const size_t size = st_dtype_size(acc);
    for (int64_t i = 0; i < registry->count; i++) {
        const param *row = &registry->list[i];
        if (row->frozen || row->elsewhere || row->span != number)
            continue;
        for (int rank = 0; rank < in->ranks; rank++) {
            int64_t first;
            const int64_t count = states_own_of(in, row, rank, &first);
            bytes[rank] += moment_bytes(row, count, size) + scale_bytes(row, count) +
                           (act != acc ? master_bytes(registry, row, count, size) : 0);
        }
    }
}

/* The second block leaves the room of master values unused: that of vectors and routers. bytes: for
 * each rank of the largest group. */
static int64_t span_bytes(const params *registry, int64_t number, st_dtype act, st_dtype acc,
                          int64_t *bytes)
{
    const unit_span *in = &registry->spans[number];
    int64_t largest = 0;
    if (!in->trained)
        return 0;
    if (!states_are_placed(registry, act, acc))
        return in->piece * (int64_t)st_dtype_size(acc);
    memset(bytes, 0, (size_t)in->ranks * sizeof *bytes);
    add_states(registry, number, act, acc, bytes);
    for (int rank = 0; rank < in->ranks; rank++)
        largest = bytes[rank] > largest ? bytes[rank] : largest;
    return largest;
}

status states_sizes_of(const params *registry, st_dtype act, st_dtype acc, states_sizes *out)
{
    int most = 1;
    int64_t of_unit = 0;
    for (int64_t i = 0; i < registry->n_spans; i++)
        most = registry->spans[i].ranks > most ? registry->spans[i].ranks : most;
    int64_t *bytes = malloc((size_t)most * sizeof *bytes);
    if (!bytes)
        return FAIL(ST_NO_MEMORY, "no memory for the sizes of %d ranks", most);
    *out = (states_sizes){0};
    for (int64_t i = 0; i < registry->n_spans; i++) {
        const int unit = registry->spans[i].unit;
        const int64_t of_span = span_bytes(registry, i, act, acc, bytes);
        int64_t *turn = &out->turn[unit % STATES_TURNS];
        of_unit = i > 0 && registry->spans[i - 1].unit == unit ? of_unit + of_span : of_span;
        *turn = of_unit > *turn ? of_unit : *turn;
        out->block += of_span;
    }
    free(bytes);
    return ST_OK;
}

/* Gives a row its places from byte *inout_at of the blocks of moments on. */
static void place_states(const params *registry, int64_t *inout_at, param *row)
{
    const st_dtype act = registry->acts.dtype, acc = registry->grads.dtype;
    const size_t size = st_dtype_size(acc);
    row->moment_dtype = row->coded ? DT_U8 : acc;
    row->moment1 = locate_in(&registry->moments1, *inout_at);
    row->moment2 = locate_in(&registry->moments2, *inout_at);
    *inout_at += moment_bytes(row, row->own_n, size);
    if (row->coded) {
        row->scale1 = locate_in(&registry->moments1, *inout_at);
        row->scale2 = locate_in(&registry->moments2, *inout_at);
    }
    *inout_at += scale_bytes(row, row->own_n);
    if (act == acc || !master_bytes(registry, row, row->own_n, size))
        return;
    row->value = locate_in(&registry->moments1, *inout_at);
    row->value_dtype = acc;
    *inout_at += master_bytes(registry, row, row->own_n, size);
}

void states_place(params *registry)
{
    int64_t at = 0;
    for (int64_t i = 0; i < registry->count; i++)
        registry->list[i].scale1 = registry->list[i].scale2 = NULL;
    if (!states_are_placed(registry, registry->acts.dtype, registry->grads.dtype))
        return;
    for (int64_t i = 0; i < registry->n_spans; i++)
        for (int64_t j = 0; j < registry->count; j++)
            if (registry->list[j].span == i && is_updated(&registry->list[j]))
                place_states(registry, &at, &registry->list[j]);
}

/* Bytes of the states of a row. */
static int64_t row_bytes(const params *registry, const param *row)
{
    const st_dtype act = registry->acts.dtype, acc = registry->grads.dtype;
    const size_t size = st_dtype_size(acc);
    if (!states_are_placed(registry, act, acc))
        return row->own_n * (int64_t)size;
    return moment_bytes(row, row->own_n, size) + scale_bytes(row, row->own_n) +
           (act != acc ? master_bytes(registry, row, row->own_n, size) : 0);
}

states_range states_range_of(const params *registry, int unit)
{
    int64_t first = 0, end = 0;
    for (int64_t i = 0; i < registry->count; i++) {
        const param *row = &registry->list[i];
        if (row->unit != unit || !is_updated(row))
            continue;
        const int64_t at = (const char *)row->moment1 - (const char *)registry->moments1.at;
        first = end == 0 || at < first ? at : first;
        end = at + row_bytes(registry, row) > end ? at + row_bytes(registry, row) : end;
    }
    return (states_range){first, end - first};
}

status states_settle(const params *registry, stream *queue)
{
    return registry->moments_on_host ? queue->dev->backend->wait(queue) : ST_OK;
}
