/* SPDX-License-Identifier: Apache-2.0 */
/* stager.c: the buffers of a micro-batch, and how rows are written into them: first into arrays on
 * the host, then with one copy per array to the device. batch_caps.c counts, stager_visual.c
 * writes what belongs to visual items, and row_share.c cuts out a rank's part of shared rows. */
#include "trainer/batch/stager.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/compare.h"
#include "common/conf/conf.h"
#include "trainer/batch/row_share.h"
#include "trainer/batch/batch_caps.h"
#include "trainer/batch/stager_visual.h"
#include "trainer/device/space.h"

enum { MERGED = MERGE_SIDE * MERGE_SIDE, MAX_PARTS = 22 };

/* One array: its address on the host and on the device, and its bytes in this batch. */
typedef struct part {
    void *host, *device;
    size_t bytes;
} part;

struct stager {
    const model_dims *dims;
    device_batch batch; /* device pointers */
    device_batch host;  /* arrays of the whole rows, on the host */
    device_batch mine;  /* if ranks share rows: this rank's arrays, on the host */
    void *host_block, *mine_block, *device_block;
    item_place *place; /* [cap.items] */
    view_scratch view;
    int32_t *item_kind;       /* [cap.items] scratch */
    batch_caps room;          /* capacities of the buffers */
    const batch_caps *bucket; /* [n_buckets] */
    int n_buckets;
    bool fixed_shapes;
    int weighting; /* WEIGHTING_* */
    int32_t buffer;
    double aux_coefficient;
};

/* Places all arrays in one block; called without a base it only computes the size. */
static void lay_out(device_batch *batch, const batch_caps *caps, const row_share *share, size_t acc,
                    space *sp)
{
    size_t i32 = sizeof(int32_t);
    int64_t context = caps->tokens * share->tensor, all = context * share->context;
    batch->input_ids = space_take(sp, caps->tokens, i32);
    batch->positions = space_take(sp, 3 * context, i32);
    batch->cu_docs = space_take(sp, caps->docs + 1, i32);
    batch->doc_prefix = space_take(sp, caps->docs, i32);
    batch->token_samples = space_take(sp, caps->tokens, i32);
    batch->n_tokens = space_take(sp, 1, i32);
    batch->aux_scale = space_take(sp, 2, acc);
    batch->text_index = space_take(sp, caps->tokens, i32);
    batch->visual_index = space_take(sp, caps->tokens, i32);
    batch->target_token = space_take(sp, caps->targets, i32);
    batch->target_label = space_take(sp, caps->targets, i32);
    batch->target_weight = space_take(sp, caps->targets, acc);
    batch->pixels = space_take(sp, caps->patches, PATCH_BYTES);
    batch->pixels_wide = space_take(sp, caps->patches, VIDEO_PATCH_BYTES);
    batch->patch_row_col = space_take(sp, 2 * caps->patches, i32);
    batch->pos_index = space_take(sp, 4 * caps->patches, i32);
    batch->pos_weight = space_take(sp, 4 * caps->patches, acc);
    batch->cu_frames = space_take(sp, caps->frames + 1, i32);
    batch->cap = *caps;
    batch->share = *share;
    if (share->context == 1)
        return;
    batch->cu_keys = space_take(sp, caps->docs + 1, i32);
    batch->query_key = space_take(sp, context, i32);
    batch->key_row = space_take(sp, all, i32);
    batch->key_back = space_take(sp, all, i32);
}

int64_t stager_bytes(const batch_caps *cap, const row_share *share, const backend_vtable *backend)
{
    const batch_caps own = batch_caps_shared(cap, share);
    device_batch batch;
    space sp = {0};
    lay_out(&batch, &own, share, st_dtype_size(backend->acc), &sp);
    return (int64_t)sp.peak;
}

static bool is_shared(const stager *staging)
{
    return row_share_ranks(&staging->batch.share) > 1;
}

