/* SPDX-License-Identifier: Apache-2.0 */
/* sim_row.c: makes rows from leases, and reads them. */
#include "tests/sim/prepd/sim_row.h"

#include <stdlib.h>
#include <string.h>

#include "proto/row/frame.h"
#include "tests/sim/prepd/row_content.h"

enum { MOST_PARTS = 4, PART_BYTES = 48 << 10 };
enum { KILLS = 2 }; /* in place of `lied`, which is 0 or 1 */

static uint64_t hash_turns(const json_value *turns)
{
    uint64_t hash = json_count(turns);
    for (size_t i = 0; i < json_count(turns); i++) {
        const json_value *said = json_item(turns, i), *parts = json_find(said, "parts");
        hash = sim_random_mix(hash ^ (uint64_t)json_int(json_find(said, "role"), -1) ^
                              (uint64_t)json_bool(json_find(said, "trained"), false) << 8);
        for (size_t k = 0; k < json_count(parts); k++) {
            const json_value *piece = json_item(parts, k);
            const char *text = json_text(piece, NULL);
            hash = sim_random_mix(hash ^ (uint64_t)(text ? 1 : 2 + json_int(piece, 0)));
            for (size_t j = 0; text && j < json_text_size(piece); j++)
                hash = sim_random_mix(hash ^ (uint8_t)text[j]);
        }
    }
    return hash;
}

/* Adds the frames of a clip: those of its file, and those that the document says it takes. */
static uint64_t hash_frames(const json_value *file, const json_value *clip, uint64_t hash)
{
    const json_value *names = json_find(file, "frames"), *taken = json_find(clip, "index");
    for (size_t i = 0; i < json_count(names); i++) {
        hash = content_add_frame(hash, strtoll(json_text(json_item(names, i), "-1"), NULL, 10));
        hash = content_add_frame(hash, json_int(json_item(taken, i), -1));
    }
    return content_add(hash, (uint64_t)json_real(json_find(clip, "fps"), -1));
}

static uint64_t hash_pictures(const json_value *lease, const json_value *doc)
{
    const json_value *files = json_find(lease, "files"), *images = json_find(doc, "images"),
                     *grids = json_find(doc, "grids"), *clips = json_find(doc, "clips");
    uint64_t hash = 0;
    for (size_t i = 0; i < json_count(images); i++) {
        const json_value *file = json_item(files, (size_t)json_int(json_item(images, i), -1)),
                         *grid = json_item(grids, i);
        const char *name = json_text(json_find(file, "path"), "");
        hash = content_add_picture(
            hash, name, strlen(name), json_int(json_find(file, "bytes"), -1),
            json_int(json_find(file, "height"), -1), json_int(json_find(file, "width"), -1),
            json_int(json_item(grid, 0), -1), json_int(json_item(grid, 1), -1));
        if (json_find(file, "frames"))
            hash = hash_frames(file, json_item(clips, i), hash);
    }
    return hash;
}

/* turns: the hash of the document before, which holds if this one is of the same sample. */
static void read_doc(const json_value *lease, const json_value *doc, uint64_t *turns,
                     sim_row_doc *out)
{
    doc_content content = {.sample = json_int(json_find(doc, "id"), -1),
                           .part = json_int(json_find(doc, "part"), 0),
                           .tokens = json_int(json_find(doc, "tokens"), -1),
                           .from = json_int(json_find(doc, "from"), 0),
                           .prefix = json_int(json_find(doc, "prefix"), 0),
                           .before = json_int(json_find(doc, "before"), 0),
                           .n_pictures = (int64_t)json_count(json_find(doc, "images")),
                           .shared = json_bool(json_find(doc, "shared"), false),
                           .pictures = hash_pictures(lease, doc)};
    content.whole = json_int(json_find(doc, "whole"), content.tokens);
    if (!json_bool(json_find(doc, "same"), false))
        *turns = hash_turns(json_find(doc, "turns")) + json_bool(json_find(doc, "plain"), false);
    content.turns = *turns;
    *out = (sim_row_doc){content.sample, content_hash(&content),
                         json_bool(json_find(doc, "bad"), false)};
}

void sim_row_of_lease(const json_value *lease, sim_row *out)
{
    const json_value *docs = json_find(lease, "docs");
    uint64_t turns = 0;
    *out = (sim_row){.n_docs = (int64_t)json_count(docs)};
    if (out->n_docs > MOST_DOCS)
        abort();
    for (int64_t i = 0; i < out->n_docs; i++)
        read_doc(lease, json_item(docs, (size_t)i), &turns, &out->doc[i]);
}

static wire_msg *shown; /* a picture's bytes, which all rows share */

void sim_row_init(void)
{
    uint8_t *bytes;
    if (!shown &&
        (wire_msg_new(&shown) != ST_OK || wire_msg_add_space(shown, PART_BYTES, &bytes) != ST_OK))
        abort();
}

static void add_pictures(wire_msg *message, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (wire_msg_share(message, shown) != ST_OK)
            abort();
}

