/* stage.c: the buffers of a micro-batch, and rows into them. Checks and visual items are in
 * stage_visual.c. */
#include "trainer/batch/stage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "trainer/batch/stage_visual.h"
#include "trainer/device/space.h"

enum { MERGED = MERGE_SIDE * MERGE_SIDE, MAX_PARTS = 20 };

/* One array: where the host builds it, where the device has it, bytes of this batch. */
typedef struct part {
    void *host, *device;
    size_t bytes;
} part;

struct stager {
    const model_dims *d;
    device_batch batch; /* device pointers */
    device_batch host;  /* the same arrays on the host */
    void *host_block, *device_block;
    int32_t *item_kind;       /* [cap.items] scratch */
    batch_caps room;          /* of the buffers */
    const batch_caps *bucket; /* [n_buckets] */
    int n_buckets;
    bool fixed_shapes;
    int weighting; /* WEIGHTING_* */
    int32_t buffer;
    double aux_coefficient;
};

static int64_t row_frames(const row *r)
{
    int64_t frames = 0;
    for (int64_t i = 0; i < r->n_items; i++)
        frames += r->grid_thw[3 * i];
    return frames;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t longest_of(const row *r)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < r->n_docs; i++)
        longest = larger(longest, r->cu_seqlens[i + 1] - r->cu_seqlens[i]);
    return longest;
}

static int64_t frame_of(const row *r)
{
    int64_t most = 0;
    for (int64_t i = 0; i < r->n_items; i++)
        most = larger(most, (int64_t)r->grid_thw[3 * i + 1] * r->grid_thw[3 * i + 2]);
    return most;
}

static int64_t row_targets(const row *r)
{
    int64_t n = 0;
    for (int64_t t = 0; t < r->n_tokens; t++)
        n += r->labels[t] != NO_LABEL;
    return n;
}

static batch_caps count_rows(const row *rows, int64_t n_rows)
{
    batch_caps c = {0};
    for (int64_t i = 0; i < n_rows; i++) {
        c.tokens += rows[i].n_tokens;
        c.docs += rows[i].n_docs;
        c.patches += rows[i].n_patches + rows[i].n_video_patches;
        c.items += rows[i].n_items;
        c.frames += row_frames(&rows[i]);
        c.targets += row_targets(&rows[i]);
        c.longest = larger(c.longest, longest_of(&rows[i]));
        c.frame = larger(c.frame, frame_of(&rows[i]));
    }
    return c;
}

static void grow(int64_t *cap, int64_t need, int64_t step)
{
    need = (need + step - 1) / step * step;
    if (need > *cap)
        *cap = need;
}

void batch_caps_for(const row *rows, int64_t n_rows, int64_t token_step, int64_t patch_step,
                    batch_caps *inout_caps)
{
    batch_caps c = count_rows(rows, n_rows);
    grow(&inout_caps->tokens, c.tokens, token_step);
    grow(&inout_caps->docs, c.docs, 1);
    grow(&inout_caps->patches, c.patches, patch_step);
    grow(&inout_caps->items, c.items, 1);
    grow(&inout_caps->frames, c.frames, 1);
    grow(&inout_caps->targets, c.targets, 1);
}

/* The arrays, in one block; run without a base to learn its size. */
static void lay_out(device_batch *b, const batch_caps *c, size_t acc, space *sp)
{
    size_t i32 = sizeof(int32_t);
    b->input_ids = space_take(sp, c->tokens, i32);
    b->positions = space_take(sp, 3 * c->tokens, i32);
    b->cu_docs = space_take(sp, c->docs + 1, i32);
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
}

status stager_new(stream *s, const model_dims *d, const batch_caps *cap, stager **out)
{
    const backend_vtable *v = s->dev->v;
    size_t acc = st_dtype_size(v->acc);
    stager *g = calloc(1, sizeof *g);
    if (!g)
        return FAIL(ST_NO_MEMORY, "no memory for a batch's buffers");
    g->d = d;
    g->fixed_shapes = v->fixed_shapes;
    space sp = {0};
    lay_out(&g->host, cap, acc, &sp);
    size_t bytes = sp.peak;
    status st;
    TRY_OR(undo, v->alloc_host(s->dev, bytes, &g->host_block));
    TRY_OR(undo, v->alloc(s->dev, bytes, &g->device_block));
    lay_out(&g->host, cap, acc, &(space){.base = g->host_block});
    lay_out(&g->batch, cap, acc, &(space){.base = g->device_block});
    g->batch.cap = g->host.cap = g->room = *cap;
    g->item_kind = calloc((size_t)cap->items + 1, sizeof(int32_t));
    g->batch.host_target_doc = calloc((size_t)cap->targets + 1, sizeof(int32_t));
    g->batch.host_sample = calloc((size_t)cap->docs + 1, sizeof(uint64_t));
    if (!g->item_kind || !g->batch.host_target_doc || !g->batch.host_sample) {
        st = FAIL(ST_NO_MEMORY, "no memory for a batch of %lld targets", (long long)cap->targets);
        goto undo;
    }
    *out = g;
    return ST_OK;
undo:
    stager_free(&g, s);
    return st;
}

