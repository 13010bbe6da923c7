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

static status refill(greedy *state)
{
    plan *planned = state->planned;
    while (state->n_held < BUFFER && state->next < state->count) {
        uint64_t unit;
        while (state->position == planned->lanes[state->lane].per_epoch) {
            state->lane++;
            state->position = 0;
        }
        TRY(mixture_lane_at(&planned->lanes[state->lane], planned->seed,
                            planned->conf->data_shuffle, state->position++, &unit));
        state->held[state->n_held++] = (int64_t)unit;
        state->next++;
    }
    return ST_OK;
}

/* Moves what fits from the buffer into the row, whose room is *tokens and *patches. True if
 * anything did fit. */
static bool take_fitting(greedy *state, int64_t *tokens, int64_t *patches)
{
    int kept = 0;
    for (int k = 0; k < state->n_held; k++) {
        const plan_unit *one = &state->planned->units[state->held[k]];
        if (one->tokens <= *tokens && one->patches <= *patches) {
            *tokens -= one->tokens;
            *patches -= one->patches;
        } else {
            state->held[kept++] = state->held[k];
        }
    }
    const bool any = kept < state->n_held;
    state->n_held = kept;
    return any;
}

status plan_greedy_rows(plan *planned, int64_t *out_rows)
{
    greedy state = {.planned = planned, .count = planned->epoch_units};
    int64_t rows = 0;
    TRY(refill(&state));
    while (state.n_held > 0) {
        int64_t tokens = planned->token_budget, patches = planned->patch_budget;
        while (take_fitting(&state, &tokens, &patches))
            TRY(refill(&state));
        rows++;
    }
    *out_rows = rows;
    return ST_OK;
}
