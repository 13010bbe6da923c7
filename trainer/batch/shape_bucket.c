/* shape_bucket.c: reads the shape buckets that a WELCOME names. */
#include "trainer/batch/shape_bucket.h"

#include <inttypes.h>

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
    caps.frames = most->frames; /* older daemons do not name the next three */
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
