/* SPDX-License-Identifier: Apache-2.0 */
/* heard.c: see heard.h.
 * A text has one place in the book, by its hash, where it drives out another. */
#include "tests/sim/prepd/heard.h"

#include <stdlib.h>

/* Whether the message is header and JSON, as all but leases with files are, and fits its header. */
static bool is_plain(const wire_msg *message, const frame *head)
{
    const span text = wire_msg_part(message, 1);
    return head->kind != KIND_ROW && wire_msg_parts(message) == 2 &&
           head->block_bytes == text.size &&
           hash_equal(head->digest, hash_bytes(text.data, text.size));
}

static bool is_same(const heard *known, const frame *head)
{
    return known && known->size == head->block_bytes && hash_equal(known->digest, head->digest);
}

/* Reads the text, by the fast reader or, if it is not for that one, by that of the programs. */
static status read_anew(sim_json *reader, const wire_msg *message, bool plain, frame *head,
                        heard *out)
{
    const span text = wire_msg_part(message, 1);
    arena_init(&out->memory, 0);
    if (plain &&
        sim_json_read(reader, (const char *)text.data, text.size, &out->memory, &out->root) &&
        json_typeof(&out->root) == JSON_OBJECT)
        out->said = &out->root;
    else
        TRY(wire_read_json(message, "core", head, &out->parsed));
    if (out->parsed)
        out->said = out->parsed;
    out->digest = head->digest;
    out->size = head->block_bytes;
    return ST_OK;
}

status heard_read(heard_book *book, const wire_msg *message, frame *out_head, heard **out)
{
    frame head;
    TRY(frame_decode(wire_msg_part(message, 0), "core", &head));
    heard **place = &book->of[head.digest.bytes[0] % HEARD_PLACES];
    const bool plain = is_plain(message, &head);
    if (!plain || !is_same(*place, &head)) {
        heard *made = calloc(1, sizeof *made);
        if (!made)
            abort();
        made->users = 1;
        const status st = read_anew(&book->reader, message, plain, &head, made);
        if (st != ST_OK) {
            heard_drop(&made);
            return st;
        }
        heard_drop(place);
        *place = made;
    }
    (*place)->users++;
    *out_head = head;
    *out = *place;
    return ST_OK;
}

void heard_drop(heard **text)
{
    heard *was = *text;
    *text = NULL;
    if (!was || --was->users > 0)
        return;
    json_free(&was->parsed);
    arena_done(&was->memory);
    free(was);
}

void heard_book_done(heard_book *book)
{
    for (int i = 0; i < HEARD_PLACES; i++)
        heard_drop(&book->of[i]);
    sim_json_done(&book->reader);
}
