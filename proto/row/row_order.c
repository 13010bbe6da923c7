/* SPDX-License-Identifier: Apache-2.0 */
/* row_order.c: the rules of row_order.h, and the checks of a cursor. A recording's numbers repeat
 * every round, so places are compared, which count over all rounds. Of a cursor, members that only
 * the daemon understands are not looked at. */
#include "proto/row/row_order.h"

#include <stdbool.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/json/json.h"

static bool read_number(const json_value *object, const char *key, uint64_t *out)
{
    const int64_t count = json_int(json_find(object, key), -1);
    if (count >= 0)
        *out = (uint64_t)count;
    return count >= 0;
}

static uint64_t number_at(const row_order *order, uint64_t place)
{
    return order->rows ? order->first + place % order->rows : place;
}

/* True if a session may begin at this row: the one asked for or, with several ranks, a later row of
 * its step, since each rank begins at its own first row. */
static bool is_start(const row_order *order, uint64_t asked, uint64_t row)
{
    return row == asked || (order->ranks > 1 && row > asked &&
                            (order->step_rows == 0 || row - asked < order->step_rows));
}

status row_order_begin(const json_value *welcome, const char *peer, uint64_t asked, int rank,
                       int ranks, row_order *out)
{
    row_order order = {.rank = (uint64_t)rank, .ranks = (uint64_t)(ranks > 1 ? ranks : 1)};
    const json_value *recording = json_find(welcome, "recording");
    uint64_t row;
    (void)read_number(welcome, "global_batch_size", &order.step_rows);
    if (recording && !(read_number(recording, "first", &order.first) &&
                       read_number(recording, "rows", &order.rows) && order.rows > 0))
        return FAIL_IN(ST_PROTOCOL, peer, "WELCOME does not say which rows the recording has");
    asked = asked > order.first ? asked - order.first : 0;
    order.next = asked;
    if (read_number(welcome, "row", &row)) {
        row = row > order.first ? row - order.first : 0;
        if (!is_start(&order, asked, row))
            return FAIL_IN(
                ST_PROTOCOL, peer, "the stream begins at row %llu, but row %llu was asked for",
                (unsigned long long)(row + order.first), (unsigned long long)(asked + order.first));
        order.next = row;
    }
    if (order.rows > 0 && order.rows / 2 < order.step_rows)
        order.step_rows = 0; /* a number would not tell the round of its row */
    if (order.step_rows > 0) {
        order.step = order.next / order.step_rows;
        order.entered = order.next % order.step_rows != 0;
    }
    *out = order;
    return ST_OK;
}

/* The next place at which a row with this number comes; false if there is no such row. */
static bool find_place(const row_order *order, uint64_t number, uint64_t *out)
{
    *out = number;
    if (order->rows == 0)
        return true;
    if (number < order->first || number - order->first >= order->rows)
        return false;
    *out = order->next - order->next % order->rows + (number - order->first);
    *out += *out < order->next ? order->rows : 0;
    return true;
}

static status out_of_order(const row_order *order, const char *peer, uint64_t number)
{
    return FAIL_IN(ST_PROTOCOL, peer, "row %llu came where row %llu%s was expected",
                   (unsigned long long)number, (unsigned long long)number_at(order, order->next),
                   order->ranks > 1 ? " or a later one of its step" : "");
}

/* Takes a row of one of several ranks: checks how many of a step this rank has got. */
static status take_of_step(row_order *order, const char *peer, uint64_t number, uint64_t place)
{
    const uint64_t step = place / order->step_rows, rank = order->rank;
    const uint64_t share =
        order->step_rows / order->ranks + (rank < order->step_rows % order->ranks);
    const bool is_next = step == order->step + 1 && (order->got == share || order->entered);
    if (step != order->step && !is_next)
        return FAIL_IN(ST_PROTOCOL, peer,
                       "row %llu of step %llu came where a row of step %llu from row %llu on was "
                       "expected: rank %llu of %llu has got %llu of its %llu rows",
                       (unsigned long long)number, (unsigned long long)step,
                       (unsigned long long)(order->got == share ? order->step + 1 : order->step),
                       (unsigned long long)number_at(order, order->next), (unsigned long long)rank,
                       (unsigned long long)order->ranks, (unsigned long long)order->got,
                       (unsigned long long)share);
    if (step == order->step && order->got == share)
        return FAIL_IN(
            ST_PROTOCOL, peer,
            "row %llu came where a row from %llu on was expected: rank %llu of %llu has got "
            "all its %llu rows of step %llu",
            (unsigned long long)number,
            (unsigned long long)number_at(order, (step + 1) * order->step_rows),
            (unsigned long long)rank, (unsigned long long)order->ranks, (unsigned long long)share,
            (unsigned long long)step);
    order->entered = order->entered && step == order->step;
    order->got = step == order->step ? order->got + 1 : 1;
    order->step = step;
    return ST_OK;
}

