/* heard.c: see heard.h. A text has one place in the book, by its hash, where it drives out another.
 */
#include "tests/sim/prepd/heard.h"

#include <stdlib.h>

static bool is_same(const heard *known, const frame *head, span text)
{
    return known && known->size == text.size && head->block_bytes == text.size &&
           hash_equal(known->digest, head->digest) &&
           hash_equal(known->digest, hash_bytes(text.data, text.size));
}

static void keep(heard **place, const frame *head, json_value *said)
{
    heard *made = malloc(sizeof *made);
    if (!made)
        abort();
    *made = (heard){head->digest, head->block_bytes, said, 1};
    heard_drop(place);
    *place = made;
}

status heard_read(heard_book *book, const wire_msg *message, frame *out_head, heard **out)
{
    frame head;
    json_value *said;
    TRY(frame_decode(wire_msg_part(message, 0), "core", &head));
    heard **place = &book->of[head.digest.bytes[0] % HEARD_PLACES];
    if (wire_msg_parts(message) == 2 && is_same(*place, &head, wire_msg_part(message, 1))) {
        *out_head = head;
    } else {
        TRY(wire_read_json(message, "core", out_head, &said));
        keep(place, out_head, said);
    }
    (*place)->users++;
    *out = *place;
    return ST_OK;
}

void heard_drop(heard **text)
{
    heard *was = *text;
    *text = NULL;
    if (!was || --was->users > 0)
        return;
    json_free(&was->said);
    free(was);
}

void heard_book_done(heard_book *book)
{
    for (int i = 0; i < HEARD_PLACES; i++)
        heard_drop(&book->of[i]);
}
