/* SPDX-License-Identifier: Apache-2.0 */
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

status row_range_init(row_range *range, uint64_t epoch, uint64_t row)
{
    *range = (row_range){.epoch = epoch, .end_row = UINT64_MAX, .full_rows = UINT64_MAX};
    TRY(array_room((void **)&range->first_row, 0, &range->known_capacity,
                   sizeof *range->first_row));
    range->first_row[0] = row;
    range->n_known = 1;
    return ST_OK;
}

void row_range_done(row_range *range)
{
    free(range->first_row);
    range->first_row = NULL;
}

/* its first window */
static uint64_t row_range_begin(const plan *planned, const row_range *range)
{
    return range->epoch * planned->n_windows;
}

uint64_t row_range_known(const plan *planned, const row_range *range)
{
    return row_range_begin(planned, range) + (uint64_t)(range->n_known - 1);
}

/* The first row of a known window. */
static uint64_t first_of(const plan *planned, const row_range *range, uint64_t window)
{
    return range->first_row[window - row_range_begin(planned, range)];
}

static uint64_t round_up(uint64_t value, uint64_t step)
{
    return (value + step - 1) / step * step;
}

/* Finds the stream's end. It comes after training.epochs, where a fraction of an epoch is that
 * share of the epoch's rows, and the last step is completed with empty rows. The small number
 * subtracted below keeps a share that rounding made slightly too large from becoming one row more.
 */
static void find_end(const plan *planned, row_range *range)
{
    const double rest = planned->conf->training_epochs - (double)planned->whole_epochs;
    uint64_t rows = first_of(planned, range, planned->whole_epochs * planned->n_windows);
    if (rest > 0) {
        uint64_t last =
            first_of(planned, range, (planned->whole_epochs + 1) * planned->n_windows) - rows;
        rows += (uint64_t)ceil(rest * (double)last - 1e-9);
    }
    range->full_rows = rows;
    range->end_row = round_up(rows, (uint64_t)planned->conf->training_global_batch_size);
}

status row_range_add(plan *planned, row_range *range, int64_t n_rows)
{
    TRY(array_room((void **)&range->first_row, range->n_known, &range->known_capacity,
                   sizeof *range->first_row));
    range->first_row[range->n_known] = range->first_row[range->n_known - 1] + (uint64_t)n_rows;
    range->n_known++;
    if (row_range_known(planned, range) == planned->last_window)
        find_end(planned, range);
    return ST_OK;
}

uint64_t row_range_rows(const plan *planned, const row_range *range)
{
    const uint64_t known = row_range_known(planned, range),
                   whole = planned->whole_epochs * planned->n_windows;
    const bool in_part = !plan_endless(planned) && known < planned->last_window && known > whole;
    return first_of(planned, range, in_part ? whole : known);
}

uint64_t row_range_window(const plan *planned, const row_range *range, uint64_t row,
                          uint64_t *out_first)
{
    int64_t low = 0, high = range->n_known - 1; /* first_row[low] <= row < first_row[high] */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (range->first_row[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    *out_first = range->first_row[low];
    return row_range_begin(planned, range) + (uint64_t)low;
}

/* Refuses an epoch that the stream cannot have, and a row with which it cannot begin: every epoch
 * has at least one row. */
static status check_place(const plan *planned, uint64_t epoch, uint64_t row)
{
    const double epochs = planned->conf->training_epochs;
    if (planned->kind == PLAN_SAMPLES || epoch > MOST_EPOCHS || row > MOST_ROWS || epoch > row ||
        (epoch == 0 && row > 0) || (epochs > 0 && (double)epoch >= epochs))
        return FAIL(ST_PROTOCOL,
                    "this stream has no epoch %" PRIu64 " that begins with row %" PRIu64, epoch,
                    row);
    return ST_OK;
}

status plan_from(plan *planned, uint64_t epoch, uint64_t row, row_range **out)
{
    row_range *range = NULL;
    TRY(check_place(planned, epoch, row));
    if (epoch == 0) {
        *out = NULL;
        return ST_OK;
    }
    for (range = planned->others; range; range = range->next)
        if (range->epoch == epoch && range->first_row[0] == row) {
            range->walkers++;
            *out = range;
            return ST_OK;
        }
    range = (row_range *)calloc(1, sizeof *range);
    if (!range)
        return FAIL(ST_NO_MEMORY, "no memory for a range of rows");
    const status st = row_range_init(range, epoch, row);
    if (st != ST_OK) {
        free(range);
        return st;
    }
    range->walkers = 1;
    range->next = planned->others;
    planned->others = range;
    *out = range;
    return ST_OK;
}

void plan_leave(plan *planned, row_range **held)
{
    row_range *range = *held, **at = &planned->others;
    *held = NULL;
    if (!range || --range->walkers > 0)
        return;
    while (*at != range)
        at = &(*at)->next;
    *at = range->next;
    row_range_done(range);
    free(range);
}

uint64_t plan_first_row(const row_range *range)
{
    return range ? range->first_row[0] : 0;
}

/* What can be asked of a plan once it is made: budgets, bounds, causes, buckets. */

/* The default patch budget lets every token of a row be a visual token, which takes four patches.
 */
enum { PATCHES_PER_TOKEN = 4 };

int plan_version(const conf *options)
{
    return conf_shares_images(options) ? PLAN_VERSION : PLAN_ALONE_VERSION;
}

bool plan_balances(const plan *planned)
{
    return plan_version(planned->conf) >= PLAN_VERSION;
}

uint64_t plan_rows(const plan *planned, const row_range *range)
{
    return range ? range->end_row : planned->whole.end_row;
}

bool plan_endless(const plan *planned)
{
    return planned->kind != PLAN_SAMPLES && planned->last_window == UINT64_MAX;
}

int64_t plan_token_budget(const plan *planned)
{
    return planned->token_budget;
}

int64_t plan_patches_of(const conf *options)
{
    return options->data_patch_budget ? options->data_patch_budget
                                      : PATCHES_PER_TOKEN * options->training_seq_len;
}

int64_t plan_patch_budget(const plan *planned)
{
    return planned->patch_budget;
}

const char *plan_cause(const plan *planned, int64_t index)
{
    int64_t at = id_map_get(&planned->cause_of, index);
    return at < 0 ? NULL : text_pool_at(&planned->causes, at);
}

int64_t plan_refused(const plan *planned)
{
    return planned->data->adapter->samples(planned->data) - planned->n_usable;
}

const shape_bucket *plan_buckets(const plan *planned, int *out_n)
{
    *out_n = planned->n_buckets;
    return planned->buckets;
}

uint64_t plan_epoch_rows(const plan *planned)
{
    return planned->kind == PLAN_SAMPLES ? planned->whole.end_row
                                         : planned->whole.first_row[planned->n_windows];
}