/* The words of a document as its worker sends them. */
static void put_doc(uint8_t *to, const sim_row_doc *doc, row_lie lie)
{
    static uint64_t flips;
    const bool false_content =
        lie == ROW_LIES_CONTENT || lie == ROW_LIES_DIGEST || lie == ROW_KILLS;
    const uint64_t flipped = lie == ROW_FLIPS ? sim_random_mix(++flips) | 2 : 0;
    const uint64_t word[ROW_WORDS] = {(uint64_t)doc->sample + (lie == ROW_LIES_IDS),
                                      doc->content + false_content + flipped, doc->bad};
    memcpy(to, word, sizeof word);
}

/* Fills the block of a row. */
static void put_block(const json_value *lease, row_lie lie, int64_t began_ns, uint8_t *block)
{
    const json_value *docs = json_find(lease, "docs");
    const size_t n_docs = json_count(docs);
    const bool lied = lie != ROW_TRUE && lie != ROW_LIES_IDS && n_docs > 0;
    const uint64_t words[ROW_HEAD_WORDS] = {(uint64_t)began_ns,
                                            lied && lie == ROW_KILLS ? KILLS : lied, n_docs};
    uint64_t turns = 0;
    memcpy(block, words, sizeof words);
    block += sizeof words;
    for (size_t i = 0; i < n_docs; i++, block += ROW_WORDS * sizeof(uint64_t)) {
        sim_row_doc doc;
        read_doc(lease, json_item(docs, i), &turns, &doc);
        put_doc(block, &doc, i == 0 ? lie : ROW_TRUE);
    }
}

/* The digest of what a row holds, without when it began and what it says of itself. */
static hash128 digest_of(const uint8_t *block, size_t size)
{
    const size_t noted = 2 * sizeof(uint64_t);
    return hash_bytes(block + noted, size - noted);
}

bool sim_row_same(const wire_msg *made, const wire_msg *other, size_t at)
{
    const span own = wire_msg_part(made, 1), theirs = wire_msg_part(other, at + 1);
    return own.size == theirs.size &&
           hash_equal(digest_of(own.data, own.size), digest_of(theirs.data, theirs.size));
}

bool sim_row_kills(const wire_msg *other, size_t at)
{
    const span theirs = wire_msg_part(other, at + 1);
    uint64_t words[ROW_HEAD_WORDS] = {0};
    if (theirs.size >= sizeof words)
        memcpy(words, theirs.data, sizeof words);
    return words[1] == KILLS;
}

wire_msg *sim_row_make(const json_value *lease, row_lie lie, int64_t began_ns)
{
    const size_t n_docs = json_count(json_find(lease, "docs")),
                 files = json_count(json_find(lease, "files")),
                 size = (ROW_HEAD_WORDS + ROW_WORDS * n_docs) * sizeof(uint64_t);
    frame head = {.kind = KIND_ROW,
                  .row = (uint64_t)json_int(json_find(lease, "row"), 0),
                  .block_bytes = size,
                  .n_images = (uint32_t)(files < MOST_PARTS ? files : MOST_PARTS)};
    uint8_t header[FRAME_BYTES] = {0}, *block;
    wire_msg *made;
    if (wire_msg_new(&made) != ST_OK || wire_msg_add(made, header, sizeof header) != ST_OK ||
        wire_msg_add_space(made, size, &block) != ST_OK)
        abort();
    put_block(lease, lie == ROW_LIES_DIGEST ? ROW_TRUE : lie, began_ns, block);
    head.image_bytes = (uint64_t)head.n_images * PART_BYTES;
    head.digest = digest_of(block, size);
    if (lie == ROW_LIES_DIGEST)
        put_block(lease, lie, began_ns, block);
    frame_encode(&head, header);
    if (wire_msg_set(made, 0, header, sizeof header) != ST_OK)
        abort();
    add_pictures(made, head.n_images);
    return made;
}

bool sim_row_read(const wire_msg *message, const frame *head, sim_row *out)
{
    const span block = wire_msg_part(message, 1);
    const span tag = wire_msg_part(message, 2 + (size_t)head->n_images);
    uint64_t words[ROW_HEAD_WORDS], word[ROW_WORDS];
    if (block.size < sizeof words)
        return false;
    memcpy(words, block.data, sizeof words);
    if (words[2] > MOST_DOCS || block.size != sizeof words + words[2] * sizeof word)
        return false;
    out->is_whole = hash_equal(digest_of(block.data, block.size), head->digest);
    out->began_ns = (int64_t)words[0];
    out->lied = words[1] != 0;
    out->kills = words[1] == KILLS;
    out->n_docs = (int64_t)words[2];
    for (int64_t i = 0; i < out->n_docs; i++) {
        memcpy(word, block.data + sizeof words + (size_t)i * sizeof word, sizeof word);
        out->doc[i] = (sim_row_doc){(int64_t)word[0], word[1], word[2] != 0};
    }
    return wire_msg_parts(message) == 3 + (size_t)head->n_images &&
           json_parse((const char *)tag.data, tag.size, "tag", &out->tag) == ST_OK;
}

void sim_row_done(sim_row *row)
{
    json_free(&row->tag);
}

bool sim_row_fits_tag(const sim_row *row)
{
    const json_value *ids = json_find(row->tag, "ids");
    bool fits = (int64_t)json_count(ids) == row->n_docs;
    for (int64_t i = 0; fits && i < row->n_docs; i++)
        fits = json_int(json_item(ids, (size_t)i), -1) == row->doc[i].sample;
    return fits;
}
