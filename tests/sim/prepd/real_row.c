/* SPDX-License-Identifier: Apache-2.0 */
/* real_row.c: builds a row from its lease, as prepd/worker/make_row.c does, with contents of
 * real_doc.h. */
#include "tests/sim/prepd/real_row.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/sample/clip.h"
#include "tests/sim/prepd/real_doc.h"

typedef struct making {
    const sim_data *data;
    const json_value *docs;
    sim_row said; /* what the lease says of each document */
    row packed;
    int64_t item, merged;          /* the next new item, and its first merged row */
    int64_t shown_item, shown_row; /* the first of the last document that has items of its own */
    int64_t prefix;                /* the last prefix */
    uint8_t *image_to, *video_to;  /* where the pixels of the next picture and clip go */
} making;

static void must_do(status st)
{
    if (st == ST_OK)
        return;
    fprintf(stderr, "a real row cannot be made: %s\n", status_text());
    abort();
}

/* The grid of item `nth` of a document: frames, height, width, in patches. */
static bool read_grid(const json_value *doc, size_t nth, int32_t grid[3])
{
    const json_value *said = json_item(json_find(doc, "grids"), nth),
                     *clip = json_item(json_find(doc, "clips"), nth);
    const int64_t frames = (int64_t)json_count(json_find(clip, "index"));
    grid[0] = frames > 0 ? (int32_t)clip_pairs(frames) : 1;
    grid[1] = (int32_t)json_int(json_item(said, 0), 0);
    grid[2] = (int32_t)json_int(json_item(said, 1), 0);
    return frames > 0;
}

/* Whether the document has items that none before it has. */
static bool has_own_items(const json_value *doc)
{
    return !json_bool(json_find(doc, "shared"), false) && !json_find(doc, "before");
}

static void count_all(making *of)
{
    row *packed = &of->packed;
    packed->n_docs = of->said.n_docs;
    for (int64_t i = 0; i < packed->n_docs; i++) {
        const json_value *doc = json_item(of->docs, (size_t)i);
        const size_t n_items = has_own_items(doc) ? json_count(json_find(doc, "grids")) : 0;
        packed->n_tokens += json_int(json_find(doc, "tokens"), 0);
        packed->n_items += (int64_t)n_items;
        for (size_t k = 0; k < n_items; k++) {
            int32_t grid[3];
            int64_t *patches =
                read_grid(doc, k, grid) ? &packed->n_video_patches : &packed->n_patches;
            *patches += (int64_t)grid[0] * grid[1] * grid[2];
        }
    }
}

/* Adds an item, and its pixels. */
static void put_item(making *of, const json_value *doc, int64_t nth, const real_head *head)
{
    int32_t *grid = of->packed.grid_thw + 3 * of->item++;
    const bool clip = read_grid(doc, (size_t)nth, grid);
    const int64_t patches = (int64_t)grid[0] * grid[1] * grid[2];
    const uint64_t pixels = real_pixels(head, nth);
    uint8_t **to = clip ? &of->video_to : &of->image_to;
    memcpy(*to, &pixels, sizeof pixels);
    *to += patches * (clip ? VIDEO_PATCH_BYTES : PATCH_BYTES);
    of->merged += patches / (MERGE_SIDE * MERGE_SIDE);
}

/* Writes the visual tokens of a document, from token `at` of the row on. Returns the one after. */
static int64_t put_visuals(making *of, const json_value *doc, const real_head *head, int64_t at)
{
    row *packed = &of->packed;
    const int64_t n_items =
        json_find(doc, "before") ? 0 : (int64_t)json_count(json_find(doc, "grids"));
    if (has_own_items(doc)) {
        of->shown_item = of->item;
        of->shown_row = of->merged;
        for (int64_t i = 0; i < n_items; i++)
            put_item(of, doc, i, head);
    }
    int32_t merged = (int32_t)of->shown_row;
    for (int64_t i = 0; i < n_items; i++) {
        int32_t grid[3];
        const bool clip = read_grid(doc, (size_t)i, grid);
        real_put_positions(packed, at, grid[0], grid[1], grid[2]);
        for (int32_t k = grid[0] * grid[1] * grid[2] / (MERGE_SIDE * MERGE_SIDE); k > 0; k--) {
            packed->input_ids[at] = clip ? REAL_VIDEO : REAL_IMAGE;
            packed->visual_row[at++] = merged++;
        }
    }
    return at;
}

/* How many labels a document has: of a part of a text, as many as it can. */
static int32_t targets_of(const making *of, const json_value *doc, int64_t number, int32_t tokens)
{
    if (of->said.doc[number].bad || json_find(doc, "prefix"))
        return 0;
    return json_find(doc, "whole") && !json_find(doc, "before")
               ? tokens - 1
               : of->data->sample[of->said.doc[number].sample].record.targets;
}

