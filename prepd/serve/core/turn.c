/* turn.c: what the dispatcher does in a turn of the loop, after the events that came. */
#include <stdlib.h>

#include "prepd/serve/core/dispatch_state.h"

static const int64_t TICK_NS = 100000000;
static const int64_t RATE_WINDOW_NS = 2000000000;

/* Every RATE_WINDOW_NS: measures the rates. */
static void measure(dispatch *state)
{
    serve_counts *counts = &state->counts;
    const int64_t passed = state->now_ns - counts->tick_ns;
    if (passed < RATE_WINDOW_NS)
        return;
    counts->rows_per_s = (double)(counts->rows - counts->rows_at_tick) * 1e9 / (double)passed;
    counts->samples_per_s =
        (double)(counts->samples - counts->samples_at_tick) * 1e9 / (double)passed;
    counts->rows_at_tick = counts->rows;
    counts->samples_at_tick = counts->samples;
    counts->tick_ns = state->now_ns;
    for (consumer_seat *consumer = state->consumer_seats; consumer; consumer = consumer->next) {
        consumer->rows_per_s =
            (double)(consumer->next_row - consumer->row_at_tick) * 1e9 / (double)passed;
        consumer->row_at_tick = consumer->next_row;
    }
    peer_limits_tell(&state->peer_limits, &state->outside);
}

/* What time alone demands, looked at every TICK_NS. */
static void tick_core(dispatch *state)
{
    if (state->now_ns - state->ticked_ns < TICK_NS)
        return;
    state->ticked_ns = state->now_ns;
    seats_check_time(state, state->now_ns);
    consumers_still_here(state, state->now_ns);
    local_tick(state, state->now_ns);
    supervisors_tick(state, state->now_ns);
    measure(state);
}

/* Whether no work is left. Rows that were made have been sent, as far as their consumers take them.
 * What waits for a decider where none can come is not waited for: its consumer gets it from the
 * next daemon. */
static bool is_drained(const dispatch *state)
{
    for (const worker_seat *worker = state->seats; worker; worker = worker->next)
        if (worker->work)
            return false;
    const lease *leased = state->book.lost;
    while (leased && lease_needs_decider(leased) && !decider_can_take(state, leased) &&
           !local_may_decide(state))
        leased = leased->next;
    return !leased;
}

void dispatch_turn(dispatch *state)
{
    local_hear_last_words(state);
    fingerprinting_tick(state);
    consumers_deliver(state);
    tick_core(state);
    planning_turn(state);
    consumers_greet(state);
    seats_schedule(state);
    if (state->draining &&
        (is_drained(state) || (state->drain_ns && state->now_ns > state->drain_ns))) {
        outside_info(&state->outside, "drained rows=%llu", (unsigned long long)state->counts.rows);
        state->stopping = true;
    }
}

void message_refused(dispatch *state, door at, const wire_peer *from, status st)
{
    state->peer_limits.reading = from;
    peer_limits_refuse(&state->peer_limits, &state->outside, at, from, "message", st);
    state->peer_limits.reading = NULL;
}

void dispatch_at(dispatch *state, int64_t now_ns)
{
    if (now_ns > state->now_ns)
        state->now_ns = now_ns;
}
