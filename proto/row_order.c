/* row_order.c: the rules of row_order.h. A recording's numbers repeat every round, so places are
 * compared, which count over all rounds. */
#include "proto/row_order.h"

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
