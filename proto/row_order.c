/* row_order.c: the rules of row_order.h. A recording's numbers repeat every round, so places are
 * compared, which count over all rounds. */
#include "proto/row_order.h"

static bool read_number(const json_value *object, const char *key, uint64_t *out)
{
    const int64_t n = json_int(json_find(object, key), -1);
    if (n >= 0)
        *out = (uint64_t)n;
    return n >= 0;
}

static uint64_t number_at(const row_order *o, uint64_t place)
{
    return o->rows ? o->first + place % o->rows : place;
}

/* True if a session may begin at this row: the one asked for or, with several ranks, a later row of
 * its step, since each rank begins at its own first row. */
static bool is_start(const row_order *o, uint64_t asked, uint64_t row)
{
    return row == asked ||
           (o->ranks > 1 && row > asked && (o->step_rows == 0 || row - asked < o->step_rows));
}

status row_order_begin(const json_value *welcome, const char *peer, uint64_t asked, int rank,
                       int ranks, row_order *out)
{
    row_order o = {.rank = (uint64_t)rank, .ranks = (uint64_t)(ranks > 1 ? ranks : 1)};
    const json_value *recording = json_find(welcome, "recording");
    uint64_t row;
    (void)read_number(welcome, "global_batch_size", &o.step_rows);
    if (recording && !(read_number(recording, "first", &o.first) &&
                       read_number(recording, "rows", &o.rows) && o.rows > 0))
        return FAIL_IN(ST_PROTOCOL, peer, "WELCOME does not say which rows the recording has");
    asked = asked > o.first ? asked - o.first : 0;
    o.next = asked;
    if (read_number(welcome, "row", &row)) {
        row = row > o.first ? row - o.first : 0;
        if (!is_start(&o, asked, row))
            return FAIL_IN(
                ST_PROTOCOL, peer, "the stream begins at row %llu, but row %llu was asked for",
                (unsigned long long)(row + o.first), (unsigned long long)(asked + o.first));
        o.next = row;
    }
    if (o.rows > 0 && o.rows / 2 < o.step_rows)
        o.step_rows = 0; /* a number would not tell the round of its row */
    if (o.step_rows > 0) {
        o.step = o.next / o.step_rows;
        o.entered = o.next % o.step_rows != 0;
    }
    *out = o;
    return ST_OK;
}

/* The next place at which a row with this number comes; false if there is no such row. */
static bool find_place(const row_order *o, uint64_t number, uint64_t *out)
{
    *out = number;
    if (o->rows == 0)
        return true;
    if (number < o->first || number - o->first >= o->rows)
        return false;
    *out = o->next - o->next % o->rows + (number - o->first);
    *out += *out < o->next ? o->rows : 0;
    return true;
}

static status out_of_order(const row_order *o, const char *peer, uint64_t number)
{
    return FAIL_IN(ST_PROTOCOL, peer, "row %llu came where row %llu%s was expected",
                   (unsigned long long)number, (unsigned long long)number_at(o, o->next),
                   o->ranks > 1 ? " or a later one of its step" : "");
}

/* Takes a row of one of several ranks: checks how many of a step this rank has got. */
static status take_of_step(row_order *o, const char *peer, uint64_t number, uint64_t place)
{
    const uint64_t step = place / o->step_rows, rank = o->rank;
    const uint64_t share = o->step_rows / o->ranks + (rank < o->step_rows % o->ranks);
    const bool is_next = step == o->step + 1 && (o->got == share || o->entered);
    if (step != o->step && !is_next)
        return FAIL_IN(ST_PROTOCOL, peer,
                       "row %llu of step %llu came where a row of step %llu from row %llu on was "
                       "expected: rank %llu of %llu has got %llu of its %llu rows",
                       (unsigned long long)number, (unsigned long long)step,
                       (unsigned long long)(o->got == share ? o->step + 1 : o->step),
                       (unsigned long long)number_at(o, o->next), (unsigned long long)rank,
                       (unsigned long long)o->ranks, (unsigned long long)o->got,
                       (unsigned long long)share);
    if (step == o->step && o->got == share)
        return FAIL_IN(
            ST_PROTOCOL, peer,
            "row %llu came where a row from %llu on was expected: rank %llu of %llu has got "
            "all its %llu rows of step %llu",
            (unsigned long long)number, (unsigned long long)number_at(o, (step + 1) * o->step_rows),
            (unsigned long long)rank, (unsigned long long)o->ranks, (unsigned long long)share,
            (unsigned long long)step);
    o->entered = o->entered && step == o->step;
    o->got = step == o->step ? o->got + 1 : 1;
    o->step = step;
    return ST_OK;
}

status row_order_take(row_order *o, const char *peer, uint64_t number)
{
    uint64_t place;
    if (!find_place(o, number, &place) || place < o->next || (o->ranks == 1 && place != o->next))
        return out_of_order(o, peer, number);
    if (o->ranks > 1 && o->step_rows > 0)
        TRY(take_of_step(o, peer, number, place));
    o->next = place + 1;
    return ST_OK;
}