/* Allocates the blocks of arrays on host and device. */
static status take_blocks(stager *staging, stream *queue, const batch_caps *cap,
                          const row_share *share)
{
    const backend_vtable *backend = queue->dev->backend;
    const row_share alone = row_share_alone();
    const batch_caps own = batch_caps_shared(cap, share), rows = batch_caps_seen(cap, share);
    size_t acc = st_dtype_size(backend->acc);
    space whole = {0}, mine = {0};
    lay_out(&staging->host, &rows, &alone, acc, &whole);
    lay_out(&staging->batch, &own, share, acc, &mine);
    TRY(backend->alloc_host(queue->dev, whole.peak, &staging->host_block));
    lay_out(&staging->host, &rows, &alone, acc, &(space){.base = staging->host_block});
    TRY(backend->alloc(queue->dev, mine.peak, &staging->device_block));
    lay_out(&staging->batch, &own, share, acc, &(space){.base = staging->device_block});
    if (!is_shared(staging))
        return ST_OK;
    TRY(backend->alloc_host(queue->dev, mine.peak, &staging->mine_block));
    lay_out(&staging->mine, &own, share, acc, &(space){.base = staging->mine_block});
    return view_scratch_new(cap, share, &staging->view);
}

/* Allocates the lists that stay on the host. */
static status take_lists(stager *staging, const batch_caps *cap)
{
    staging->item_kind = calloc((size_t)cap->items + 1, sizeof(int32_t));
    staging->place = calloc((size_t)cap->items + 1, sizeof *staging->place);
    staging->host.host_target_reply = calloc((size_t)cap->targets + 1, sizeof(int32_t));
    staging->host.host_sample = calloc((size_t)cap->docs + 1, sizeof(uint64_t));
    staging->mine.host_target_reply =
        calloc((size_t)staging->batch.cap.targets + 1, sizeof(int32_t));
    if (!staging->item_kind || !staging->place || !staging->host.host_target_reply ||
        !staging->host.host_sample || !staging->mine.host_target_reply)
        return FAIL(ST_NO_MEMORY, "no memory for a batch of %lld targets", (long long)cap->targets);
    staging->batch.host_sample = staging->host.host_sample;
    staging->batch.host_target_reply =
        (is_shared(staging) ? &staging->mine : &staging->host)->host_target_reply;
    return ST_OK;
}

status stager_new_shared(stream *queue, const model_dims *dims, const batch_caps *cap,
                         const row_share *share, stager **out)
{
    stager *staging = calloc(1, sizeof *staging);
    if (!staging)
        return FAIL(ST_NO_MEMORY, "no memory for a batch's buffers");
    staging->dims = dims;
    staging->room = *cap;
    staging->fixed_shapes = queue->dev->backend->fixed_shapes;
    status st = take_blocks(staging, queue, cap, share);
    if (st == ST_OK)
        st = take_lists(staging, cap);
    if (st != ST_OK)
        stager_free(&staging, queue);
    else
        *out = staging;
    return st;
}

status stager_new(stream *queue, const model_dims *dims, const batch_caps *cap, stager **out)
{
    return stager_new_shared(queue, dims, cap, &(row_share){.context = 1, .tensor = 1}, out);
}

void stager_free(stager **gp, stream *queue)
{
    stager *staging = *gp;
    if (!staging)
        return;
    if (staging->host_block)
        queue->dev->backend->release_host(queue->dev, staging->host_block);
    if (staging->mine_block)
        queue->dev->backend->release_host(queue->dev, staging->mine_block);
    if (staging->device_block)
        queue->dev->backend->release(queue->dev, staging->device_block);
    view_scratch_done(&staging->view);
    free(staging->item_kind);
    free(staging->place);
    free(staging->host.host_target_reply);
    free(staging->host.host_sample);
    free(staging->mine.host_target_reply);
    free(staging);
    *gp = NULL;
}

void stager_weigh(stager *staging, int weighting)
{
    staging->weighting = weighting;
}

