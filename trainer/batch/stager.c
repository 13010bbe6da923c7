/* stager.c: the buffers of a micro-batch, and how rows are written into them: first into arrays on
 * the host, then with one copy per array to the device. stager_caps.c counts, stager_visual.c
 * writes what belongs to visual items, and view.c cuts out a rank's part of shared rows. */
#include "trainer/batch/stager.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf/conf.h"
#include "trainer/batch/row_share.h"
#include "trainer/batch/stager_caps.h"
#include "trainer/batch/stager_visual.h"
#include "trainer/batch/view.h"
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
static void lay_out(device_batch *b, const batch_caps *c, const row_share *v, size_t acc, space *sp)
{
    size_t i32 = sizeof(int32_t);
    int64_t context = c->tokens * v->tensor, all = context * v->context;
    b->input_ids = space_take(sp, c->tokens, i32);
    b->positions = space_take(sp, 3 * context, i32);
    b->cu_docs = space_take(sp, c->docs + 1, i32);
    b->doc_prefix = space_take(sp, c->docs, i32);
    b->token_samples = space_take(sp, c->tokens, i32);
    b->n_tokens = space_take(sp, 1, i32);
    b->aux_scale = space_take(sp, 2, acc);
    b->text_index = space_take(sp, c->tokens, i32);
    b->visual_index = space_take(sp, c->tokens, i32);
    b->target_token = space_take(sp, c->targets, i32);
    b->target_label = space_take(sp, c->targets, i32);
    b->target_weight = space_take(sp, c->targets, acc);
    b->pixels = space_take(sp, c->patches, PATCH_BYTES);
    b->pixels_wide = space_take(sp, c->patches, VIDEO_PATCH_BYTES);
    b->patch_row_col = space_take(sp, 2 * c->patches, i32);
    b->pos_index = space_take(sp, 4 * c->patches, i32);
    b->pos_weight = space_take(sp, 4 * c->patches, acc);
    b->cu_frames = space_take(sp, c->frames + 1, i32);
    b->cap = *c;
    b->share = *v;
    if (v->context == 1)
        return;
    b->cu_keys = space_take(sp, c->docs + 1, i32);
    b->query_key = space_take(sp, context, i32);
    b->key_row = space_take(sp, all, i32);
    b->key_back = space_take(sp, all, i32);
}

int64_t stager_bytes(const batch_caps *cap, const row_share *share, const backend_vtable *backend)
{
    const batch_caps own = batch_caps_shared(cap, share);
    device_batch b;
    space sp = {0};
    lay_out(&b, &own, share, st_dtype_size(backend->acc), &sp);
    return (int64_t)sp.peak;
}

static bool is_shared(const stager *g)
{
    return row_share_ranks(&g->batch.share) > 1;
}

/* Allocates the blocks of arrays on host and device. */
static status take_blocks(stager *g, stream *s, const batch_caps *cap, const row_share *share)
{
    const backend_vtable *v = s->dev->backend;
    const row_share alone = row_share_alone();
    const batch_caps own = batch_caps_shared(cap, share), rows = batch_caps_seen(cap, share);
    size_t acc = st_dtype_size(v->acc);
    space whole = {0}, mine = {0};
    lay_out(&g->host, &rows, &alone, acc, &whole);
    lay_out(&g->batch, &own, share, acc, &mine);
    TRY(v->alloc_host(s->dev, whole.peak, &g->host_block));
    lay_out(&g->host, &rows, &alone, acc, &(space){.base = g->host_block});
    TRY(v->alloc(s->dev, mine.peak, &g->device_block));
    lay_out(&g->batch, &own, share, acc, &(space){.base = g->device_block});
    if (!is_shared(g))
        return ST_OK;
    TRY(v->alloc_host(s->dev, mine.peak, &g->mine_block));
    lay_out(&g->mine, &own, share, acc, &(space){.base = g->mine_block});
    return view_scratch_new(cap, share, &g->view);
}