static void put_doc(making *of, int64_t number)
{
    row *packed = &of->packed;
    const json_value *doc = json_item(of->docs, (size_t)number);
    const sim_row_doc *said = &of->said.doc[number];
    real_head head = {.content = said->content,
                      .bad = said->bad,
                      .tokens = (int32_t)json_int(json_find(doc, "tokens"), 0)};
    const int32_t from = packed->cu_seqlens[number], to = from + head.tokens;
    head.targets = targets_of(of, doc, number, head.tokens);
    packed->cu_seqlens[number + 1] = to;
    packed->doc_sample_id[number] = (uint64_t)said->sample;
    packed->doc_part[number] = (int32_t)json_int(json_find(doc, "part"), 0);
    if (json_find(doc, "prefix"))
        of->prefix = number;
    if (json_find(doc, "before"))
        packed->doc_prefix[number] = (int32_t)of->prefix;
    for (int32_t at = from; at < to; at++) {
        packed->input_ids[at] = real_text_id(head.content, at - from);
        real_put_positions(packed, at, at - from, at - from, at - from);
    }
    real_put_head(packed, from, &head);
    if (put_visuals(of, doc, &head, from + 1) + head.targets > to) {
        fprintf(stderr, "document %lld has no room for its labels\n", (long long)number);
        abort();
    }
    for (int32_t at = to - head.targets; at < to; at++)
        packed->labels[at] = packed->input_ids[at];
}

static void build(const sim_data *data, const json_value *lease, arena *memory, row *out)
{
    static making of;
    bool prefixes = false;
    of = (making){.data = data, .docs = json_find(lease, "docs")};
    sim_row_of_lease(lease, &of.said);
    count_all(&of);
    for (int64_t i = 0; i < of.said.n_docs; i++)
        prefixes |= json_find(json_item(of.docs, (size_t)i), "prefix") != NULL;
    arena_reset(memory);
    must_do(row_alloc(&of.packed, memory, prefixes ? ROW_PREFIXES : 0));
    of.image_to = of.packed.pixels;
    of.video_to = of.packed.pixels_video;
    for (int64_t i = 0; i < of.said.n_docs; i++)
        put_doc(&of, i);
    *out = of.packed;
}

wire_msg *real_row_make(codec *coder, arena *memory, const sim_data *data, const json_value *lease,
                        row_lie lie, int64_t began_ns)
{
    const int64_t number = json_int(json_find(lease, "row"), 0);
    const uint64_t luck = sim_random_mix((uint64_t)number + data->seed);
    /* Some workers press their rows (prepd.image_codec auto). */
    const bool press = json_bool(json_find(lease, "press"), luck % 2);
    char note[48];
    wire_msg *made;
    row packed;
    build(data, lease, memory, &packed);
    const bool lied =
        lie != ROW_TRUE && lie != ROW_LIES_DIGEST && real_lie(&packed, lie, luck >> 8);
    snprintf(note, sizeof note, "%lld %d", (long long)began_ns, lied && lie != ROW_LIES_IDS);
    packed.references = note;
    if (lie == ROW_LIES_IDS) { /* nobody believes a worker's words on these */
        packed.cursor = "{\"row\":1}";
        packed.quarantine = "[{\"id\":0,\"cause\":\"a lie\"}]";
    }
    must_do(wire_msg_new(&made));
    must_do(codec_encode(coder, &packed, (uint64_t)number,
                         press ? IMAGE_FILTER_PLANE : IMAGE_FILTER_NONE,
                         press ? IMAGE_CODEC_ZSTD : IMAGE_CODEC_NONE, made));
    if ((lie == ROW_LIES_IDS || lie == ROW_LIES_DIGEST) && !lied)
        real_damage(made, luck >> 16);
    return made;
}

bool real_row_same(codec *coder, const wire_msg *made, const wire_msg *other, size_t at,
                   size_t n_parts)
{
    frame own, theirs;
    wire_msg *bare;
    arena memory;
    row packed;
    arena_init(&memory, 0);
    must_do(wire_msg_new(&bare));
    for (size_t i = at; i < at + n_parts; i++) {
        const span bytes = wire_msg_part(other, i);
        must_do(wire_msg_add(bare, bytes.data, bytes.size));
    }
    /* The codec holds the content against the digest of the header. */
    const bool same = frame_decode(wire_msg_part(made, 0), "own", &own) == ST_OK &&
                      frame_decode(wire_msg_part(bare, 0), "theirs", &theirs) == ST_OK &&
                      codec_decode(coder, bare, "theirs", &memory, &packed, NULL) == ST_OK &&
                      hash_equal(own.digest, theirs.digest);
    wire_msg_free(&bare);
    arena_done(&memory);
    return same;
}