void stager_bucket(stager *staging, const batch_caps *list, int count)
{
    staging->bucket = list;
    staging->n_buckets = count;
}

void stager_fix_shapes(stager *staging, bool fixed)
{
    staging->fixed_shapes = fixed;
}

void stager_mark(stager *staging, int32_t buffer, double aux_coefficient)
{
    staging->buffer = buffer;
    staging->aux_coefficient = aux_coefficient;
}

/* The number of the bucket that holds these counts; n_buckets stands for the capacities of the
 * buffers themselves. */
static int choose_bucket(const stager *staging, const batch_caps *counts)
{
    int k = 0;
    while (k < staging->n_buckets && !batch_caps_hold(&staging->bucket[k], counts))
        k++;
    return k;
}

/* Whether two tokens show the same merged row. */
static bool shows_twice(const row *packed)
{
    int32_t last = -1;
    for (int64_t i = 0; i < packed->n_tokens; i++) {
        const int32_t visual_row = packed->visual_row[i];
        if (visual_row >= 0 && visual_row <= last)
            return true; /* rows that only rise occur once */
        last = visual_row > last ? visual_row : last;
    }
    return false;
}

batch_shape stager_shape(const stager *staging, const row *rows, int64_t n_rows)
{
    const batch_caps counts = batch_caps_count(rows, n_rows);
    batch_shape shape = {.bucket = choose_bucket(staging, &counts)};
    for (int64_t i = 0; i < n_rows; i++) {
        shape.prefixes |= rows[i].doc_prefix != NULL;
        shape.wide |= rows[i].n_video_patches > 0;
        shape.shared |= shows_twice(&rows[i]);
    }
    return shape;
}

static batch_shape join_shapes(const batch_shape *first, const batch_shape *second)
{
    return (batch_shape){.bucket = max_i64(first->bucket, second->bucket),
                         .prefixes = first->prefixes || second->prefixes,
                         .wide = first->wide || second->wide,
                         .shared = first->shared || second->shared};
}

static void put_weight(void *array, st_dtype acc, int64_t index, double weight)
{
    if (acc == DT_F64)
        ((double *)array)[index] = weight;
    else
        ((float *)array)[index] = (float)weight;
}

/* How much every target of a document counts. */
static double document_weight(const stager *staging, const row *packed, int64_t doc)
{
    double sum = 0;
    if (staging->weighting == WEIGHTING_TOKEN)
        return 1;
    for (int64_t token = packed->cu_seqlens[doc]; token < packed->cu_seqlens[doc + 1]; token++)
        if (packed->labels[token] != NO_LABEL)
            sum += packed->loss_weight ? packed->loss_weight[token] : 1;
    return sum <= 0 ? 1 : staging->weighting == WEIGHTING_SAMPLE ? 1 / sum : 1 / sqrt(sum);
}

/* How many samples have the document's tokens: a prefix is in each of its branches. */
static int32_t document_samples(const row *packed, int64_t doc)
{
    int64_t end = doc + 1;
    while (packed->doc_prefix && end < packed->n_docs && packed->doc_prefix[end] == doc)
        end++;
    return end > doc + 1 ? (int32_t)(end - doc - 1) : 1;
}

