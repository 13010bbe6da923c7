/* SPDX-License-Identifier: Apache-2.0 */
/* real_receiver.c: receives real rows as a consumer does, and reads from them what was in their
 * leases. */
#include "tests/sim/prepd/real_receiver.h"

#include <stdlib.h>
#include <string.h>

#include "proto/message/codec.h"
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/people.h"
#include "tests/sim/prepd/real_doc.h"

static const char PEER[] = "core";

void real_rows_begin(simulation *sim)
{
    arena_init(&sim->row_memory, 0);
    if (!sim->rules.real_rows)
        return;
    if (codec_new(&sim->coder) != ST_OK)
        abort();
    sim->stats->real_schedules++;
}

void real_rows_done(simulation *sim)
{
    codec_free(&sim->coder);
    arena_done(&sim->row_memory);
}

/* The row that a rank asks for by its cursor. */
static uint64_t find_asked(const simulation *sim, const sim_rank *rank)
{
    const char *cursor = rank->cursor ? rank->cursor : sim->job[rank->job].cursor;
    json_value *said;
    if (!cursor)
        return 0;
    if (json_parse(cursor, strlen(cursor), "the cursor", &said) != ST_OK)
        return UINT64_MAX;
    const int64_t number = json_int(json_find(said, "row"), -1);
    json_free(&said);
    return (uint64_t)number;
}

void real_rows_welcome(simulation *sim, int number, const json_value *said)
{
    sim_rank *rank = sim->rank[number];
    const sim_stream_job *job = &sim->job[rank->job];
    if (row_order_begin(said, PEER, find_asked(sim, rank), rank->rank, job->ranks, &rank->order) !=
        ST_OK)
        sim_break(sim, INV_CURSORS, "rank %d does not take its WELCOME: %s", number, status_text());
}

/* Where the walk over a row's items is. */
typedef struct items_walk {
    int64_t item, merged; /* the next new item, and its first merged row */
    const uint8_t *image, *video;
} items_walk;

/* Whether a new item, whose first token is `at`, is the one that its document has as its nth. */
static bool is_item(const row *packed, int64_t at, const real_head *head, int64_t nth,
                    items_walk *walk)
{
    const int32_t *grid = packed->grid_thw + 3 * walk->item++;
    const bool clip = packed->input_ids[at] == REAL_VIDEO;
    const int64_t patches = (int64_t)grid[0] * grid[1] * grid[2];
    const uint8_t **from = clip ? &walk->video : &walk->image;
    const uint64_t pixels = real_pixels(head, nth);
    const bool same = *from && memcmp(*from, &pixels, sizeof pixels) == 0;
    *from += *from ? patches * (clip ? VIDEO_PATCH_BYTES : PATCH_BYTES) : 0;
    walk->merged += patches / (MERGE_SIDE * MERGE_SIDE);
    return same && real_has_positions(packed, at, grid[0], grid[1], grid[2]);
}

/* Whether all tokens of a document but its first are what its first says. */
static bool is_whole(const row *packed, int64_t doc, const real_head *head, items_walk *walk)
{
    const int32_t from = packed->cu_seqlens[doc], to = packed->cu_seqlens[doc + 1];
    int64_t nth = 0;
    bool whole = to - from == head->tokens;
    for (int32_t at = from; at < to; at++) {
        const int32_t place = at - from,
                      label = to - at <= head->targets ? packed->input_ids[at] : NO_LABEL;
        whole &= packed->labels[at] == label;
        if (packed->visual_row[at] >= 0) {
            if (packed->visual_row[at] == walk->merged && walk->item < packed->n_items)
                whole &= is_item(packed, at, head, nth++, walk);
            continue;
        }
        whole &= packed->input_ids[at] == real_text_id(head->content, place);
        whole &= place == 0 || real_has_positions(packed, at, place, place, place);
    }
    return whole;
}

/* Reads the documents. The content of one that is not whole is another. */
static void read_docs(const row *packed, sim_row *out)
{
    items_walk walk = {.image = packed->pixels, .video = packed->pixels_video};
    out->n_docs = packed->n_docs < MOST_DOCS ? packed->n_docs : MOST_DOCS;
    for (int64_t i = 0; i < out->n_docs; i++) {
        const real_head head = real_head_at(packed, packed->cu_seqlens[i]);
        const bool whole = is_whole(packed, i, &head, &walk);
        out->doc[i] = (sim_row_doc){(int64_t)packed->doc_sample_id[i],
                                    whole ? head.content : ~head.content, head.bad};
    }
}