status row_order_take(row_order *order, const char *peer, uint64_t number)
{
    uint64_t place;
    if (!find_place(order, number, &place) || place < order->next ||
        (order->ranks == 1 && place != order->next))
        return out_of_order(order, peer, number);
    if (order->ranks > 1 && order->step_rows > 0)
        TRY(take_of_step(order, peer, number, place));
    order->next = place + 1;
    return ST_OK;
}

/* --- cursors --- */

/* Reads a member that must be there and be a number of 0 or more. */
static status read_count(const json_value *value, const char *key, const char *source, int64_t *out)
{
    TRY(json_want_int(value, key, source, out));
    return *out >= 0 ? ST_OK
                     : FAIL_IN(ST_BAD_INPUT, source, "the cursor's %s is %lld, which is below 0",
                               key, (long long)*out);
}

static status check_names(const json_value *value, const char *source, const char *stream)
{
    const char *theirs, *index;
    hash128 digest;
    TRY(json_want_text(value, "stream", source, &theirs));
    TRY(json_want_text(value, "index", source, &index));
    if (strcmp(theirs, stream) != 0)
        return FAIL_IN(ST_BAD_INPUT, source,
                       "the cursor belongs to the %.32s stream, not to the %s stream", theirs,
                       stream);
    return hash_parse(index, &digest)
               ? ST_OK
               : FAIL_IN(ST_BAD_INPUT, source, "the cursor's index \"%.40s\" is not a digest",
                         index);
}

/* Checks begin: the first row of the epoch that the next step begins in, or of the one before. */
static status check_begin(const json_value *begin, const char *source, int64_t row, int64_t epoch)
{
    int64_t first, of;
    TRY(read_count(begin, "epoch", source, &of));
    TRY(read_count(begin, "row", source, &first));
    if (of > epoch || first >= row || (of == 0) != (first == 0))
        return FAIL_IN(
            ST_BAD_INPUT, source,
            "the cursor resumes at row %lld of epoch %lld, but says that epoch %lld begins "
            "at row %lld",
            (long long)row, (long long)epoch, (long long)of, (long long)first);
    return ST_OK;
}

static status check_members(const json_value *value, const char *source, const char *stream,
                            int64_t step_rows, int64_t *out_row)
{
    int64_t row, step, epoch;
    if (json_typeof(value) != JSON_OBJECT)
        return FAIL_IN(ST_BAD_INPUT, source, "the cursor is a %s, not an object",
                       json_type_name(json_typeof(value)));
    TRY(check_names(value, source, stream));
    TRY(read_count(value, "row", source, &row));
    TRY(read_count(value, "step", source, &step));
    TRY(read_count(value, "epoch", source, &epoch));
    if (row == 0)
        return FAIL_IN(ST_BAD_INPUT, source, "the cursor resumes at row 0, which follows no row");
    if (step_rows > 0 && step != row / step_rows)
        return FAIL_IN(ST_BAD_INPUT, source,
                       "the cursor resumes at row %lld of step %lld, but steps have %lld rows",
                       (long long)row, (long long)step, (long long)step_rows);
    TRY(check_begin(json_find(value, "begin"), source, row, epoch));
    *out_row = row;
    return ST_OK;
}

status cursor_read(const char *text, const char *source, const char *stream, int64_t step_rows,
                   int64_t *out_row)
{
    json_value *value = NULL;
    if (!text || !text[0])
        return FAIL_IN(ST_BAD_INPUT, source, "there is no cursor");
    TRY(json_parse(text, strlen(text), source, &value));
    status st = check_members(value, source, stream, step_rows, out_row);
    json_free(&value);
    return st;
}
