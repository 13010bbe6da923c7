/* window.c: the rows of one window. The window's units are taken in the epoch's order and packed,
 * and the rows are permuted. The last few windows are cached, since rows are asked for one by one.
 */
#include <stdlib.h>

#include "prepd/plan/order.h"
#include "prepd/plan/pack.h"
#include "prepd/plan/planner.h"

/* Sorts the window's units by row, with the rows at their permuted places. Within a row the units
 * keep the epoch's order. */
static status fill_rows(plan *p, window_plan *w, uint64_t epoch, uint64_t window,
                        const int64_t *units, const int64_t *row_of, int64_t n, int64_t rows)
{
    order permuted = order_of_rows(p->seed, epoch, window, (uint64_t)rows, p->conf->data_shuffle);
    int64_t *place;
    TRY(arena_calloc(&p->scratch, (size_t)rows + 1, sizeof *place, (void **)&place));
    while (w->first_capacity <= rows)
        TRY(array_room((void **)&w->first, w->first_capacity, &w->first_capacity,
                       sizeof *w->first));
    while (w->items_capacity < n)
        TRY(array_room((void **)&w->items, w->items_capacity, &w->items_capacity,
                       sizeof *w->items));
    for (int64_t k = 0; k < rows; k++)
        place[k] = (int64_t)order_at(&permuted, (uint64_t)k);
    for (int64_t k = 0; k <= rows; k++)
        w->first[k] = 0;
    for (int64_t i = 0; i < n; i++)
        w->first[place[row_of[i]] + 1]++;
    for (int64_t k = 0; k < rows; k++)
        w->first[k + 1] += w->first[k];
    int64_t *next;
    TRY(arena_calloc(&p->scratch, (size_t)rows + 1, sizeof *next, (void **)&next));
    for (int64_t i = 0; i < n; i++) {
        int64_t row = place[row_of[i]];
        w->items[w->first[row] + next[row]++] = units[i];
    }
    w->n_rows = rows;
    return ST_OK;
}

/* Takes the window's share of every lane. The units are permuted once more if they come from
 * several lanes or from pieces, so that the sources mix within the window. */
static status take_units(plan *p, uint64_t epoch, uint64_t window, int64_t **out, int64_t *out_n)
{
    uint64_t n = 0, from, to;
    int64_t *units;
    for (int k = 0; k < p->n_lanes; k++) {
        mixture_lane_window(&p->lanes[k], epoch, p->n_windows, window, &from, &to);
        n += to - from;
    }
    TRY(arena_calloc(&p->scratch, n + 1, sizeof *units, (void **)&units));
    const bool mix = p->n_lanes > 1 || p->lanes[0].chunks;
    const order mixed = order_of_window(p->seed, epoch, window, n, mix && p->conf->data_shuffle);
    n = 0;
    for (int k = 0; k < p->n_lanes; k++) {
        mixture_lane_window(&p->lanes[k], epoch, p->n_windows, window, &from, &to);
        for (; from < to; from++) {
            uint64_t unit;
            TRY(mixture_lane_at(&p->lanes[k], p->seed, p->conf->data_shuffle, from, &unit));
            units[order_at(&mixed, n++)] = (int64_t)unit;
        }
    }
    *out = units;
    *out_n = (int64_t)n;
    return ST_OK;
}

static status make_window(plan *p, uint64_t global, window_plan *w)
{
    uint64_t epoch = global / p->n_windows, window = global % p->n_windows;
    int64_t *units, *row_of, n, rows;
    pack_item *items;
    TRY(take_units(p, epoch, window, &units, &n));
    rows = n;
    TRY(arena_calloc(&p->scratch, (size_t)n + 1, sizeof *row_of, (void **)&row_of));
    TRY(arena_calloc(&p->scratch, (size_t)n + 1, sizeof *items, (void **)&items));
    for (int64_t i = 0; i < n; i++) {
        items[i] = (pack_item){p->units[units[i]].tokens, p->units[units[i]].patches};
        row_of[i] = i;
    }
    if (p->conf->data_pack && p->conf->data_resolution_class)
        TRY(plan_pack_classes(p, items, units, n, row_of, &rows));
    else if (p->conf->data_pack)
        TRY(plan_pack_mixed(p, items, n, row_of, &rows));
    return fill_rows(p, w, epoch, window, units, row_of, n, rows);
}

/* Finds a place in the cache: a new one while the cache may grow, else that of the window that has
 * not been asked for the longest. */
static status find_place(plan *p, window_plan **out)
{
    if (p->n_cached < (int64_t)WINDOWS_EACH * p->walkers) {
        TRY(array_room((void **)&p->cache, p->n_cached, &p->cache_capacity, sizeof *p->cache));
        p->cache[p->n_cached] = (window_plan){0};
        *out = &p->cache[p->n_cached++];
        return ST_OK;
    }
    *out = &p->cache[0];
    for (int64_t k = 1; k < p->n_cached; k++)
        if (p->cache[k].used < (*out)->used)
            *out = &p->cache[k];
    return ST_OK;
}

status plan_window(plan *p, uint64_t global, const window_plan **out)
{
    window_plan *w;
    for (int64_t k = 0; k < p->n_cached; k++) {
        w = &p->cache[k];
        if (w->valid && w->global == global) {
            w->used = ++p->clock;
            *out = w;
            return ST_OK;
        }
    }
    TRY(find_place(p, &w));
    w->valid = false;
    w->used = 0;
    arena_mark mark = arena_save(&p->scratch);
    status st = make_window(p, global, w);
    arena_release(&p->scratch, mark);
    TRY(st);
    w->valid = true;
    w->global = global;
    w->used = ++p->clock;
    *out = w;
    return ST_OK;
}

void plan_walkers(plan *p, int n)
{
    p->walkers = n > 1 ? n : 1;
    for (; p->n_cached > (int64_t)WINDOWS_EACH * p->walkers; p->n_cached--) {
        window_plan *w = &p->cache[p->n_cached - 1];
        free(w->first);
        free(w->items);
    }
}