/* Allocates the lists that stay on the host. */
static status take_lists(stager *g, const batch_caps *cap)
{
    g->item_kind = calloc((size_t)cap->items + 1, sizeof(int32_t));
    g->place = calloc((size_t)cap->items + 1, sizeof *g->place);
    g->host.host_target_reply = calloc((size_t)cap->targets + 1, sizeof(int32_t));
    g->host.host_sample = calloc((size_t)cap->docs + 1, sizeof(uint64_t));
    g->mine.host_target_reply = calloc((size_t)g->batch.cap.targets + 1, sizeof(int32_t));
    if (!g->item_kind || !g->place || !g->host.host_target_reply || !g->host.host_sample ||
        !g->mine.host_target_reply)
        return FAIL(ST_NO_MEMORY, "no memory for a batch of %lld targets", (long long)cap->targets);
    g->batch.host_sample = g->host.host_sample;
    g->batch.host_target_reply = (is_shared(g) ? &g->mine : &g->host)->host_target_reply;
    return ST_OK;
}

status stager_new_shared(stream *s, const model_dims *dims, const batch_caps *cap,
                         const row_share *share, stager **out)
{
    stager *g = calloc(1, sizeof *g);
    if (!g)
        return FAIL(ST_NO_MEMORY, "no memory for a batch's buffers");
    g->dims = dims;
    g->room = *cap;
    g->fixed_shapes = s->dev->backend->fixed_shapes;
    status st = take_blocks(g, s, cap, share);
    if (st == ST_OK)
        st = take_lists(g, cap);
    if (st != ST_OK)
        stager_free(&g, s);
    else
        *out = g;
    return st;
}

status stager_new(stream *s, const model_dims *dims, const batch_caps *cap, stager **out)
{
    return stager_new_shared(s, dims, cap, &(row_share){.context = 1, .tensor = 1}, out);
}

void stager_free(stager **gp, stream *s)
{
    stager *g = *gp;
    if (!g)
        return;
    if (g->host_block)
        s->dev->backend->release_host(s->dev, g->host_block);
    if (g->mine_block)
        s->dev->backend->release_host(s->dev, g->mine_block);
    if (g->device_block)
        s->dev->backend->release(s->dev, g->device_block);
    view_scratch_done(&g->view);
    free(g->item_kind);
    free(g->place);
    free(g->host.host_target_reply);
    free(g->host.host_sample);
    free(g->mine.host_target_reply);
    free(g);
    *gp = NULL;
}

void stager_weigh(stager *g, int weighting)
{
    g->weighting = weighting;
}

void stager_bucket(stager *g, const batch_caps *list, int n)
{
    g->bucket = list;
    g->n_buckets = n;
}

void stager_fix_shapes(stager *g, bool fixed)
{
    g->fixed_shapes = fixed;
}

void stager_mark(stager *g, int32_t buffer, double aux_coefficient)
{
    g->buffer = buffer;
    g->aux_coefficient = aux_coefficient;
}

/* The number of the bucket that holds these counts; n_buckets stands for the capacities of the
 * buffers themselves. */
static int choose_bucket(const stager *g, const batch_caps *n)
{
    int k = 0;
    while (k < g->n_buckets && !batch_caps_hold(&g->bucket[k], n))
        k++;
    return k;
}

static void put_weight(void *array, st_dtype acc, int64_t i, double w)
{
    if (acc == DT_F64)
        ((double *)array)[i] = w;
    else
        ((float *)array)[i] = (float)w;
}

/* How much every target of a document counts. */
static double document_weight(const stager *g, const row *r, int64_t doc)
{
    double sum = 0;
    if (g->weighting == WEIGHTING_TOKEN)
        return 1;
    for (int64_t t = r->cu_seqlens[doc]; t < r->cu_seqlens[doc + 1]; t++)
        if (r->labels[t] != NO_LABEL)
            sum += r->loss_weight ? r->loss_weight[t] : 1;
    return sum <= 0 ? 1 : g->weighting == WEIGHTING_SAMPLE ? 1 / sum : 1 / sqrt(sum);
}