/* Appends the tokens, borders and targets of one row. */
static status put_text(stager *staging, st_dtype acc, const row *packed, int64_t stride,
                       device_batch *at)
{
    device_batch *host = &staging->host;
    int64_t t0 = at->tokens;
    for (int64_t doc = 0; doc < packed->n_docs; doc++) {
        host->host_sample[at->docs + doc] = packed->doc_sample_id[doc];
        const int32_t samples = document_samples(packed, doc);
        double counts = document_weight(staging, packed, doc);
        bool in_reply = false;
        host->cu_docs[at->docs + doc + 1] = (int32_t)(t0 + packed->cu_seqlens[doc + 1]);
        host->doc_prefix[at->docs + doc] = packed->doc_prefix && packed->doc_prefix[doc] >= 0
                                               ? (int32_t)at->docs + packed->doc_prefix[doc]
                                               : -1;
        for (int64_t token = packed->cu_seqlens[doc]; token < packed->cu_seqlens[doc + 1];
             token++) {
            int32_t id = packed->input_ids[token], label = packed->labels[token];
            unsigned long long sample = packed->doc_sample_id[doc];
            if (id < 0 || id >= staging->dims->text.vocab)
                return FAIL(ST_BAD_INPUT,
                            "sample %llu: token id %d is outside the vocabulary of %lld; does "
                            "model.tokenizer belong to this model?",
                            sample, id, (long long)staging->dims->text.vocab);
            host->input_ids[t0 + token] = id;
            host->token_samples[t0 + token] = samples;
            for (int axis = 0; axis < 3; axis++)
                host->positions[axis * stride + t0 + token] =
                    packed->position_ids[axis * packed->n_tokens + token];
            if (label == NO_LABEL) {
                in_reply = false;
                continue;
            }
            if (label < 0 || label >= staging->dims->text.vocab || token == packed->cu_seqlens[doc])
                return FAIL(ST_BAD_INPUT, "sample %llu: label %d at token %lld of its document %s",
                            sample, label, (long long)(token - packed->cu_seqlens[doc]),
                            label < 0 || label >= staging->dims->text.vocab
                                ? "is outside the vocabulary"
                                : "has no token before it");
            double weight = counts * (packed->loss_weight ? packed->loss_weight[token] : 1);
            int64_t count = at->targets++;
            host->target_token[count] = (int32_t)(t0 + token - 1);
            host->target_label[count] = label;
            put_weight(host->target_weight, acc, count, weight);
            host->host_target_reply[count] =
                count == 0 ? 0 : host->host_target_reply[count - 1] + !in_reply;
            in_reply = true;
            at->weight += weight;
        }
    }
    return ST_OK;
}

static void fill_i32(int32_t *array, int64_t from, int64_t to, int32_t value)
{
    for (int64_t i = from; i < to; i++)
        array[i] = value;
}

/* Pads the arrays of patches from the counts up to the capacities. */
static void pad_patches(device_batch *host, int64_t patches, int64_t frames, size_t acc)
{
    const batch_caps *caps = &host->cap;
    size_t from = (size_t)patches, pads = (size_t)(caps->patches - patches);
    memset(host->pixels + from * PATCH_BYTES, 0, pads * PATCH_BYTES);
    memset(host->pixels_wide + from * VIDEO_PATCH_BYTES, 0, pads * VIDEO_PATCH_BYTES);
    fill_i32(host->patch_row_col, 2 * patches, 2 * caps->patches, 0);
    fill_i32(host->pos_index, 4 * patches, 4 * caps->patches, 0);
    memset((char *)host->pos_weight + 4 * from * acc, 0, 4 * pads * acc);
    fill_i32(host->cu_frames, frames + 1, caps->frames + 1, (int32_t)patches);
}

/* Pads the arrays of tokens and targets, for rows that are not shared. */
static void pad_tokens(device_batch *host, const batch_caps *counts, size_t acc, int64_t stride)
{
    const batch_caps *caps = &host->cap;
    fill_i32(host->input_ids, counts->tokens, caps->tokens, 0);
    fill_i32(host->token_samples, counts->tokens, caps->tokens, 0);
    fill_i32(host->text_index, counts->tokens, caps->tokens, -1);
    fill_i32(host->visual_index, counts->tokens, caps->tokens, -1);
    for (int axis = 0; axis < 3; axis++)
        fill_i32(host->positions + axis * stride, counts->tokens, stride, 0);
    fill_i32(host->cu_docs, counts->docs + 1, caps->docs + 1, (int32_t)counts->tokens);
    fill_i32(host->target_token, counts->targets, caps->targets, -1);
    fill_i32(host->target_label, counts->targets, caps->targets, -1);
    memset((char *)host->target_weight + (size_t)counts->targets * acc, 0,
           (size_t)(caps->targets - counts->targets) * acc);
}

