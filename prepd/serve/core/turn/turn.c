/* SPDX-License-Identifier: Apache-2.0 */
/* turn.c: how a dispatcher begins and ends, what happens once a data section is open, and what the
 * dispatcher does in a turn of the loop, after the events that came. */
#include <stdio.h>
#include <stdlib.h>

#include "prepd/serve/core/rows/core_rows.h"
#include "prepd/serve/core/consumers/core_consumers.h"
#include "prepd/serve/core/workers/core_workers.h"
#include "prepd/serve/core/decisions/core_decisions.h"

enum {
    SCRATCH_BYTES = 1 << 30, /* for texts and plan of one lease; a bound, not a reservation */
    DRAIN_S = 20,            /* time that draining has after a signal */
};

status dispatch_new(conf *options, const daemon_place *place, const outside *world, int64_t now_ns,
                    dispatch **out)
{
    dispatch *state = (dispatch *)calloc(1, sizeof *state);
    if (!state)
        return FAIL(ST_NO_MEMORY, "no memory for the dispatcher");
    *state = (dispatch){.outside = *world, .options = options, .place = *place, .now_ns = now_ns};
    state->train = (source){.of = state, .name = "train"};
    state->eval = (source){.of = state, .name = "eval"};
    state->started_ns = state->counts.tick_ns = now_ns;
    lease_book_init(&state->book, (int)options->prepd_solo_deaths);
    arena_init(&state->scratch, SCRATCH_BYTES);
    *out = state;
    return ST_OK;
}

status dispatch_open(dispatch *state)
{
    TRY(section_want(state, &state->train));
    return fingerprinting_start(state); /* runs meanwhile */
}

status dispatch_begin(dispatch *state)
{
    TRY(dispatch_make_terms(state));
    local_follow_options(state);
    local_tick(state, state->now_ns);
    return ST_OK;
}

void signal_came(dispatch *state, signal_kind kind, const char *name)
{
    state->stop_now |= state->signalled;
    state->signalled = true;
    if (kind == SIGNAL_DRAIN && !state->draining && !state->stop_now) {
        state->draining = true;
        state->drain_ns = state->now_ns + (int64_t)DRAIN_S * 1000000000;
    } else {
        state->stopping = true;
    }
    core_info(state, "%s signal=%s",
              state->stop_now   ? "stopping at once"
              : state->stopping ? "stopping; another signal stops at once"
                                : "draining what is in work; another signal stops at once",
              name);
}

void options_again(dispatch *state, const conf *now)
{
    conf *options = state->options;
    const bool new_terms = options->prepd_sample_timeout != now->prepd_sample_timeout ||
                           options->prepd_worker_bytes != now->prepd_worker_bytes;
    options->prepd_sample_timeout = now->prepd_sample_timeout;
    options->prepd_solo_deaths = now->prepd_solo_deaths;
    options->prepd_buffer_bytes = now->prepd_buffer_bytes;
    options->prepd_worker_bytes = now->prepd_worker_bytes;
    options->data_quarantine_limit = now->data_quarantine_limit;
    options->log_level = now->log_level;
    state->book.solo_limit = (int)now->prepd_solo_deaths;
    if (options->prepd_workers != now->prepd_workers) {
        options->prepd_workers = now->prepd_workers;
        local_follow_options(state);
    }
    if (new_terms && dispatch_new_terms(state) != ST_OK)
        core_warn(state, "workers keep the limits they had: %s", status_text());
}

void trust_again(dispatch *state, bool trusted)
{
    state->place.trusted = trusted;
}

void dispatch_stop(dispatch *state)
{
    char why[STATUS_MESSAGE_MAX];
    state->stopping = true;
    snprintf(why, sizeof(why), "the daemon stops%s%s", state->outcome != ST_OK ? ": " : "",
             state->outcome != ST_OK ? state->cause.message : "");
    while (state->consumer_seats)
        consumer_close(state, state->consumer_seats, why);
    /* Remote workers wait for a daemon to come back, unless an operator drained this one for good.
     */
    const bool for_good = state->draining && state->drain_ns == 0;
    supervisors_leave(state, for_good);
    while (state->seats) {
        worker_seat *worker = state->seats;
        lease_free(&worker->work);
        lease_free(&worker->ahead);
        seat_retire(state, worker, !worker->local && !for_good);
    }
    if (state->maker.pid)
        state->outside.end_process(state->outside.shell, state->maker.pid, true);
    local_leave(state);
}

bool dispatch_stopped(dispatch *state)
{
    return local_has_left(state);
}

void dispatch_free(dispatch **out)
{
    dispatch *state = *out;
    if (!state)
        return;
    for (lease *leased = state->book.lost, *next; leased; leased = next) {
        next = leased->next;
        lease_free(&leased);
    }
    state->outside.close_section(state->outside.shell, &state->train);
    state->outside.close_section(state->outside.shell, &state->eval);
    free(state->terms);
    arena_done(&state->scratch);
    accounts_free(&state->accounts);
    if (state->train.opening || state->eval.opening)
        return; /* a thread that hangs still reads it */
    free(state);
    *out = NULL;
}

/* --- sections --- */

/* The files are open: makes the section ready, or begins to build its index. */
static status begin_section(dispatch *state, source *section)
{
    section->opened = true;
    if (!state->videos && section->data->adapter->videos &&
        section->data->adapter->videos(section->data)) {
        state->videos = true; /* workers get these TERMS before any lease with a video */
        const status st = dispatch_new_terms(state);
        if (st != ST_OK) {
            state->videos = false;
            return st;
        }
        for (worker_seat *worker = state->seats; worker; worker = worker->next)
            worker->proved = false; /* it gets no work before it has started anew */
    }
    section->ready = section->index != NULL;
    return section->ready ? ST_OK : index_build_start(section);
}

void section_opened(dispatch *state, source *section, status st)
{
    if (st == ST_OK)
        st = begin_section(state, section);
    if (st == ST_OK)
        return;
    const status_note why = *status_last();
    consumers_refuse(state, section, st);
    state->outside.close_section(state->outside.shell, section);
    status_set(&why);
    if (section == &state->train)
        dispatch_fail(state, st);
    else
        core_debug(state, "held-out data: %s", status_text()); /* who waited was told */
}

/* --- a turn --- */

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
    peer_limits_log(&state->peer_limits, &state->outside);
}

/* What time alone demands, looked at every TICK_NS. */
static void tick_core(dispatch *state)
{
    if (state->now_ns - state->ticked_ns < TICK_NS)
        return;
    state->ticked_ns = state->now_ns;
    seats_check_time(state, state->now_ns);
    consumers_drop_dead(state, state->now_ns);
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
    local_reap(state);
    fingerprinting_tick(state);
    consumers_deliver(state);
    tick_core(state);
    planning_turn(state);
    consumers_greet(state);
    seats_schedule(state);
    if (state->draining &&
        (is_drained(state) || (state->drain_ns && state->now_ns > state->drain_ns))) {
        core_info(state, "drained rows=%llu", (unsigned long long)state->counts.rows);
        state->stopping = true;
    }
}

void dispatch_at(dispatch *state, int64_t now_ns)
{
    if (now_ns > state->now_ns)
        state->now_ns = now_ns;
}