void stager_free(stager **gp, stream *s)
{
    stager *g = *gp;
    if (!g)
        return;
    if (g->host_block)
        s->dev->v->release_host(s->dev, g->host_block);
    if (g->device_block)
        s->dev->v->release(s->dev, g->device_block);
    free(g->item_kind);
    free(g->batch.host_target_doc);
    free(g->batch.host_sample);
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

static unsigned long long first_sample(const row *rows, int64_t n_rows)
{
    for (int64_t i = 0; i < n_rows; i++) {
        if (rows[i].n_docs > 0)
            return rows[i].doc_sample_id[0];
    }
    return 0;
}

static status check_fit(const batch_caps *cap, const batch_caps *need, const row *rows, int64_t n)
{
    const struct {
        const char *what;
        int64_t need, cap;
    } limit[] = {
        {"tokens", need->tokens, cap->tokens},    {"documents", need->docs, cap->docs},
        {"patches", need->patches, cap->patches}, {"images", need->items, cap->items},
        {"frames", need->frames, cap->frames},    {"targets", need->targets, cap->targets}};
    for (size_t i = 0; i < sizeof limit / sizeof limit[0]; i++) {
        if (limit[i].need > limit[i].cap)
            return FAIL(ST_BAD_INPUT,
                        "%lld %s of the rows from sample %llu on do not fit the batch's capacity "
                        "of %lld",
                        (long long)limit[i].need, limit[i].what, first_sample(rows, n),
                        (long long)limit[i].cap);
    }
    return ST_OK;
}

static bool holds(const batch_caps *c, const batch_caps *n)
{
    return n->tokens <= c->tokens && n->docs <= c->docs && n->patches <= c->patches &&
           n->items <= c->items && n->frames <= c->frames && n->targets <= c->targets &&
           (!c->longest || n->longest <= c->longest) && (!c->frame || n->frame <= c->frame);
}

/* Number of the bucket; n_buckets: the buffers' own capacities. */
static int choose_bucket(const stager *g, const batch_caps *n)
{
    int k = 0;
    while (k < g->n_buckets && !holds(&g->bucket[k], n))
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

/* What every target of a document counts. */
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

/* Tokens, borders and targets of one row behind what is there. */
static status put_text(stager *g, st_dtype acc, const row *r, int64_t stride, device_batch *at)
{
    device_batch *h = &g->host;
    int64_t t0 = at->tokens;
    for (int64_t doc = 0; doc < r->n_docs; doc++) {
        g->batch.host_sample[at->docs + doc] = r->doc_sample_id[doc];
        double counts = document_weight(g, r, doc);
        h->cu_docs[at->docs + doc + 1] = (int32_t)(t0 + r->cu_seqlens[doc + 1]);
        for (int64_t t = r->cu_seqlens[doc]; t < r->cu_seqlens[doc + 1]; t++) {
            int32_t id = r->input_ids[t], label = r->labels[t];
            unsigned long long sample = r->doc_sample_id[doc];
            if (id < 0 || id >= g->d->text.vocab)
                return FAIL(ST_BAD_INPUT,
                            "sample %llu: token id %d is outside the vocabulary of %lld; is "
                            "model.tokenizer the model's?",
                            sample, id, (long long)g->d->text.vocab);
            h->input_ids[t0 + t] = id;
            for (int axis = 0; axis < 3; axis++)
                h->positions[axis * stride + t0 + t] = r->position_ids[axis * r->n_tokens + t];
            if (label == NO_LABEL)
                continue;
            if (label < 0 || label >= g->d->text.vocab || t == r->cu_seqlens[doc])
                return FAIL(ST_BAD_INPUT, "sample %llu: label %d at token %lld of its document %s",
                            sample, label, (long long)(t - r->cu_seqlens[doc]),
                            label < 0 || label >= g->d->text.vocab ? "is outside the vocabulary"
                                                                   : "has no token before it");
            double w = counts * (r->loss_weight ? r->loss_weight[t] : 1);
            int64_t n = at->targets++;
            h->target_token[n] = (int32_t)(t0 + t - 1);
            h->target_label[n] = label;
            put_weight(h->target_weight, acc, n, w);
            g->batch.host_target_doc[n] = (int32_t)(at->docs + doc);
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

/* Everything behind the counts, up to the capacities. */
static void put_padding(device_batch *h, const batch_caps *n, size_t acc, int64_t stride)
{
    const batch_caps *c = &h->cap;
    fill_i32(h->input_ids, n->tokens, c->tokens, 0);
    fill_i32(h->text_index, n->tokens, c->tokens, -1);
    fill_i32(h->visual_index, n->tokens, c->tokens, -1);
    for (int axis = 0; axis < 3; axis++)
        fill_i32(h->positions + axis * stride, n->tokens, stride, 0);
    fill_i32(h->cu_docs, n->docs + 1, c->docs + 1, (int32_t)n->tokens);
    fill_i32(h->target_token, n->targets, c->targets, -1);
    fill_i32(h->target_label, n->targets, c->targets, -1);
    memset((char *)h->target_weight + (size_t)n->targets * acc, 0,
           (size_t)(c->targets - n->targets) * acc);
    size_t from = (size_t)n->patches, pads = (size_t)(c->patches - n->patches);
    memset(h->pixels + from * PATCH_BYTES, 0, pads * PATCH_BYTES);
    memset(h->pixels_wide + from * VIDEO_PATCH_BYTES, 0, pads * VIDEO_PATCH_BYTES);
    fill_i32(h->patch_row_col, 2 * n->patches, 2 * c->patches, 0);
    fill_i32(h->pos_index, 4 * n->patches, 4 * c->patches, 0);
    memset((char *)h->pos_weight + 4 * from * acc, 0, 4 * pads * acc);
    fill_i32(h->cu_frames, n->frames + 1, c->frames + 1, (int32_t)n->patches);
}

static status upload(stager *g, stream *s, size_t acc)
{
    const device_batch *h = &g->host, *b = &g->batch;
    batch_caps n = batch_sizes(b);
    size_t i32 = sizeof(int32_t), tokens = (size_t)n.tokens, patches = (size_t)n.patches;
    size_t targets = (size_t)n.targets;
    const part parts[] = {
        {h->input_ids, b->input_ids, tokens * i32},
        {h->positions, b->positions, 3 * tokens * i32},
        {h->cu_docs, b->cu_docs, (size_t)(b->cap.docs + 1) * i32},
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
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i].bytes > 0)
            TRY(s->dev->v->to_device(s, parts[i].device, parts[i].host, parts[i].bytes));
    }
    return ST_OK;
}

status stage_rows(stager *g, stream *s, const row *rows, int64_t n_rows, device_batch **out)
{
    st_dtype acc = s->dev->v->acc;
    device_batch *h = &g->host, *b = &g->batch;
    batch_caps n = count_rows(rows, n_rows);
    TRY(check_fit(&g->room, &n, rows, n_rows));
    const int bucket = choose_bucket(g, &n);
    b->cap = h->cap = bucket < g->n_buckets ? g->bucket[bucket] : g->room;
    int64_t stride = g->fixed_shapes ? b->cap.tokens : n.tokens;
    device_batch at = {0}; /* counts so far */
    visual_stage visual = {
        .d = g->d, .host = h, .acc = acc, .kind = g->item_kind, .distinct = true};
    h->cu_docs[0] = 0;
    h->cu_frames[0] = 0;
    for (int64_t i = 0; i < n_rows; i++)
        visual.wide |= rows[i].n_video_patches > 0;
    for (int64_t i = 0; i < n_rows; i++) {
        TRY(put_text(g, acc, &rows[i], stride, &at));
        TRY(stage_visual_row(&visual, &rows[i], at.tokens));
        at.tokens += rows[i].n_tokens;
        at.docs += rows[i].n_docs;
    }
    put_padding(h, &n, st_dtype_size(acc), stride);
    *h->n_tokens = (int32_t)n.tokens;
    put_weight(h->aux_scale, acc, 0, g->aux_coefficient * at.weight);
    put_weight(h->aux_scale, acc, 1, (double)n.tokens);
    b->fixed_shapes = g->fixed_shapes;
    b->tokens = n.tokens;
    b->docs = n.docs;
    b->patches = n.patches;
    b->items = n.items;
    b->frames = n.frames;
    b->targets = n.targets;
    b->longest = n.longest;
    b->frame = n.frame;
    b->weight = at.weight;
    b->wide = visual.wide;
    b->visual_distinct = visual.distinct;
    b->variant = 4 * (bucket * STAGERS_MAX + g->buffer) + 2 * b->wide + b->visual_distinct;
    TRY(upload(g, s, st_dtype_size(acc)));
    *out = b;
    return ST_OK;
}
