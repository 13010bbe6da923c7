/* sent_rows.c: who made the rows that a consumer got: all that it has not given the credit of back,
 * and some before them, since it may look at a row after that. */
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/dispatch_state.h"

enum { ROWS_KEPT = SESSION_SLOTS }; /* at least, if so many were sent */

hash128 made_digest(const wire_msg *made)
{
    frame head = {0};
    if (frame_decode(wire_msg_part(made, 0), "row", &head) != ST_OK)
        head.digest = (hash128){{0}};
    return head.digest;
}

/* How many of the last rows have to be kept. */
static int64_t rows_needed(const consumer_seat *consumer)
{
    int64_t count = 0, bytes = 0;
    while (count < consumer->n_made && (count < ROWS_KEPT || bytes < consumer->unreturned))
        bytes += consumer->made[consumer->n_made - ++count].bytes;
    return count;
}

/* Makes room for one more: forgets old rows if that gives much, or takes more memory. */
static status make_room(consumer_seat *consumer)
{
    if (consumer->n_made < consumer->made_capacity)
        return ST_OK;
    const int64_t needed = rows_needed(consumer), old = consumer->n_made - needed;
    if (2 * old > consumer->n_made) {
        memmove(consumer->made, consumer->made + old, (size_t)needed * sizeof(*consumer->made));
        consumer->n_made = needed;
        return ST_OK;
    }
    const int64_t capacity = consumer->made_capacity ? 2 * consumer->made_capacity : ROWS_KEPT;
    made_row *made = (made_row *)realloc(consumer->made, (size_t)capacity * sizeof(*made));
    if (!made)
        return FAIL(ST_NO_MEMORY, "no memory to remember who made %lld rows", (long long)capacity);
    consumer->made = made;
    consumer->made_capacity = capacity;
    return ST_OK;
}

status sent_row_add(consumer_seat *consumer, const made_row *sent)
{
    TRY(make_room(consumer));
    consumer->made[consumer->n_made++] = *sent;
    return ST_OK;
}

const made_row *sent_row_find(const consumer_seat *consumer, uint64_t row)
{
    for (int64_t i = consumer->n_made - 1; i >= 0; i--)
        if (consumer->made[i].row == row)
            return &consumer->made[i];
    return NULL;
}
