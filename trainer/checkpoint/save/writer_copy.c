/* SPDX-License-Identifier: Apache-2.0 */
/* writer_copy.c: what the options ask of the writer, and the copy of values and moments in host
 * memory that a save is written from while training goes on. */

#include <stdlib.h>
#include <string.h>

#include "trainer/checkpoint/save/writer.h"
#include "trainer/checkpoint/save/writer_parts.h"
#include "trainer/checkpoint/state/base.h"
#include "trainer/model/params/lora_params.h"
#include "trainer/model/params/params_states.h"

bool checkpoint_writer_in_background(const conf *options)
{
    return options->checkpoint_enable && options->checkpoint_async_mode != CHECKPOINT_SYNC;
}

static model_when model_when_of(const conf *options, bool has_base)
{
    switch (options->checkpoint_model) {
    case CHECKPOINT_MODEL_END:
        return MODEL_AT_END;
    case CHECKPOINT_MODEL_ALWAYS:
        return MODEL_ALWAYS;
    case CHECKPOINT_MODEL_NEVER:
        return MODEL_NEVER;
    default:
        return options->lora_rank ? MODEL_NEVER : has_base ? MODEL_AT_END : MODEL_ALWAYS;
    }
}

model_when checkpoint_writer_when(const conf *options, const params *registry)
{
    return model_when_of(options, base_wanted(registry));
}

bool checkpoint_writer_whole(const conf *options, const params *registry)
{
    return checkpoint_writer_when(options, registry) == MODEL_ALWAYS;
}

bool checkpoint_writer_reads_frozen(const conf *options)
{
    return model_when_of(options, true) == MODEL_ALWAYS && !base_has_files(options);
}

int64_t checkpoint_writer_snapshot(const params_sizes *size, const backend_vtable *backend,
                                   int copies, bool with_frozen)
{
    const int64_t act = (int64_t)st_dtype_size(backend->act);
    const int64_t values =
        backend->act == backend->acc || size->act_masters ? size->trained * act : size->values;
    const int64_t frozen =
        backend->immediate || !with_frozen ? 0 : size->acts - size->trained * act;
    return copies ? copies * (values + 2 * size->moments) + frozen : 0;
}

static size_t bytes_of(const param_block *block)
{
    return (size_t)block->count * st_dtype_size(block->dtype);
}

/* The place in a block of the snapshot of what a row has in the live block. */
static void *moved(const param_block *to, const void *from, const param_block *live)
{
    return from ? (char *)to->at + ((const char *)from - (const char *)live->at) : NULL;
}

/* Frozen values are the end of the block of what is computed with. */
static char *first_frozen(const params *live)
{
    return (char *)live->acts.at + (size_t)live->trained_elements * st_dtype_size(live->acts.dtype);
}

/* Points writer->view at the copy: each array is moved from the live block to the same place in the
 * copy's block. */
static void point_view(checkpoint_writer *writer)
{
    const params *live = writer->live;
    const param_block *kept = writer->kept, frozen = {.at = first_frozen(live)};
    for (int i = 0; i < WRITER_FROZEN && writer->shot; i++)
        writer->kept[i].at = snapshot_block(writer->shot, i);
    for (int64_t i = 0; i < live->count; i++) {
        const param *from = &live->list[i];
        param *to = &writer->view.list[i]; /* an adapter's `whole`: writer_take_adapters */
        to->value = to->own_act = to->act = to->grad = to->own_grad = NULL;
        if (!from->frozen && from->value_dtype != live->values.dtype)
            to->value = moved(&kept[WRITER_MOMENTS1], from->value, &live->moments1);
        else if (!from->frozen)
            to->value = moved(&kept[WRITER_VALUES], from->value, &live->values);
        else
            to->own_act = kept[WRITER_FROZEN].at
                              ? moved(&kept[WRITER_FROZEN], from->own_act, &frozen)
                              : from->own_act;
        to->moment1 = moved(&kept[WRITER_MOMENTS1], from->moment1, &live->moments1);
        to->moment2 = moved(&kept[WRITER_MOMENTS2], from->moment2, &live->moments2);
        to->scale1 = moved(&kept[WRITER_MOMENTS1], from->scale1, &live->moments1);
        to->scale2 = moved(&kept[WRITER_MOMENTS2], from->scale2, &live->moments2);
    }
}

