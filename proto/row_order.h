/* row_order.h: which row a consumer must get next. What a daemon sends is held against it, so that
 * a row that is missing, comes twice or belongs to another rank is never trained.
 *
 * One consumer gets every row, so the next number is known. Of several each gets its share of every
 * step, in rising order: assign_rows gives rank r of R g / R of the g rows, and one more where
 * r < g % R. Which of them depends on what the others' rows weigh, so a number is known only as far
 * as that. A recording is served in rounds: after its last row comes its first. */
#ifndef TESSERA_PROTO_ROW_ORDER_H
#define TESSERA_PROTO_ROW_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/json/json.h"

typedef struct row_order {
    uint64_t first, rows; /* of a recording: its first row's number, and how many; rows 0: none */
    uint64_t step_rows;   /* 0: not known, then rows have only to rise */
    uint64_t rank, ranks;
    /* over all rounds; of a stream, numbers */
    uint64_t next; /* no row before this one may come */
    uint64_t step; /* that `next` lies in */
    uint64_t got;  /* our rows of that step so far */
    bool entered;  /* in the middle of that step: how many were ours before is not known */
} row_order;

/* As a daemon's WELCOME says; peer names it in errors. asked: the number of the row that HELLO
 * asked for. ST_PROTOCOL where the stream begins elsewhere: no stream may begin anew by itself. */
WARN_UNUSED status row_order_begin(const json_value *welcome, const char *peer, uint64_t asked,
                                   int rank, int ranks, row_order *out);
/* A row with this number has come. ST_PROTOCOL names it, and the one that was to come. */
WARN_UNUSED status row_order_take(row_order *o, const char *peer, uint64_t number);

#endif
