/* SPDX-License-Identifier: Apache-2.0 */
/* quantised.c: see quantised.h. */
#include "trainer/model/params/quantised.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/ops/table.h"

/* ---- codes of a block ---- */

enum { INT8_TOP = 127 };

/* A code is that of the level nearest to a share of the scale: how many of the middles between
 * neighbouring levels lie below it. */
static void encode_nf4(const float *from, int64_t count, float largest, uint8_t *codes)
{
    float share[WEIGHT_BLOCK];
    uint32_t code[WEIGHT_BLOCK] = {0};
    for (int64_t i = 0; i < WEIGHT_BLOCK; i++)
        share[i] = i < count && largest > 0 ? from[i] / largest : 0;
    for (int i = 0; i < WEIGHT_LEVELS - 1; i++) {
        const float middle = (weight_level(i) + weight_level(i + 1)) / 2;
        for (int64_t j = 0; j < WEIGHT_BLOCK; j++)
            code[j] += share[j] > middle;
    }
    for (int64_t i = 0; i < WEIGHT_BLOCK / 2; i++)
        codes[i] = (uint8_t)(code[2 * i] << 4 | code[2 * i + 1]);
}

static void encode_int8(const float *from, int64_t count, float scale, uint8_t *codes)
{
    for (int64_t i = 0; i < WEIGHT_BLOCK; i++) {
        const float code = i < count && scale > 0 ? rintf(from[i] / scale) : 0;
        const float bounded = code > INT8_TOP ? INT8_TOP : code < -INT8_TOP ? -INT8_TOP : code;
        codes[i] = (uint8_t)(int8_t)bounded;
    }
}

bool weight_encode(weight_form form, const float *from, int64_t count, uint8_t *block)
{
    float largest = 0;
    bool finite = true;
    for (int64_t i = 0; i < count; i++) {
        const float size = fabsf(from[i]);
        finite &= isfinite(size) != 0;
        largest = size > largest ? size : largest;
    }
    if (!finite)
        return false;
    const float scale = form == WEIGHT_INT8 ? largest / INT8_TOP : largest;
    memcpy(block, &scale, WEIGHT_SCALE);
    if (form == WEIGHT_INT8)
        encode_int8(from, count, scale, block + WEIGHT_SCALE);
    else
        encode_nf4(from, count, scale, block + WEIGHT_SCALE);
    return true;
}

void weight_decode(weight_form form, const uint8_t *block, int64_t count, float *to)
{
    const uint8_t *codes = block + WEIGHT_SCALE;
    float scale;
    memcpy(&scale, block, WEIGHT_SCALE);
    for (int64_t i = 0; i < count; i++) {
        if (form == WEIGHT_INT8)
            to[i] = (float)(int8_t)codes[i] * scale;
        else
            to[i] = weight_level(codes[i / 2] >> (i % 2 ? 0 : 4) & (WEIGHT_LEVELS - 1)) * scale;
    }
}

/* ---- matrices ---- */

enum { PIECE = 256 /* blocks that a thread encodes at once */ };

status quantised_choose(params *registry, weight_form form)
{
    int64_t chosen = 0;
    for (int64_t i = 0; i < registry->count; i++) {
        param *row = &registry->list[i];
        const bool matrix = row->n_dims > 1 && row->layer >= 0 && row->frozen && !row->adapter;
        row->form = WEIGHT_PLAIN;
        if (!matrix || (row->group != GROUP_TEXT && row->group != GROUP_EXPERTS))
            continue;
        row->form = form;
        chosen++;
    }
    registry->base_form = form;
    return chosen ? ST_OK
                  : FAIL(ST_CONFIG, "lora.base: no matrix of the decoder's layers is frozen, so "
                                    "there is nothing to store in fewer bits; set it to bf16");
}

static int64_t row_length(const param *weight)
{
    return weight->local[weight->n_dims - 1];
}

static int64_t row_count(const param *weight)
{
    return weight->n_local / row_length(weight);
}

status quantised_check_cut(const param *weight, const layout *degrees)
{
    enum { PARTS = SLICE_AXES - 2, WIDTH = SLICE_AXES - 1 };
    const bool experts = weight->cut == CUT_EXPERT;
    const int64_t ranks = experts ? degrees->expert_tensor : degrees->tensor;
    if (weight->form == WEIGHT_PLAIN || ranks == 1 || weight->cut_axis != weight->n_dims - 1)
        return ST_OK;
    const int axis = experts ? WIDTH : weight->cut_axis;
    const bool parts = experts && weight->held.size[PARTS] > 1;
    if (weight->held.count[axis] % WEIGHT_BLOCK == 0 &&
        (!parts || weight->held.size[axis] % WEIGHT_BLOCK == 0))
        return ST_OK;
    return FAIL(
        ST_CONFIG,
        "lora.base: tensor parallelism of %lld cuts the rows of %s into %lld columns, which "
        "is no multiple of the %d that share a scale; use fewer tensor ranks, or lora.base "
        "bf16",
        (long long)ranks, weight->name, (long long)weight->held.count[axis], WEIGHT_BLOCK);
}

int64_t quantised_blocks(const param *weight)
{
    return row_count(weight) * weight_row_blocks(row_length(weight));
}