/* How many samples have the document's tokens: a prefix is in each of its branches. */
static int32_t document_samples(const row *r, int64_t doc)
{
    int64_t end = doc + 1;
    while (r->doc_prefix && end < r->n_docs && r->doc_prefix[end] == doc)
        end++;
    return end > doc + 1 ? (int32_t)(end - doc - 1) : 1;
}

/* Appends the tokens, borders and targets of one row. */
static status put_text(stager *g, st_dtype acc, const row *r, int64_t stride, device_batch *at)
{
    device_batch *h = &g->host;
    int64_t t0 = at->tokens;
    for (int64_t doc = 0; doc < r->n_docs; doc++) {
        h->host_sample[at->docs + doc] = r->doc_sample_id[doc];
        const int32_t samples = document_samples(r, doc);
        double counts = document_weight(g, r, doc);
        bool in_reply = false;
        h->cu_docs[at->docs + doc + 1] = (int32_t)(t0 + r->cu_seqlens[doc + 1]);
        h->doc_prefix[at->docs + doc] =
            r->doc_prefix && r->doc_prefix[doc] >= 0 ? (int32_t)at->docs + r->doc_prefix[doc] : -1;
        for (int64_t t = r->cu_seqlens[doc]; t < r->cu_seqlens[doc + 1]; t++) {
            int32_t id = r->input_ids[t], label = r->labels[t];
            unsigned long long sample = r->doc_sample_id[doc];
            if (id < 0 || id >= g->dims->text.vocab)
                return FAIL(ST_BAD_INPUT,
                            "sample %llu: token id %d is outside the vocabulary of %lld; does "
                            "model.tokenizer belong to this model?",
                            sample, id, (long long)g->dims->text.vocab);
            h->input_ids[t0 + t] = id;
            h->token_samples[t0 + t] = samples;
            for (int axis = 0; axis < 3; axis++)
                h->positions[axis * stride + t0 + t] = r->position_ids[axis * r->n_tokens + t];
            if (label == NO_LABEL) {
                in_reply = false;
                continue;
            }
            if (label < 0 || label >= g->dims->text.vocab || t == r->cu_seqlens[doc])
                return FAIL(ST_BAD_INPUT, "sample %llu: label %d at token %lld of its document %s",
                            sample, label, (long long)(t - r->cu_seqlens[doc]),
                            label < 0 || label >= g->dims->text.vocab ? "is outside the vocabulary"
                                                                      : "has no token before it");
            double w = counts * (r->loss_weight ? r->loss_weight[t] : 1);
            int64_t n = at->targets++;
            h->target_token[n] = (int32_t)(t0 + t - 1);
            h->target_label[n] = label;
            put_weight(h->target_weight, acc, n, w);
            h->host_target_reply[n] = n == 0 ? 0 : h->host_target_reply[n - 1] + !in_reply;
            in_reply = true;
            at->weight += w;
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
static void pad_patches(device_batch *h, int64_t patches, int64_t frames, size_t acc)
{
    const batch_caps *c = &h->cap;
    size_t from = (size_t)patches, pads = (size_t)(c->patches - patches);
    memset(h->pixels + from * PATCH_BYTES, 0, pads * PATCH_BYTES);
    memset(h->pixels_wide + from * VIDEO_PATCH_BYTES, 0, pads * VIDEO_PATCH_BYTES);
    fill_i32(h->patch_row_col, 2 * patches, 2 * c->patches, 0);
    fill_i32(h->pos_index, 4 * patches, 4 * c->patches, 0);
    memset((char *)h->pos_weight + 4 * from * acc, 0, 4 * pads * acc);
    fill_i32(h->cu_frames, frames + 1, c->frames + 1, (int32_t)patches);
}

/* Pads the arrays of tokens and targets, for rows that are not shared. */
static void pad_tokens(device_batch *h, const batch_caps *n, size_t acc, int64_t stride)
{
    const batch_caps *c = &h->cap;
    fill_i32(h->input_ids, n->tokens, c->tokens, 0);
    fill_i32(h->token_samples, n->tokens, c->tokens, 0);
    fill_i32(h->text_index, n->tokens, c->tokens, -1);
    fill_i32(h->visual_index, n->tokens, c->tokens, -1);
    for (int axis = 0; axis < 3; axis++)
        fill_i32(h->positions + axis * stride, n->tokens, stride, 0);
    fill_i32(h->cu_docs, n->docs + 1, c->docs + 1, (int32_t)n->tokens);
    fill_i32(h->target_token, n->targets, c->targets, -1);
    fill_i32(h->target_label, n->targets, c->targets, -1);
    memset((char *)h->target_weight + (size_t)n->targets * acc, 0,
           (size_t)(c->targets - n->targets) * acc);
}

static status upload_batch(stager *g, stream *s, size_t acc)
{
    const device_batch *h = is_shared(g) ? &g->mine : &g->host, *b = &g->batch;
    batch_caps n = batch_sizes(b);
    size_t i32 = sizeof(int32_t), tokens = (size_t)n.tokens, patches = (size_t)n.patches;
    size_t targets = (size_t)n.targets;
    size_t context = tokens * (size_t)b->share.tensor, all = context * (size_t)b->share.context;
    size_t keys = b->share.context > 1 ? i32 : 0; /* these arrays exist only with context ranks */
    const part parts[] = {
        {h->input_ids, b->input_ids, tokens * i32},
        {h->positions, b->positions, 3 * context * i32},
        {h->cu_docs, b->cu_docs, (size_t)(b->cap.docs + 1) * i32},
        {h->doc_prefix, b->doc_prefix, b->has_prefixes ? (size_t)b->cap.docs * i32 : 0},
        {h->token_samples, b->token_samples, b->has_prefixes ? tokens * i32 : 0},
        {h->n_tokens, b->n_tokens, i32},
        {h->aux_scale, b->aux_scale, 2 * acc},
        {h->text_index, b->text_index, tokens * i32},
        {h->visual_index, b->visual_index, tokens * i32},
        {h->target_token, b->target_token, targets * i32},
        {h->target_label, b->target_label, targets * i32},
        {h->target_weight, b->target_weight, targets * acc},
        {h->pixels, b->pixels, b->wide ? 0 : patches * PATCH_BYTES},
        {h->pixels_wide, b->pixels_wide, b->wide ? patches * VIDEO_PATCH_BYTES : 0},
        {h->patch_row_col, b->patch_row_col, 2 * patches * i32},
        {h->pos_index, b->pos_index, 4 * patches * i32},
        {h->pos_weight, b->pos_weight, 4 * patches * acc},
        {h->cu_frames, b->cu_frames, (size_t)(b->cap.frames + 1) * i32},
        {h->cu_keys, b->cu_keys, (size_t)(b->cap.docs + 1) * keys},
        {h->query_key, b->query_key, context * keys},
        {h->key_row, b->key_row, all * keys},
        {h->key_back, b->key_back, all * keys},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i].bytes > 0)
            TRY(s->dev->backend->to_device(s, parts[i].device, parts[i].host, parts[i].bytes));
    }
    return ST_OK;
}

/* Checks the rows' items and divides them over the ranks of the row. */
static status share_items(stager *g, const row *rows, int64_t n_rows, device_batch *b)
{
    const int64_t ranks = row_share_ranks(&b->share);
    for (int64_t i = 0; i < n_rows; i++)
        TRY(stage_visual_check(&rows[i], g->dims));
    TRY(row_share_items(rows, n_rows, &g->dims->vision, ranks, g->place, &b->feature_rows,
                        &b->vision_uneven));
    if (g->fixed_shapes)
        b->feature_rows = b->cap.patches / MERGED;
    return ST_OK;
}

/* The tokens of the batch, each as often as samples have it. */
static int64_t count_samples(const device_batch *mine)
{
    int64_t n = 0;
    for (int32_t t = 0; t < *mine->n_tokens; t++)
        n += mine->token_samples[t];
    return n;
}

/* Writes the counts of the batch and, if ranks share rows, this rank's part of the arrays. */
static status put_view(stager *g, st_dtype acc, const batch_caps *n, double weight, int64_t stride)
{
    device_batch *h = &g->host, *b = &g->batch, *mine = &g->mine;
    h->tokens = n->tokens;
    h->docs = n->docs;
    h->targets = n->targets;
    h->weight = weight;
    if (is_shared(g)) {
        int64_t each = g->fixed_shapes ? b->cap.tokens : row_share_tokens(&b->share, n->tokens);
        TRY(view_make(&g->view, h, stride, each, acc, mine));
        b->host_place = g->view.owner;
        b->context_uneven = mine->context_uneven;
    } else {
        mine = h;
        pad_tokens(h, n, st_dtype_size(acc), stride);
        *h->n_tokens = (int32_t)n->tokens;
        b->context_uneven = 1;
    }
    put_weight(mine->aux_scale, acc, 0, g->aux_coefficient * mine->weight);
    put_weight(mine->aux_scale, acc, 1, (double)count_samples(mine));
    b->tokens = mine->tokens;
    b->docs = mine->docs;
    b->targets = mine->targets;
    b->weight = mine->weight;
    return ST_OK;
}

status stage_rows(stager *g, stream *s, const row *rows, int64_t n_rows, device_batch **out)
{
    st_dtype acc = s->dev->backend->acc;
    device_batch *h = &g->host, *b = &g->batch;
    batch_caps n = batch_caps_count(rows, n_rows);
    TRY(batch_caps_check(&g->room, &n, rows, n_rows));
    const int bucket = choose_bucket(g, &n);
    h->cap = batch_caps_seen(bucket < g->n_buckets ? &g->bucket[bucket] : &g->room, &b->share);
    b->cap = g->mine.cap = batch_caps_shared(&h->cap, &b->share);
    TRY(share_items(g, rows, n_rows, b));
    int64_t stride = g->fixed_shapes ? h->cap.tokens : n.tokens;
    device_batch at = {0}; /* the counts of the rows so far */
    visual_stage visual = {.dims = g->dims,
                           .host = h,
                           .mine = is_shared(g) ? &g->mine : h,
                           .place = g->place,
                           .rank = b->share.blind ? -1 : row_share_rank(&b->share),
                           .feature_rows = b->feature_rows,
                           .acc = acc,
                           .kind = g->item_kind,
                           .distinct = true};
    h->cu_docs[0] = 0;
    visual.mine->cu_frames[0] = 0;
    b->has_prefixes = false;
    for (int64_t i = 0; i < n_rows; i++) {
        visual.wide |= rows[i].n_video_patches > 0;
        b->has_prefixes |= rows[i].doc_prefix != NULL;
    }
    for (int64_t i = 0; i < n_rows; i++) {
        TRY(put_text(g, acc, &rows[i], stride, &at));
        TRY(stage_visual_row(&visual, &rows[i], at.tokens));
        at.tokens += rows[i].n_tokens;
        at.docs += rows[i].n_docs;
    }
    fill_i32(h->doc_prefix, n.docs, h->cap.docs, -1);
    pad_patches(visual.mine, visual.patches, visual.frames, st_dtype_size(acc));
    TRY(put_view(g, acc, &n, at.weight, stride));
    b->fixed_shapes = g->fixed_shapes;
    b->patches = visual.patches;
    b->items = n.items;
    b->frames = visual.frames;
    b->longest = n.longest;
    b->frame = n.frame;
    b->wide = visual.wide;
    b->visual_distinct = visual.distinct;
    b->variant = 8 * (bucket * STAGERS_MAX + g->buffer) + 4 * b->has_prefixes + 2 * b->wide +
                 b->visual_distinct;
    TRY(upload_batch(g, s, st_dtype_size(acc)));
    *out = b;
    return ST_OK;
}