static status upload_batch(stager *staging, stream *queue, size_t acc)
{
    const device_batch *host = is_shared(staging) ? &staging->mine : &staging->host,
                       *batch = &staging->batch;
    batch_caps counts = batch_sizes(batch);
    size_t i32 = sizeof(int32_t), tokens = (size_t)counts.tokens, patches = (size_t)counts.patches;
    size_t targets = (size_t)counts.targets;
    size_t context = tokens * (size_t)batch->share.tensor,
           all = context * (size_t)batch->share.context;
    size_t keys =
        batch->share.context > 1 ? i32 : 0; /* these arrays exist only with context ranks */
    const part parts[] = {
        {host->input_ids, batch->input_ids, tokens * i32},
        {host->positions, batch->positions, 3 * context * i32},
        {host->cu_docs, batch->cu_docs, (size_t)(batch->cap.docs + 1) * i32},
        {host->doc_prefix, batch->doc_prefix,
         batch->has_prefixes ? (size_t)batch->cap.docs * i32 : 0},
        {host->token_samples, batch->token_samples, batch->has_prefixes ? tokens * i32 : 0},
        {host->n_tokens, batch->n_tokens, i32},
        {host->aux_scale, batch->aux_scale, 2 * acc},
        {host->text_index, batch->text_index, tokens * i32},
        {host->visual_index, batch->visual_index, tokens * i32},
        {host->target_token, batch->target_token, targets * i32},
        {host->target_label, batch->target_label, targets * i32},
        {host->target_weight, batch->target_weight, targets * acc},
        {host->pixels, batch->pixels, batch->wide ? 0 : patches * PATCH_BYTES},
        {host->pixels_wide, batch->pixels_wide, batch->wide ? patches * VIDEO_PATCH_BYTES : 0},
        {host->patch_row_col, batch->patch_row_col, 2 * patches * i32},
        {host->pos_index, batch->pos_index, 4 * patches * i32},
        {host->pos_weight, batch->pos_weight, 4 * patches * acc},
        {host->cu_frames, batch->cu_frames, (size_t)(batch->cap.frames + 1) * i32},
        {host->cu_keys, batch->cu_keys, (size_t)(batch->cap.docs + 1) * keys},
        {host->query_key, batch->query_key, context * keys},
        {host->key_row, batch->key_row, all * keys},
        {host->key_back, batch->key_back, all * keys},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i].bytes > 0)
            TRY(queue->dev->backend->to_device(queue, parts[i].device, parts[i].host,
                                               parts[i].bytes));
    }
    return ST_OK;
}

/* Checks the rows' items and divides them over the ranks of the row. */
static status share_items(stager *staging, const row *rows, int64_t n_rows, device_batch *batch)
{
    const int64_t ranks = row_share_ranks(&batch->share);
    for (int64_t i = 0; i < n_rows; i++)
        TRY(stage_visual_check(&rows[i], staging->dims));
    TRY(row_share_items(rows, n_rows, &staging->dims->vision, ranks, staging->place,
                        &batch->feature_rows, &batch->vision_uneven));
    if (staging->fixed_shapes)
        batch->feature_rows = batch->cap.patches / MERGED;
    return ST_OK;
}

/* The tokens of the batch, each as often as samples have it. */
static int64_t count_samples(const device_batch *mine)
{
    int64_t count = 0;
    for (int32_t i = 0; i < *mine->n_tokens; i++)
        count += mine->token_samples[i];
    return count;
}

