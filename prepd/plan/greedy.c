/* greedy.c: how many rows the usual packer would make of the same units, for comparison in the
 * report. That packer keeps a buffer of the next samples, from which a row takes, in order,
 * whatever still fits. */
#include <stdlib.h>
#include <string.h>

#include "prepd/plan/report.h"

enum { BUFFER = GREEDY_BUFFER };

typedef struct greedy {
    plan *planned;
    uint64_t next, count; /* units read so far, and units of the epoch; lane after lane */
    int lane;
    uint64_t position;
    int64_t held[BUFFER];
    int n_held;
} greedy;

static status refill(greedy *g)
{
    plan *p = g->planned;
    while (g->n_held < BUFFER && g->next < g->count) {
        uint64_t unit;
        while (g->position == p->lanes[g->lane].per_epoch) {
            g->lane++;
            g->position = 0;
        }
        TRY(mixture_lane_at(&p->lanes[g->lane], p->seed, p->conf->data_shuffle, g->position++,
                            &unit));
        g->held[g->n_held++] = (int64_t)unit;
        g->next++;
    }
    return ST_OK;
}

/* Moves what fits from the buffer into the row, whose room is *tokens and *patches. True if
 * anything did fit. */
static bool take_fitting(greedy *g, int64_t *tokens, int64_t *patches)
{
    int kept = 0;
    for (int k = 0; k < g->n_held; k++) {
        const plan_unit *u = &g->planned->units[g->held[k]];
        if (u->tokens <= *tokens && u->patches <= *patches) {
            *tokens -= u->tokens;
            *patches -= u->patches;
        } else {
            g->held[kept++] = g->held[k];
        }
    }
    const bool any = kept < g->n_held;
    g->n_held = kept;
    return any;
}

status plan_greedy_rows(plan *p, int64_t *out_rows)
{
    greedy g = {.planned = p, .count = p->epoch_units};
    int64_t rows = 0;
    TRY(refill(&g));
    while (g.n_held > 0) {
        int64_t tokens = p->token_budget, patches = p->patch_budget;
        while (take_fitting(&g, &tokens, &patches))
            TRY(refill(&g));
        rows++;
    }
    *out_rows = rows;
    return ST_OK;
}
