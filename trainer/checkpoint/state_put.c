/* state_put.c: see state_put.h. */
#include "trainer/checkpoint/state_put.h"

#include <string.h>

#include "trainer/model/convert.h"
#include "trainer/ops/state_codes.h"

/* Copies `count` elements of a file's tensor from element `at` on to the row's element `to_at`. */
static status put_stored(stream *queue, const st_tensor *tensor, int64_t at, int64_t count,
                         int64_t to_at, const state_room *room, state_target *target)
{
    const backend_vtable *backend = queue->dev->backend;
    const size_t size = st_dtype_size(target->dtype), bytes = (size_t)count * size;
    const uint8_t *from = tensor->data.data + at * (int64_t)st_dtype_size(tensor->dtype);
    char *to = (char *)target->to + (size_t)to_at * size;
    if (tensor->dtype != target->dtype) {
        convert_to_double(room->values, from, tensor->dtype, count);
        convert_from_double(room->narrow, target->dtype, room->values, count);
        from = room->narrow;
    }
    if (target->frozen && device_has_storage(queue->dev)) {
        TRY(backend->to_host(queue, room->was, to, bytes));
        TRY(backend->wait(queue));
        target->differs |= memcmp(room->was, from, bytes) != 0;
    }
    TRY(backend->to_device(queue, to, from, bytes));
    target->found += count;
    return backend->wait(queue);
}

/* put_stored for codes, whose blocks must be the same in the file and here. */
static status put_codes(const param *weight, stream *queue, const state_tensor *of, int64_t at,
                        int64_t count, int64_t to_at, const state_room *room, state_target *target)
{
    const int64_t blocks = (count + STATE_BLOCK - 1) / STATE_BLOCK;
    const bool ends = to_at + count == weight->own_n && at + count == of->tensor->shape[0];
    if (at % STATE_BLOCK || to_at % STATE_BLOCK || (!ends && count % STATE_BLOCK))
        return FAIL(ST_CONFIG,
                    "%s: the moments in this checkpoint have 8 bits, and their blocks of %d do not "
                    "fall together with those of this layout: set checkpoint.convert_states to "
                    "true, or resume with the layout that wrote it",
                    weight->name, STATE_BLOCK);
    TRY(put_stored(queue, of->tensor, at, count, to_at, room, target));
    TRY(queue->dev->backend->to_device(queue, target->scale + to_at / STATE_BLOCK,
                                       of->scale->data.data +
                                           (size_t)(at / STATE_BLOCK) * sizeof(float),
                                       (size_t)blocks * sizeof(float)));
    return queue->dev->backend->wait(queue);
}

/* Keeps the numbers that stored moments stand for. */
static void keep_numbers(const state_tensor *of, int64_t at, int64_t count, int64_t to_at,
                         const state_room *room, state_target *target)
{
    const uint8_t *from = of->tensor->data.data;
    float *to = target->numbers + to_at;
    target->found += count;
    if (!of->scale) {
        convert_to_double(room->values, from + at * (int64_t)st_dtype_size(of->tensor->dtype),
                          of->tensor->dtype, count);
        convert_from_double(to, DT_F32, room->values, count);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        const int64_t block = (at + i) / STATE_BLOCK;
        float scale;
        memcpy(&scale, of->scale->data.data + (size_t)block * sizeof scale, sizeof scale);
        to[i] = target->second ? state_second_value(from[at + i], scale)
                               : state_first_value(from[at + i], scale);
    }
}

static status put_run(const param *weight, stream *queue, const state_tensor *of, int64_t at,
                      int64_t count, int64_t to_at, const state_room *room, state_target *target)
{
    if (target->numbers)
        keep_numbers(of, at, count, to_at, room, target);
    else if (of->scale)
        return put_codes(weight, queue, of, at, count, to_at, room, target);
    else
        return put_stored(queue, of->tensor, at, count, to_at, room, target);
    return ST_OK;
}

/* Copies to the target those of this rank's elements of `weight` that the file's tensor has. Each
 * turn of the loop handles a run of `j` elements that is consecutive in this rank's memory and in
 * the file, or skips `j` that the file does not have. Where the writer held the same part of the
 * parameter, runs go on over the part's own rows, and so do blocks of codes. */
status state_take(const param *weight, stream *queue, const state_tensor *of,
                  const state_slice *part, const state_room *room, state_target *target)
{
    const st_tensor *tensor = of->tensor;
    const int64_t most = STATE_CHUNK / STATE_LARGEST;
    const bool same = memcmp(&weight->held, &part->held, sizeof part->held) == 0;
    for (int64_t i = 0, j; i < weight->own_n; i += j) {
        int64_t stored, theirs, at = weight->own_first + i;
        j = weight->own_n - i < most ? weight->own_n - i : most;
        if (!same) {
            j = slice_run(&weight->held, at, j, &stored);
            at = slice_find(&part->held, stored);
        }
        if (at < 0) {
            int64_t gap = slice_gap(&part->held, stored);
            j = gap < j ? gap : j;
            continue;
        }
        if (!same)
            j = slice_run(&part->held, at, j, &theirs);
        at -= part->first;
        if (at < 0) {
            j = -at < j ? -at : j;
            continue;
        }
        if (at >= tensor->shape[0])
            continue;
        j = tensor->shape[0] - at < j ? tensor->shape[0] - at : j;
        TRY(put_run(weight, queue, of, at, j, i, room, target));
    }
    return ST_OK;
}

/* Encodes `count` of the numbers, at most STATE_CHUNK / STATE_LARGEST,
 * and sends codes and scales. */
static status send_codes(stream *queue, int64_t first, int64_t count, const state_room *room,
                         const state_target *target)
{
    const backend_vtable *backend = queue->dev->backend;
    float *scales = (float *)room->values;
    int64_t blocks = 0;
    for (int64_t i = 0; i < count; i += STATE_BLOCK) {
        const int64_t left = count - i;
        scales[blocks++] = state_encode_block(target->numbers + first + i,
                                              left < STATE_BLOCK ? (int)left : (int)STATE_BLOCK,
                                              target->second, room->narrow + i);
    }
    TRY(backend->to_device(queue, (uint8_t *)target->to + first, room->narrow, (size_t)count));
    TRY(backend->to_device(queue, target->scale + first / STATE_BLOCK, scales,
                           (size_t)blocks * sizeof *scales));
    return backend->wait(queue);
}

/* Writes the numbers that were kept, as codes or in the type of this device. */
status state_put_numbers(const param *weight, stream *queue, const state_room *room,
                         state_target *target)
{
    const int64_t most = STATE_CHUNK / STATE_LARGEST;
    for (int64_t i = 0; i < weight->own_n; i += most) {
        const int64_t count = weight->own_n - i < most ? weight->own_n - i : most;
        const st_tensor numbers = {.dtype = DT_F32,
                                   .data = {.data = (const uint8_t *)(target->numbers + i)}};
        if (target->scale)
            TRY(send_codes(queue, i, count, room, target));
        else
            TRY(put_stored(queue, &numbers, 0, count, i, room, target));
    }
    target->found = weight->own_n;
    return ST_OK;
}
