/* SPDX-License-Identifier: Apache-2.0 */
/* batch_caps.c: counts what rows need, compares it with the capacities of a batch, and reads the
 * shape buckets that a WELCOME names. */
#include "common/base/compare.h"
#include "trainer/batch/batch_caps.h"

#include <inttypes.h>

static int64_t row_frames(const row *packed)
{
    int64_t frames = 0;
    for (int64_t i = 0; i < packed->n_items; i++)
        frames += packed->grid_thw[3 * i];
    return frames;
}

static int64_t longest_of(const row *packed)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < packed->n_docs; i++) {
        const int32_t prefix = packed->doc_prefix ? packed->doc_prefix[i] : -1;
        int64_t tokens = packed->cu_seqlens[i + 1] - packed->cu_seqlens[i];
        if (prefix >= 0)
            tokens += packed->cu_seqlens[prefix + 1] - packed->cu_seqlens[prefix];
        longest = max_i64(longest, tokens);
    }
    return longest;
}

static int64_t frame_of(const row *packed)
{
    int64_t most = 0;
    for (int64_t i = 0; i < packed->n_items; i++)
        most = max_i64(most, (int64_t)packed->grid_thw[3 * i + 1] * packed->grid_thw[3 * i + 2]);
    return most;
}

static int64_t row_targets(const row *packed)
{
    int64_t count = 0;
    for (int64_t token = 0; token < packed->n_tokens; token++)
        count += packed->labels[token] != NO_LABEL;
    return count;
}

batch_caps batch_caps_count(const row *rows, int64_t n_rows)
{
    batch_caps caps = {0};
    for (int64_t i = 0; i < n_rows; i++) {
        caps.tokens += rows[i].n_tokens;
        caps.docs += rows[i].n_docs;
        caps.patches += rows[i].n_patches + rows[i].n_video_patches;
        caps.items += rows[i].n_items;
        caps.frames += row_frames(&rows[i]);
        caps.targets += row_targets(&rows[i]);
        caps.longest = max_i64(caps.longest, longest_of(&rows[i]));
        caps.frame = max_i64(caps.frame, frame_of(&rows[i]));
    }
    return caps;
}

static void grow_cap(int64_t *cap, int64_t need, int64_t step)
{
    need = (need + step - 1) / step * step;
    if (need > *cap)
        *cap = need;
}

void batch_caps_for(const row *rows, int64_t n_rows, int64_t token_step, int64_t patch_step,
                    batch_caps *inout_caps)
{
    batch_caps caps = batch_caps_count(rows, n_rows);
    grow_cap(&inout_caps->tokens, caps.tokens, token_step);
    grow_cap(&inout_caps->docs, caps.docs, 1);
    grow_cap(&inout_caps->patches, caps.patches, patch_step);
    grow_cap(&inout_caps->items, caps.items, 1);
    grow_cap(&inout_caps->frames, caps.frames, 1);
    grow_cap(&inout_caps->targets, caps.targets, 1);
}

static unsigned long long first_sample(const row *rows, int64_t n_rows)
{
    for (int64_t i = 0; i < n_rows; i++) {
        if (rows[i].n_docs > 0)
            return rows[i].doc_sample_id[0];
    }
    return 0;
}

status batch_caps_check(const batch_caps *cap, const batch_caps *need, const row *rows,
                        int64_t count)
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
                        (long long)limit[i].need, limit[i].what, first_sample(rows, count),
                        (long long)limit[i].cap);
    }
    return ST_OK;
}

bool batch_caps_hold(const batch_caps *cap, const batch_caps *counts)
{
    return counts->tokens <= cap->tokens && counts->docs <= cap->docs &&
           counts->patches <= cap->patches && counts->items <= cap->items &&
           counts->frames <= cap->frames && counts->targets <= cap->targets &&
           (!cap->longest || counts->longest <= cap->longest) &&
           (!cap->frame || counts->frame <= cap->frame);
}

/* ---- shape buckets ---- */

enum { MERGED = MERGE_SIDE * MERGE_SIDE };

static void include(int64_t *inout, int64_t other)
{
    *inout = other > *inout ? other : *inout;
}

void bucket_include(batch_caps *inout, const batch_caps *other)
{
    /* 0 means that there is no bound, so it counts as the largest. */
    bool any_text = !inout->longest || !other->longest, any_frame = !inout->frame || !other->frame;
    include(&inout->tokens, other->tokens);
    include(&inout->docs, other->docs);
    include(&inout->patches, other->patches);
    include(&inout->items, other->items);
    include(&inout->frames, other->frames);
    include(&inout->targets, other->targets);
    include(&inout->longest, other->longest);
    include(&inout->frame, other->frame);
    inout->longest = any_text ? 0 : inout->longest;
    inout->frame = any_frame ? 0 : inout->frame;
}

/* Reads a capacity, which must be at least that of the bucket before, and at most what a row may
 * hold. */
static status read_member(const json_value *second, const char *name, int64_t least, int64_t most,
                          int64_t *out)
{
    TRY(json_want_int(second, name, "WELCOME: buckets", out));
    if (*out < least || *out > most)
        return FAIL(ST_PROTOCOL,
                    "WELCOME: buckets: %s %" PRId64 ", expected %" PRId64 " to %" PRId64, name,
                    *out, least, most);
    return ST_OK;
}

static status read_bucket(const json_value *second, const batch_caps *before,
                          const batch_caps *most, batch_caps *out)
{
    batch_caps caps = {0};
    TRY(read_member(second, "tokens", before->tokens, most->tokens, &caps.tokens));
    TRY(read_member(second, "patches", before->patches, most->patches, &caps.patches));
    TRY(read_member(second, "documents", before->docs, most->tokens, &caps.docs));
    TRY(read_member(second, "longest", before->longest, most->tokens, &caps.longest));
    TRY(read_member(second, "images", before->items, most->items, &caps.items));
    caps.frames = most->frames; /* the next three may be missing */
    caps.targets = caps.tokens;
    if (json_find(second, "frames"))
        TRY(read_member(second, "frames", before->frames, most->frames, &caps.frames));
    if (json_find(second, "frame"))
        TRY(read_member(second, "frame", before->frame, most->patches, &caps.frame));
    if (json_find(second, "targets"))
        TRY(read_member(second, "targets", before->targets, most->tokens, &caps.targets));
    *out = caps;
    return ST_OK;
}

static batch_caps multiply_caps(const batch_caps *caps, int64_t rows)
{
    return (batch_caps){.tokens = caps->tokens * rows,
                        .docs = caps->docs * rows,
                        .patches = (caps->patches + MERGED - 1) / MERGED * MERGED * rows,
                        .items = caps->items * rows,
                        .frames = caps->frames * rows,
                        .targets = caps->targets * rows,
                        .longest = caps->longest,
                        .frame = caps->frame};
}

status bucket_list_read(const json_value *welcome, int64_t rows, const batch_caps *widest,
                        bucket_list *out)
{
    const json_value *list = json_find(welcome, "buckets");
    batch_caps before = {0};
    bucket_list made = {0};
    size_t count = list && json_typeof(list) == JSON_ARRAY ? json_count(list) : 0;
    if (count > BUCKETS_MAX)
        return FAIL(ST_PROTOCOL, "WELCOME: %zu buckets, expected at most %d", count, BUCKETS_MAX);
    for (size_t i = 0; i < count; i++) {
        TRY(read_bucket(json_item(list, i), &before, widest, &before));
        made.cap[made.count++] = multiply_caps(&before, rows);
    }
    if (count == 0)
        made.cap[made.count++] = multiply_caps(widest, rows);
    *out = made;
    return ST_OK;
}