int64_t quantised_block_of(const param *weight, int64_t element)
{
    const int64_t length = row_length(weight);
    const int64_t within = element % length;
    assert(within % WEIGHT_BLOCK == 0);
    return element / length * weight_row_blocks(length) + within / WEIGHT_BLOCK;
}

int64_t quantised_first(const param *weight, int64_t block)
{
    const int64_t length = row_length(weight), wide = weight_row_blocks(length);
    return block / wide * length + block % wide * WEIGHT_BLOCK;
}

int64_t quantised_run(const param *weight, int64_t most)
{
    const int64_t length = row_length(weight);
    if (weight->form == WEIGHT_PLAIN)
        return most;
    assert(length <= most);
    return most / length * length;
}

/* Blocks [begin, end) that threads encode, PIECE at a time,
 * of the elements that begin at `from`. */
typedef struct encoding {
    const param *weight;
    int64_t begin, end;
    const double *from;
    uint8_t *to;
    atomic_bool *not_finite;
} encoding;

static void encode_piece(const void *context, int64_t task, int thread)
{
    const encoding *all = context;
    const param *weight = all->weight;
    const int64_t size = weight_block_bytes(weight->form);
    const int64_t first = quantised_first(weight, all->begin), begin = all->begin + task * PIECE;
    const int64_t end = all->end - begin < PIECE ? all->end : begin + PIECE;
    float value[WEIGHT_BLOCK];
    (void)thread;
    for (int64_t k = begin; k < end; k++) {
        const int64_t at = quantised_first(weight, k), count = quantised_first(weight, k + 1) - at;
        for (int64_t i = 0; i < count; i++)
            value[i] = (float)all->from[at - first + i];
        if (!weight_encode(weight->form, value, count, all->to + (k - all->begin) * size))
            atomic_store(all->not_finite, true);
    }
}

status quantised_write(const param *weight, stream *queue, int64_t first, int64_t count,
                       const double *from, pool *threads)
{
    const backend_vtable *backend = queue->dev->backend;
    const int64_t own = quantised_block_of(weight, weight->own_first);
    const int64_t begin = quantised_block_of(weight, first);
    const int64_t end = quantised_block_of(weight, first + count);
    const int64_t size = weight_block_bytes(weight->form);
    uint8_t *blocks = malloc((size_t)((end - begin) * size) + 1);
    if (!blocks)
        return FAIL(ST_NO_MEMORY, "no memory to encode %lld values", (long long)count);
    status st = ST_OK;
    atomic_bool not_finite = false;
    const encoding all = {weight, begin, end, from, blocks, &not_finite};
    pool_run(threads, (end - begin + PIECE - 1) / PIECE, encode_piece, &all);
    if (atomic_load(&not_finite))
        st = FAIL(ST_BAD_INPUT,
                  "%s has a value that is not finite, so its block has no scale: lora.base int8 "
                  "and nf4 need finite weights",
                  weight->name);
    if (st == ST_OK)
        st = backend->to_device(queue, (uint8_t *)weight->own_blocks + (begin - own) * size, blocks,
                                (size_t)((end - begin) * size));
    if (st == ST_OK)
        st = backend->wait(queue);
    free(blocks);
    return st;
}

/* Puts those values of block `number` that are among the elements [first, first + count) of the
 * local part at their places in `to`. */
static void decode_part(const param *weight, int64_t number, const uint8_t *block, int64_t first,
                        int64_t count, double *to)
{
    const int64_t at = quantised_first(weight, number);
    const int64_t held = quantised_first(weight, number + 1) - at;
    float value[WEIGHT_BLOCK];
    weight_decode(weight->form, block, held, value);
    for (int64_t i = 0; i < held; i++)
        if (at + i >= first && at + i < first + count)
            to[at + i - first] = (double)value[i];
}

/* The block that has this local element. */
static int64_t block_with(const param *weight, int64_t element)
{
    const int64_t within = element % row_length(weight) % WEIGHT_BLOCK;
    return quantised_block_of(weight, element - within);
}

status quantised_read(const param *weight, stream *queue, int64_t first, int64_t count, double *to)
{
    const backend_vtable *backend = queue->dev->backend;
    const int64_t size = weight_block_bytes(weight->form), from = weight->own_first + first;
    if (count == 0)
        return ST_OK;
    const int64_t own = quantised_block_of(weight, weight->own_first);
    const int64_t begin = block_with(weight, from), end = block_with(weight, from + count - 1) + 1;
    uint8_t *blocks = malloc((size_t)((end - begin) * size));
    if (!blocks)
        return FAIL(ST_NO_MEMORY, "no memory to read %lld values", (long long)count);
    status st =
        backend->to_host(queue, blocks, (const uint8_t *)weight->own_blocks + (begin - own) * size,
                         (size_t)((end - begin) * size));
    if (st == ST_OK)
        st = backend->wait(queue);
    for (int64_t k = begin; k < end && st == ST_OK; k++)
        decode_part(weight, k, blocks + (k - begin) * size, from, count, to);
    free(blocks);
    return st;
}

status quantised_expand(stream *queue, const param *weight)
{
    if (weight->form == WEIGHT_PLAIN)
        return ST_OK;
    return op_dequantise(queue, &(dequantise_args){.form = weight->form,
                                                   .rows = row_count(weight),
                                                   .n = row_length(weight),
                                                   .blocks = weight->blocks,
                                                   .y = weight->act});
}