/* Reads what the worker notes for the simulator,
 * from the message as it was before it was tagged. */
static bool read_note(simulation *sim, const wire_msg *message, sim_row *out)
{
    long long began;
    int lied;
    row packed;
    wire_msg *bare;
    bool read = wire_msg_new(&bare) == ST_OK;
    for (size_t i = 0; read && i + 1 < wire_msg_parts(message); i++) {
        const span bytes = wire_msg_part(message, i);
        read = wire_msg_add(bare, bytes.data, bytes.size) == ST_OK;
    }
    read = read && codec_decode(sim->coder, bare, PEER, &sim->row_memory, &packed, NULL) == ST_OK &&
           sscanf(packed.references, "%lld %d", &began, &lied) == 2;
    wire_msg_free(&bare);
    if (!read)
        return false;
    out->began_ns = began;
    out->lied = lied != 0;
    return true;
}

/* The texts of a row are those of its tag, whatever its worker wrote into its block. */
static void check_texts(simulation *sim, const row *packed, const json_value *tag)
{
    const struct {
        const char *member, *is;
    } list[] = {{"cursor", packed->cursor},
                {"quarantine", packed->quarantine},
                {"references", packed->references},
                {"worker", packed->worker}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (strcmp(json_text(json_find(tag, list[i].member), ""), list[i].is) != 0)
            sim_break(sim, INV_TAGS, "a receiver has another %s than the tag: %s", list[i].member,
                      list[i].is);
}

/* The receiver refuses a row: its maker lies, and is named if the tag was enough to tell. */
static void check_real_refusal(simulation *sim, const json_value *tag)
{
    const char *maker = json_text(json_find(tag, "worker"), "-"), *why = status_text();
    const int number = worker_find(sim, (pid_t)strtol(maker, NULL, 10));
    sim->stats->real_refused++;
    for (int i = 0; i < sim->rules.n_supervisors; i++)
        if (sim->rules.forges[i])
            return; /* it may have said that it is another */
    if (number < 0 || (sim->worker[number]->bent != BENT_LIES_IDS &&
                       sim->worker[number]->bent != BENT_LIES_DIGEST))
        sim_break(sim, INV_HONEST, "a row of worker %s, which does not lie, is refused: %s", maker,
                  why);
    if (strstr(why, " ordered") && !strstr(why, maker))
        sim_break(sim, INV_DEVIANT, "a row is refused without the name of worker %s: %s", maker,
                  why);
}

bool real_row_read(simulation *sim, int number, const wire_msg *message, const frame *head,
                   sim_row *out, const char **why)
{
    const span tag = wire_msg_part(message, 2 + (size_t)head->n_images);
    row packed;
    *why = NULL;
    out->tag = NULL;
    if (row_order_take(&sim->rank[number]->order, PEER, head->row) != ST_OK) {
        sim_break(sim, INV_ORDER, "rank %d: %s", number, status_text());
        return false;
    }
    if (wire_msg_parts(message) != 3 + (size_t)head->n_images ||
        json_parse((const char *)tag.data, tag.size, "tag", &out->tag) != ST_OK) {
        sim_break(sim, INV_WIRE, "rank %d gets a row without a tag", number);
        return false;
    }
    arena_reset(&sim->row_memory);
    const status st = codec_decode(sim->coder, message, PEER, &sim->row_memory, &packed, NULL);
    sim->stats->real_rows++;
    if (st == ST_PROTOCOL) {
        check_real_refusal(sim, out->tag);
        *why = status_text();
        return true;
    }
    if (st == ST_OK) {
        check_texts(sim, &packed, out->tag);
        read_docs(&packed, out);
    }
    if (st == ST_OK && read_note(sim, message, out))
        return true;
    sim_break(sim, INV_WIRE, "rank %d cannot read row %llu: %s", number,
              (unsigned long long)head->row, status_text());
    sim_row_done(out);
    return false;
}
