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
static status read_member(const json_value *b, const char *name, int64_t least, int64_t most,
                          int64_t *out)
{
    TRY(json_want_int(b, name, "WELCOME: buckets", out));
    if (*out < least || *out > most)
        return FAIL(ST_PROTOCOL,
                    "WELCOME: buckets: %s %" PRId64 ", expected %" PRId64 " to %" PRId64, name,
                    *out, least, most);
    return ST_OK;
}

static status read_bucket(const json_value *b, const batch_caps *before, const batch_caps *most,
                          batch_caps *out)
{
    batch_caps c = {0};
    TRY(read_member(b, "tokens", before->tokens, most->tokens, &c.tokens));
    TRY(read_member(b, "patches", before->patches, most->patches, &c.patches));
    TRY(read_member(b, "documents", before->docs, most->tokens, &c.docs));
    TRY(read_member(b, "longest", before->longest, most->tokens, &c.longest));
    TRY(read_member(b, "images", before->items, most->items, &c.items));
    c.frames = most->frames; /* older daemons do not name the next three */
    c.targets = c.tokens;
    if (json_find(b, "frames"))
        TRY(read_member(b, "frames", before->frames, most->frames, &c.frames));
    if (json_find(b, "frame"))
        TRY(read_member(b, "frame", before->frame, most->patches, &c.frame));
    if (json_find(b, "targets"))
        TRY(read_member(b, "targets", before->targets, most->tokens, &c.targets));
    *out = c;
    return ST_OK;
}

static batch_caps multiply_caps(const batch_caps *c, int64_t rows)
{
    return (batch_caps){.tokens = c->tokens * rows,
                        .docs = c->docs * rows,
                        .patches = (c->patches + MERGED - 1) / MERGED * MERGED * rows,
                        .items = c->items * rows,
                        .frames = c->frames * rows,
                        .targets = c->targets * rows,
                        .longest = c->longest,
                        .frame = c->frame};
}

status bucket_list_read(const json_value *welcome, int64_t rows, const batch_caps *widest,
                        bucket_list *out)
{
    const json_value *list = json_find(welcome, "buckets");
    batch_caps before = {0};
    bucket_list made = {0};
    size_t n = list && json_typeof(list) == JSON_ARRAY ? json_count(list) : 0;
    if (n > BUCKETS_MAX)
        return FAIL(ST_PROTOCOL, "WELCOME: %zu buckets, expected at most %d", n, BUCKETS_MAX);
    for (size_t i = 0; i < n; i++) {
        TRY(read_bucket(json_item(list, i), &before, widest, &before));
        made.cap[made.count++] = multiply_caps(&before, rows);
    }
    if (n == 0)
        made.cap[made.count++] = multiply_caps(widest, rows);
    *out = made;
    return ST_OK;
}
