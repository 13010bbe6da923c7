/* life.c: how a dispatcher begins and ends. */
#include <stdio.h>
#include <stdlib.h>

#include "prepd/serve/core/dispatch_state.h"

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
    outside_info(&state->outside, "%s signal=%s",
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
        outside_warn(&state->outside, "workers keep the limits they had: %s", status_text());
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
    /* Remote workers wait for a daemon to come back,
     * unless an operator drained this one for good. */
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
