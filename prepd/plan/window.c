/* SPDX-License-Identifier: Apache-2.0 */
/* window.c: the rows of one window. The window's units are taken in the epoch's order and packed,
 * and the rows are permuted. The last few windows are cached, since rows are asked for one by one.
 */
#include <stdlib.h>

#include "prepd/plan/order.h"
#include "prepd/plan/pack.h"
#include "prepd/plan/planner.h"

/* Sorts the window's units by row, with the rows at their permuted places. Within a row the units
 * keep the epoch's order. */
static status fill_rows(plan *planned, window_plan *made, uint64_t epoch, uint64_t window,
                        const int64_t *units, const int64_t *row_of, int64_t count, int64_t rows)
{
    order permuted =
        order_of_rows(planned->seed, epoch, window, (uint64_t)rows, planned->conf->data_shuffle);
    int64_t *place;
    TRY(arena_calloc(&planned->scratch, (size_t)rows + 1, sizeof *place, (void **)&place));
    while (made->first_capacity <= rows)
        TRY(array_room((void **)&made->first, made->first_capacity, &made->first_capacity,
                       sizeof *made->first));
    while (made->items_capacity < count)
        TRY(array_room((void **)&made->items, made->items_capacity, &made->items_capacity,
                       sizeof *made->items));
    for (int64_t k = 0; k < rows; k++)
        place[k] = (int64_t)order_at(&permuted, (uint64_t)k);
    for (int64_t k = 0; k <= rows; k++)
        made->first[k] = 0;
    for (int64_t i = 0; i < count; i++)
        made->first[place[row_of[i]] + 1]++;
    for (int64_t k = 0; k < rows; k++)
        made->first[k + 1] += made->first[k];
    int64_t *next;
    TRY(arena_calloc(&planned->scratch, (size_t)rows + 1, sizeof *next, (void **)&next));
    for (int64_t i = 0; i < count; i++) {
        int64_t row = place[row_of[i]];
        made->items[made->first[row] + next[row]++] = units[i];
    }
    made->n_rows = rows;
    return ST_OK;
}

/* Takes the window's share of every lane. The units are permuted once more if they come from
 * several lanes or from pieces, so that the sources mix within the window. */
static status take_units(plan *planned, uint64_t epoch, uint64_t window, int64_t **out,
                         int64_t *out_n)
{
    uint64_t count = 0, from, to;
    int64_t *units;
    for (int k = 0; k < planned->n_lanes; k++) {
        mixture_lane_window(&planned->lanes[k], epoch, planned->n_windows, window, &from, &to);
        count += to - from;
    }
    TRY(arena_calloc(&planned->scratch, count + 1, sizeof *units, (void **)&units));
    const bool mix = planned->n_lanes > 1 || planned->lanes[0].chunks;
    const order mixed =
        order_of_window(planned->seed, epoch, window, count, mix && planned->conf->data_shuffle);
    count = 0;
    for (int k = 0; k < planned->n_lanes; k++) {
        mixture_lane_window(&planned->lanes[k], epoch, planned->n_windows, window, &from, &to);
        for (; from < to; from++) {
            uint64_t unit;
            TRY(mixture_lane_at(&planned->lanes[k], planned->seed, planned->conf->data_shuffle,
                                from, &unit));
            units[order_at(&mixed, count++)] = (int64_t)unit;
        }
    }
    *out = units;
    *out_n = (int64_t)count;
    return ST_OK;
}

static status make_window(plan *planned, uint64_t global, window_plan *made)
{
    uint64_t epoch = global / planned->n_windows, window = global % planned->n_windows;
    int64_t *units, *row_of, count, rows;
    pack_item *items;
    TRY(take_units(planned, epoch, window, &units, &count));
    rows = count;
    TRY(arena_calloc(&planned->scratch, (size_t)count + 1, sizeof *row_of, (void **)&row_of));
    TRY(arena_calloc(&planned->scratch, (size_t)count + 1, sizeof *items, (void **)&items));
    for (int64_t i = 0; i < count; i++) {
        items[i] = (pack_item){planned->units[units[i]].tokens, planned->units[units[i]].patches};
        row_of[i] = i;
    }
    if (planned->conf->data_pack && planned->conf->data_resolution_class)
        TRY(plan_pack_classes(planned, items, units, count, row_of, &rows));
    else if (planned->conf->data_pack)
        TRY(plan_pack_mixed(planned, items, units, count, row_of, &rows));
    return fill_rows(planned, made, epoch, window, units, row_of, count, rows);
}

/* Finds a place in the cache: a new one while the cache may grow, else that of the window that has
 * not been asked for the longest. */
static status find_place(plan *planned, window_plan **out)
{
    if (planned->n_cached < (int64_t)WINDOWS_EACH * planned->walkers) {
        TRY(array_room((void **)&planned->cache, planned->n_cached, &planned->cache_capacity,
                       sizeof *planned->cache));
        planned->cache[planned->n_cached] = (window_plan){0};
        *out = &planned->cache[planned->n_cached++];
        return ST_OK;
    }
    *out = &planned->cache[0];
    for (int64_t k = 1; k < planned->n_cached; k++)
        if (planned->cache[k].used < (*out)->used)
            *out = &planned->cache[k];
    return ST_OK;
}

status plan_window(plan *planned, uint64_t global, const window_plan **out)
{
    window_plan *window;
    for (int64_t k = 0; k < planned->n_cached; k++) {
        window = &planned->cache[k];
        if (window->valid && window->global == global) {
            window->used = ++planned->clock;
            *out = window;
            return ST_OK;
        }
    }
    TRY(find_place(planned, &window));
    window->valid = false;
    window->used = 0;
    arena_mark mark = arena_save(&planned->scratch);
    status st = make_window(planned, global, window);
    arena_release(&planned->scratch, mark);
    TRY(st);
    window->valid = true;
    window->global = global;
    window->used = ++planned->clock;
    *out = window;
    return ST_OK;
}

void plan_walkers(plan *planned, int n_walkers)
{
    planned->walkers = n_walkers > 1 ? n_walkers : 1;
    for (; planned->n_cached > (int64_t)WINDOWS_EACH * planned->walkers; planned->n_cached--) {
        window_plan *window = &planned->cache[planned->n_cached - 1];
        free(window->first);
        free(window->items);
    }
}