/* Makes writer->view, a copy of the live registry. */
static status make_view(checkpoint_writer *writer)
{
    const size_t bytes = (size_t)writer->live->count * sizeof *writer->view.list;
    writer->view = *writer->live;
    writer->view.list = malloc(bytes);
    if (!writer->view.list)
        return FAIL(ST_NO_MEMORY, "no memory for a snapshot of the parameters");
    memcpy(writer->view.list, writer->live->list, bytes);
    return ST_OK;
}

/* Whether the snapshot needs frozen values. Without the options' saying so it does if a row is
 * frozen now and was trained before. */
static bool reads_frozen(const checkpoint_writer *writer)
{
    bool reads = checkpoint_writer_reads_frozen(writer->conf);
    for (int64_t i = 0; i < writer->live->count && !reads; i++)
        reads = writer->live->list[i].frozen && !param_in_base(&writer->live->list[i]);
    return reads;
}

/* Takes host memory for what the snapshot does not have. */
static status take_blocks(checkpoint_writer *writer)
{
    device *dev = writer->live_stream->dev;
    const params *live = writer->live;
    const param_block frozen = {.dtype = live->acts.dtype,
                                .count = live->frozen_on_host
                                             ? 0 /* they are read where they rest */
                                             : live->block_elements - live->trained_elements};
    const param_block blocks[WRITER_BLOCKS] = {
        [WRITER_VALUES] = {.dtype = live->values.dtype, .count = live->trained_elements},
        [WRITER_MOMENTS1] = {.dtype = live->moments1.dtype, .count = live->moments1.count},
        [WRITER_MOMENTS2] = {.dtype = live->moments2.dtype, .count = live->moments2.count},
        [WRITER_FROZEN] =
            reads_frozen(writer) && !dev->backend->immediate ? frozen : (param_block){0}};
    for (int i = 0; i < WRITER_BLOCKS; i++) {
        writer->kept[i] = blocks[i];
        if (blocks[i].count && (i == WRITER_FROZEN || !writer->shot))
            TRY(dev->backend->alloc_host(dev, bytes_of(&blocks[i]), &writer->kept[i].at));
    }
    return ST_OK;
}

status writer_take_memory(checkpoint_writer *writer)
{
    TRY(take_blocks(writer));
    return make_view(writer);
}

void writer_release_memory(checkpoint_writer *writer)
{
    device *dev = writer->live_stream->dev;
    for (int i = 0; i < WRITER_BLOCKS; i++)
        if (writer->kept[i].at && (i == WRITER_FROZEN || !writer->shot))
            dev->backend->release_host(dev, writer->kept[i].at);
    if (writer->view.list != writer->live->list)
        free(writer->view.list);
}

/* Copies to the writer's own memory what the snapshot does not have. */
static status copy_live(checkpoint_writer *writer)
{
    const backend_vtable *backend = writer->live_stream->dev->backend;
    const params *live = writer->live;
    const void *from[WRITER_BLOCKS] = {live->values.at, live->moments1.at, live->moments2.at,
                                       first_frozen(live)};
    for (int i = writer->shot ? WRITER_FROZEN : 0;
         i < (writer->has_frozen ? WRITER_FROZEN : WRITER_BLOCKS); i++)
        if (writer->kept[i].at)
            TRY(backend->to_host(writer->live_stream, writer->kept[i].at, from[i],
                                 bytes_of(&writer->kept[i])));
    writer->has_frozen = true;
    return backend->wait(writer->live_stream);
}

status writer_take_copy(checkpoint_writer *writer, const progress *state)
{
    TRY(states_settle(writer->live, writer->live_stream));
    if (writer->shot) {
        TRY(snapshot_take(writer->shot, state, false));
        snapshot_keep_side(writer->shot);
    }
    if (!writer->background)
        return ST_OK;
    TRY(copy_live(writer));
    point_view(writer);
    return ST_OK;
}

status writer_take_adapters(checkpoint_writer *writer)
{
    TRY(states_settle(writer->live, writer->live_stream));
    TRY(lora_gather(writer->live, writer->live_stream));
    for (int64_t i = 0; i < writer->live->count && writer->background; i++)
        writer->view.list[i].whole = writer->live->list[i].whole;
    return ST_OK;
}
