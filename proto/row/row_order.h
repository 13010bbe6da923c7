/* SPDX-License-Identifier: Apache-2.0 */
/* row_order.h: checks that a consumer gets the rows it must get, in their order, and a cursor
 * before a run relies on it.
 *
 * Every row that a daemon sends is held against this, so that a row that is missing, comes twice or
 * belongs to another rank is refused and never trained.
 *
 * A single consumer gets every row, so the next number is known. Of R consumers, each gets its
 * share of every step in rising order: assign_rows gives rank r of R g / R of the step's g rows,
 * and one more if r < g % R. Which rows those are depends on the cost of all rows of the step,
 * which a single rank does not know; it can only check that numbers rise and that each step has the
 * right count. A recording is served in rounds: after its last row comes its first again. */
#ifndef TESSERA_PROTO_ROW_ORDER_H
#define TESSERA_PROTO_ROW_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/json/json.h"

typedef struct row_order {
    uint64_t first, rows; /* a recording's first number and its count of rows; rows 0: a stream */
    uint64_t step_rows;   /* rows of a step; 0 if not known, then numbers only have to rise */
    uint64_t rank, ranks;
    /* Places count rows over all rounds of a recording; in a stream they are the numbers. */
    uint64_t next; /* a row of an earlier place is refused */
    uint64_t step; /* the step that `next` lies in */
    uint64_t got;  /* rows of that step that this rank has got so far */
    bool entered;  /* it was entered in its middle, so the count before is not known */
} row_order;

/* Begins at the row that a daemon's WELCOME names. asked is the row number that HELLO asked for;
 * peer names the daemon in errors. ST_PROTOCOL if the stream begins elsewhere: a stream must never
 * start again from the beginning unnoticed. */
WARN_UNUSED status row_order_begin(const json_value *welcome, const char *peer, uint64_t asked,
                                   int rank, int ranks, row_order *out);
/* Takes the number of a row that has come. ST_PROTOCOL names it and the one that was expected. */
WARN_UNUSED status row_order_take(row_order *order, const char *peer, uint64_t number);

/* --- cursors ---
 *
 * A cursor is the JSON text in a row's metadata that says where its stream continues after that row
 * (wire.md). A consumer keeps it with its checkpoint. This checks what a consumer can know: that
 * the members agree with each other and with the run. Whether the cursor belongs to the data set
 * and plan at hand, only the daemon can tell, and it does so at HELLO. */

/* Reads the cursor `text` of the stream `stream` ("train"), in a run whose steps have step_rows
 * rows (0 or less: the steps are not checked). *out_row becomes the number of the row to go on at.
 *
 * ST_BAD_INPUT, naming the source and the member: text is no cursor, is one of another stream, or
 * contradicts itself (a row that does not come after the beginning of its epoch, a step that the
 * row is not in, a negative number). */
WARN_UNUSED status cursor_read(const char *text, const char *source, const char *stream,
                               int64_t step_rows, int64_t *out_row);

#endif