/* Writes the counts of the batch and, if ranks share rows, this rank's part of the arrays. */
static status put_view(stager *staging, st_dtype acc, const batch_caps *counts, double weight,
                       int64_t stride)
{
    device_batch *host = &staging->host, *batch = &staging->batch, *mine = &staging->mine;
    host->tokens = counts->tokens;
    host->docs = counts->docs;
    host->targets = counts->targets;
    host->weight = weight;
    if (is_shared(staging)) {
        int64_t each = staging->fixed_shapes ? batch->cap.tokens
                                             : row_share_tokens(&batch->share, counts->tokens);
        TRY(view_make(&staging->view, host, stride, each, acc, mine));
        batch->host_place = staging->view.owner;
        batch->context_uneven = mine->context_uneven;
    } else {
        mine = host;
        pad_tokens(host, counts, st_dtype_size(acc), stride);
        *host->n_tokens = (int32_t)counts->tokens;
        batch->context_uneven = 1;
    }
    put_weight(mine->aux_scale, acc, 0, staging->aux_coefficient * mine->weight);
    put_weight(mine->aux_scale, acc, 1, (double)count_samples(mine));
    batch->tokens = mine->tokens;
    batch->docs = mine->docs;
    batch->targets = mine->targets;
    batch->weight = mine->weight;
    return ST_OK;
}

status stage_rows(stager *staging, stream *queue, const row *rows, int64_t n_rows,
                  device_batch **out)
{
    return stage_rows_in(staging, queue, rows, n_rows, &(batch_shape){0}, out);
}

status stage_rows_in(stager *staging, stream *queue, const row *rows, int64_t n_rows,
                     const batch_shape *least, device_batch **out)
{
    st_dtype acc = queue->dev->backend->acc;
    device_batch *host = &staging->host, *batch = &staging->batch;
    batch_caps counts = batch_caps_count(rows, n_rows);
    TRY(batch_caps_check(&staging->room, &counts, rows, n_rows));
    const batch_shape need = stager_shape(staging, rows, n_rows);
    const batch_shape shape = join_shapes(&need, least);
    host->cap = batch_caps_seen(shape.bucket < staging->n_buckets ? &staging->bucket[shape.bucket]
                                                                  : &staging->room,
                                &batch->share);
    batch->cap = staging->mine.cap = batch_caps_shared(&host->cap, &batch->share);
    TRY(share_items(staging, rows, n_rows, batch));
    int64_t stride = staging->fixed_shapes ? host->cap.tokens : counts.tokens;
    device_batch at = {0}; /* the counts of the rows so far */
    visual_stage visual = {.dims = staging->dims,
                           .host = host,
                           .mine = is_shared(staging) ? &staging->mine : host,
                           .place = staging->place,
                           .rank = batch->share.blind ? -1 : row_share_rank(&batch->share),
                           .feature_rows = batch->feature_rows,
                           .acc = acc,
                           .wide = shape.wide,
                           .kind = staging->item_kind};
    host->cu_docs[0] = 0;
    visual.mine->cu_frames[0] = 0;
    batch->has_prefixes = shape.prefixes;
    for (int64_t i = 0; i < n_rows; i++) {
        TRY(put_text(staging, acc, &rows[i], stride, &at));
        TRY(stage_visual_row(&visual, &rows[i], at.tokens));
        at.tokens += rows[i].n_tokens;
        at.docs += rows[i].n_docs;
    }
    fill_i32(host->doc_prefix, counts.docs, host->cap.docs, -1);
    pad_patches(visual.mine, visual.patches, visual.frames, st_dtype_size(acc));
    TRY(put_view(staging, acc, &counts, at.weight, stride));
    batch->fixed_shapes = staging->fixed_shapes;
    batch->patches = visual.patches;
    batch->items = counts.items;
    batch->frames = visual.frames;
    batch->longest = counts.longest;
    batch->frame = counts.frame;
    batch->wide = shape.wide;
    batch->visual_distinct = !shape.shared;
    batch->variant = 8 * (shape.bucket * STAGERS_MAX + staging->buffer) + 4 * batch->has_prefixes +
                     2 * batch->wide + batch->visual_distinct;
    TRY(upload_batch(staging, queue, st_dtype_size(acc)));
    *out = batch;
    return ST_OK;
}
