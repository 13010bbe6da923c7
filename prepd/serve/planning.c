/* planning.c: makes plans in slices, between the loop's other work.
 *
 * All consumers of a kind of stream share one plan, which depends on the index, the options and the
 * seed alone. What a consumer brings along (row, rank, quarantine list) stays in its consumer_seat.
 */
#include "common/base/clock.h"
#include "common/program/log.h"
#include "prepd/serve/dispatch_state.h"

/* Time for plans in a turn of the loop, short enough that no peer notices. One piece (a window of
 * data.window units) is always done. */
static const int64_t SLICE_NS = 10000000;

void planning_turn(dispatch *state)
{
    state->slice_end_ns = clock_ns() + SLICE_NS;
    state->plans_wait = false;
}

status planning_row(dispatch *state, consumer_seat *consumer, uint64_t row, bool *out_ready)
{
    const int64_t began_ns = clock_ns();
    const status st =
        plan_prepare(consumer->plan, consumer->from, row, state->slice_end_ns, out_ready);
    consumer->src->plans[consumer->kind].spent_ns += clock_ns() - began_ns;
    TRY(st);
    state->plans_wait |= !*out_ready;
    return ST_OK;
}

status planning_want(consumer_seat *consumer)
{
    source *src = consumer->src;
    shared_plan *shared = &src->plans[consumer->kind];
    if (shared->failed.code != ST_OK) {
        status_set(&shared->failed);
        return shared->failed.code;
    }
    if (!shared->plan)
        TRY(plan_begin(&src->options, src->data, src->index, consumer->kind, &shared->plan));
    if (!consumer->plan) {
        consumer->plan = shared->plan;
        plan_walkers(shared->plan, ++shared->walkers);
    }
    return ST_OK;
}

status planning_ready(dispatch *state, consumer_seat *consumer, bool *out_ready)
{
    const status st = planning_row(state, consumer, consumer->rows_later ? 0 : PLAN_ALL, out_ready);
    if (st != ST_OK)
        consumer->src->plans[consumer->kind].failed = *status_last();
    return st;
}

void planning_leave(consumer_seat *consumer)
{
    if (!consumer->plan)
        return;
    shared_plan *shared = &consumer->src->plans[consumer->kind];
    plan_leave(shared->plan, &consumer->from);
    plan_walkers(shared->plan, --shared->walkers);
    consumer->plan = NULL;
    if (shared->walkers == 0 && shared->failed.code != ST_OK) {
        plan_free(
            &shared->plan); /* a failed plan is of no use; the next consumer begins a new one */
        *shared = (shared_plan){0};
    }
}
