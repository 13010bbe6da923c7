/* row_range.c: where each window's rows begin in the stream, and where the stream ends.
 *
 * A range begins with the first row of an epoch and grows by one window at a time. Its prefix sum
 * (first_row) finds the window of any known row by bisection. A consumer that resumes brings the
 * epoch of its cursor and that epoch's first row, so that the epochs before it need not be planned
 * again. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "prepd/plan/planner.h"

/* No run gets that far, and beyond these the sums could overflow. */
static const uint64_t MOST_EPOCHS = (uint64_t)1 << 31, MOST_ROWS = (uint64_t)1 << 62;

status row_range_init(row_range *s, uint64_t epoch, uint64_t row)
{
    *s = (row_range){.epoch = epoch, .end_row = UINT64_MAX, .full_rows = UINT64_MAX};
    TRY(array_room((void **)&s->first_row, 0, &s->known_capacity, sizeof *s->first_row));
    s->first_row[0] = row;
    s->n_known = 1;
    return ST_OK;
}

void row_range_done(row_range *s)
{
    free(s->first_row);
    s->first_row = NULL;
}

uint64_t row_range_begin(const plan *p, const row_range *s)
{
    return s->epoch * p->n_windows;
}

uint64_t row_range_known(const plan *p, const row_range *s)
{
    return row_range_begin(p, s) + (uint64_t)(s->n_known - 1);
}

/* The first row of a known window. */
static uint64_t first_of(const plan *p, const row_range *s, uint64_t window)
{
    return s->first_row[window - row_range_begin(p, s)];
}

static uint64_t round_up(uint64_t v, uint64_t step)
{
    return (v + step - 1) / step * step;
}

/* Finds the stream's end. It comes after training.epochs, where a fraction of an epoch is that
 * share of the epoch's rows, and the last step is completed with empty rows. The small number
 * subtracted below keeps a share that rounding made slightly too large from becoming one row more.
 */
static void find_end(const plan *p, row_range *s)
{
    const double rest = p->conf->training_epochs - (double)p->whole_epochs;
    uint64_t rows = first_of(p, s, p->whole_epochs * p->n_windows);
    if (rest > 0) {
        uint64_t last = first_of(p, s, (p->whole_epochs + 1) * p->n_windows) - rows;
        rows += (uint64_t)ceil(rest * (double)last - 1e-9);
    }
    s->full_rows = rows;
    s->end_row = round_up(rows, (uint64_t)p->conf->training_global_batch_size);
}

status row_range_add(plan *p, row_range *s, int64_t n_rows)
{
    TRY(array_room((void **)&s->first_row, s->n_known, &s->known_capacity, sizeof *s->first_row));
    s->first_row[s->n_known] = s->first_row[s->n_known - 1] + (uint64_t)n_rows;
    s->n_known++;
    if (row_range_known(p, s) == p->last_window)
        find_end(p, s);
    return ST_OK;
}

uint64_t row_range_rows(const plan *p, const row_range *s)
{
    const uint64_t known = row_range_known(p, s), whole = p->whole_epochs * p->n_windows;
    const bool in_part = !plan_endless(p) && known < p->last_window && known > whole;
    return first_of(p, s, in_part ? whole : known);
}

uint64_t row_range_window(const plan *p, const row_range *s, uint64_t row, uint64_t *out_first)
{
    int64_t low = 0, high = s->n_known - 1; /* first_row[low] <= row < first_row[high] */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (s->first_row[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    *out_first = s->first_row[low];
    return row_range_begin(p, s) + (uint64_t)low;
}

/* Refuses an epoch that the stream cannot have, and a row with which it cannot begin: every epoch
 * has at least one row. */
static status check_place(const plan *p, uint64_t epoch, uint64_t row)
{
    const double epochs = p->conf->training_epochs;
    if (p->kind == PLAN_SAMPLES || epoch > MOST_EPOCHS || row > MOST_ROWS || epoch > row ||
        (epoch == 0 && row > 0) || (epochs > 0 && (double)epoch >= epochs))
        return FAIL(ST_PROTOCOL,
                    "this stream has no epoch %" PRIu64 " that begins with row %" PRIu64, epoch,
                    row);
    return ST_OK;
}

status plan_from(plan *p, uint64_t epoch, uint64_t row, row_range **out)
{
    row_range *s = NULL;
    TRY(check_place(p, epoch, row));
    if (epoch == 0) {
        *out = NULL;
        return ST_OK;
    }
    for (s = p->others; s; s = s->next)
        if (s->epoch == epoch && s->first_row[0] == row) {
            s->walkers++;
            *out = s;
            return ST_OK;
        }
    s = (row_range *)calloc(1, sizeof *s);
    if (!s)
        return FAIL(ST_NO_MEMORY, "no memory for a range of rows");
    const status st = row_range_init(s, epoch, row);
    if (st != ST_OK) {
        free(s);
        return st;
    }
    s->walkers = 1;
    s->next = p->others;
    p->others = s;
    *out = s;
    return ST_OK;
}

void plan_leave(plan *p, row_range **held)
{
    row_range *s = *held, **at = &p->others;
    *held = NULL;
    if (!s || --s->walkers > 0)
        return;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    row_range_done(s);
    free(s);
}

uint64_t plan_first_row(const row_range *s)
{
    return s ? s->first_row[0] : 0;
}
