/* dispatch.c: the daemon's start, its loop and its end.
 *
 * A turn of the loop waits for sockets, signals and the metrics port, handles what has come
 * (workers first, since they bring what consumers wait for), does what time demands, plans for a
 * few milliseconds, and gives work to idle workers. Nothing in a turn may wait for a
 * peer. */
#include "prepd/serve/dispatch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/bar.h"
#include "common/program/log.h"
#include "common/base/proc.h"
#include "prepd/serve/hello.h"
#include "prepd/serve/notify.h"
#include "prepd/serve/dispatch_state.h"

enum {
    TICK_MS = 100,
    OPENING_MS = 5,
    SCRATCH_BYTES = 1 << 30, /* for texts and plan of one lease; a bound, not a reservation */
};
static const int64_t RATE_WINDOW_NS = 2000000000;

/* These limits keep a peer from making the dispatcher's memory grow. A peer that has more under way
 * than its longest message is cut off. What a peer does not take stays in its slots (rows) or is
 * not sent. A peer whose messages are refused again and again is no longer listened to
 * (peer_limits.h). The limits of consumers are in hello.c. The largest that a worker sends after it
 * has joined is the rows of its two leases (added below; patches of clips take twice the bytes of a
 * picture's) or what it tells of a text of ten million tokens. */
static const wire_limits worker_limits = {
    .part_bytes = 256 << 20, .unsent = 64, .unread_bytes = 1 << 20, .all_unread_bytes = 4 << 20};
static const wire_limits control_limits = {
    .part_bytes = 1 << 16, .unsent = 16, .unread_bytes = 1 << 20, .all_unread_bytes = 4 << 20};

/* Raises the limit of open descriptors to what the system allows, since every connection is one. */
static void raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        log_debug("descriptor limit stays: %s", strerror(errno));
}

/* Takes over a section that its thread has opened. After a failure the consumers that wait for it
 * are refused, and the section may be wanted again. */
static status advance_source(dispatch *state, source *section)
{
    const status st = source_advance(state, section);
    if (st == ST_OK)
        return ST_OK;
    const status_note why = *status_last();
    consumers_refuse(state, section, st);
    source_done(section);
    status_set(&why);
    return st;
}

/* Opens the training data and waits for it. Reading a large data set takes time and its file system
 * may hang, so signals are handled meanwhile. If another prepd builds the index, the wait for that
 * happens in the loop instead. */
static status open_train(dispatch *state)
{
    TRY(source_want(state, &state->train));
    TRY(fingerprint_process_start(state)); /* runs meanwhile */
    while (state->train.opening && !source_waits_for(&state->train) && !state->stopping &&
           !state->draining) {
        wire_wait signals = {.fd = state->signal_fd};
        TRY(wire_poll(&signals, 1, OPENING_MS));
        dispatch_signals(state);
        TRY(advance_source(state, &state->train));
    }
    state->stopping |= state->draining;
    return ST_OK;
}

/* Checks one of the two endpoints that the daemon derives from the user's. With tcp these are the
 * next two ports, which the message must say, since the user wrote neither. */
static status may_bind_beside(const dispatch *state, const char *whose, const char *beside)
{
    const status st = wire_may_bind(state->net, beside);
    return st == ST_OK || wire_is_ipc(beside)
               ? st
               : status_context(st, "the %s port of %s", whose, state->options->prepd_endpoint);
}

/* Checks that every address can be listened on, before anything does listen. */
static status may_listen(dispatch *state)
{
    state->io = io_threads_of(state->options, proc_cpus());
    TRY(wire_new(&state->net));
    TRY(wire_io_threads(state->net, state->io.n_threads));
    if (state->options->prepd_keys[0] && !wire_is_ipc(state->options->prepd_endpoint))
        TRY(wire_serve_keys(state->net, state->options->prepd_keys));
    TRY(wire_may_bind(state->net, state->options->prepd_endpoint));
    TRY(may_bind_beside(state, "workers'", state->workers_endpoint));
    TRY(may_bind_beside(state, "control", state->control_endpoint));
    if (state->options->metrics_listen[0])
        TRY(http_open(state->options->metrics_listen, metrics_answer, state, &state->metrics));
    http_close(&state->metrics);
    return ST_OK;
}

static status start_dispatch(dispatch *state)
{
    if (gethostname(state->host, sizeof(state->host) - 1) != 0)
        snprintf(state->host, sizeof(state->host), "localhost");
    raise_descriptors();
    TRY(proc_signal_fd(&state->signal_fd));
    TRY(wire_beside(state->options->prepd_endpoint, 1, &state->workers_endpoint));
    TRY(wire_beside(state->options->prepd_endpoint, 2, &state->control_endpoint));
    TRY(may_listen(
        state)); /* an address that cannot be used is told before data is read for minutes */
    /* The data is opened before there is a socket: a consumer that sees a socket waits for the
     * daemon, and would wait in vain if the data cannot be opened. */
    TRY(open_train(state));
    if (state->stopping)
        return ST_OK;
    TRY(dispatch_make_terms(state));
    if (state->options->metrics_listen[0])
        TRY(http_open(state->options->metrics_listen, metrics_answer, state, &state->metrics));
    wire_limits from_consumer = consumer_limits, from_worker = worker_limits;
    from_consumer.io_threads = state->io.consumers;
    TRY(wire_bind(state->net, state->options->prepd_endpoint, &from_consumer, &state->consumers));
    from_worker.io_threads = state->io.workers;
    from_worker.part_bytes += 2 * consumer_row_bytes(state->options);
    from_worker.known_bytes = 2 * from_worker.part_bytes;
    TRY(wire_bind(state->net, state->workers_endpoint, &from_worker, &state->workers));
    TRY(wire_bind(state->net, state->control_endpoint, &control_limits, &state->control));
    return local_start(state);
}

static void from_consumer(void *context, const wire_peer *from, wire_msg *message)
{
    consumer_message(context, from, message);
}

static void from_control(void *context, const wire_peer *from, wire_msg *message)
{
    control_message(context, from, message);
}

/* The consumer of the train stream that has come furthest; NULL if there is none. */
static const consumer_seat *leading(const dispatch *state)
{
    const consumer_seat *first = NULL;
    for (const consumer_seat *consumer = state->consumer_seats; consumer; consumer = consumer->next)
        if (consumer->welcomed && consumer->src == &state->train &&
            (!first || consumer->next_row > first->next_row))
            first = consumer;
    return first;
}

static void tell_service_manager(const dispatch *state)
{
    char line[256], place[64] = "no consumer";
    const serve_counts *counts = &state->counts;
    const consumer_seat *consumer = leading(state);
    if (source_waits_for(&state->train)) {
        snprintf(line, sizeof(line), "STATUS=waiting for the index, which %s builds\n",
                 source_waits_for(&state->train));
    } else if (state->train.build.active) {
        snprintf(line, sizeof(line), "STATUS=building the index, %lld records to go\n",
                 (long long)state->train.build.left);
    } else {
        if (consumer) {
            const stream_place now_at = consumer_place(consumer);
            snprintf(place, sizeof(place), "epoch %lld %.0f%%", (long long)now_at.epoch,
                     100 * now_at.share);
        }
        snprintf(line, sizeof(line),
                 "STATUS=%s, %llu rows, %.1f samples/s, %d workers, %lld quarantined\n", place,
                 (unsigned long long)counts->rows, counts->samples_per_s, state->n_seats,
                 (long long)(state->train.bad.n_entries + state->eval.bad.n_entries));
    }
    notify_try(line);
}

/* Shows on a terminal how far the epoch is and how long it still takes. */
static void show_progress(dispatch *state)
{
    const consumer_seat *consumer = leading(state);
    if (state->train.build.active || state->eval.build.active)
        return; /* index_build.c has the bar */
    if (!consumer) {
        bar_clear();
        return;
    }
    const stream_place place = consumer_place(consumer);
    bar_draw(place.share, place.seconds_left, "epoch %lld, %.0f %%, %.1f samples/s%s",
             (long long)place.epoch, 100 * place.share, state->counts.samples_per_s,
             place.seconds_left < 0 ? ", waiting" : "");
}

/* Every RATE_WINDOW_NS: measures the rates, and tells them to the service manager and the terminal.
 */
static void measure(dispatch *state, int64_t now)
{
    serve_counts *counts = &state->counts;
    int64_t passed = now - counts->tick_ns;
    if (passed < RATE_WINDOW_NS)
        return;
    counts->rows_per_s = (double)(counts->rows - counts->rows_at_tick) * 1e9 / (double)passed;
    counts->samples_per_s =
        (double)(counts->samples - counts->samples_at_tick) * 1e9 / (double)passed;
    counts->rows_at_tick = counts->rows;
    counts->samples_at_tick = counts->samples;
    counts->tick_ns = now;
    for (consumer_seat *consumer = state->consumer_seats; consumer; consumer = consumer->next) {
        consumer->rows_per_s =
            (double)(consumer->next_row - consumer->row_at_tick) * 1e9 / (double)passed;
        consumer->row_at_tick = consumer->next_row;
    }
    wire_socket *const sockets[] = {state->consumers, state->workers, state->control};
    peer_limits_tell(&state->peer_limits, state->net, sockets, sizeof(sockets) / sizeof(*sockets));
    tell_service_manager(state);
    show_progress(state);
}

void dispatch_watchdog(dispatch *state, int64_t now)
{
    int64_t watchdog = notify_watchdog_ns();
    if (watchdog && now - state->watchdog_ns >= watchdog / 2 && !metrics_unhealthy(state, now)) {
        notify_try("WATCHDOG=1\n");
        state->watchdog_ns = now;
    }
}

static void tick_dispatch(dispatch *state)
{
    int64_t now = clock_ns();
    if (now - state->ticked_ns < (int64_t)TICK_MS * 1000000)
        return;
    state->ticked_ns = now;
    dispatch_watchdog(state, now);
    seats_check_time(state, now);
    consumers_still_here(state, now);
    local_tick(state, now);
    supervisors_tick(state, now);
    if (state->train.build.active)
        index_build_progress(state, &state->train);
    if (state->eval.build.active)
        index_build_progress(state, &state->eval);
    measure(state, now);
}

/* Whether no work is left. Rows that were made have been sent, as far as their
 * consumers take them. Index records that wait to be confirmed are not waited for, since the
 * workers that could confirm them may have left. */
static bool is_drained(const dispatch *state)
{
    for (const worker_seat *worker = state->seats; worker; worker = worker->next)
        if (worker->work)
            return false;
    const lease *leased = state->book.lost;
    while (leased && leased->n_claims > 0)
        leased = leased->next;
    return !leased;
}

static status serve_sockets(dispatch *state)
{
    while (!state->stopping) {
        wire_wait wait[] = {{.socket = state->workers},
                            {.socket = state->consumers},
                            {.socket = state->control},
                            {.fd = state->signal_fd},
                            {.fd = state->maker.pid ? state->maker.fd : -1},
                            {.fd = http_fd(state->metrics)}};
        TRY(wire_poll(wait, sizeof(wait) / sizeof(*wait), state->plans_wait ? 0 : TICK_MS));
        const int64_t turn_ns = clock_ns();
        if (wait[3].ready)
            dispatch_signals(state);
        TRY(seats_read(state));
        local_reap(state);
        fingerprint_process_read(state);
        TRY(peer_limits_read(&state->peer_limits, state->consumers, from_consumer, state));
        TRY(peer_limits_read(&state->peer_limits, state->control, from_control, state));
        consumers_deliver(state);
        tick_dispatch(state);
        const status opened = advance_source(state, &state->train);
        if (opened != ST_OK)
            dispatch_fail(state, opened);
        if (advance_source(state, &state->eval) != ST_OK)
            log_debug("held-out data: %s", status_text()); /* the consumers that waited were told */
        planning_turn(state);
        consumers_greet(state);
        seats_schedule(state);
        if (state->reload) {
            state->reload = false;
            dispatch_reload(state);
        }
        http_run(state->metrics);
        if (state->draining &&
            (is_drained(state) || (state->drain_ns && clock_ns() > state->drain_ns))) {
            log_info("drained rows=%llu", (unsigned long long)state->counts.rows);
            state->stopping = true;
        }
        const int64_t took_ns = clock_ns() - turn_ns;
        if (took_ns > state->counts.longest_turn_ns)
            state->counts.longest_turn_ns = took_ns;
    }
    return ST_OK;
}

static void stop(dispatch *state)
{
    char why[STATUS_MESSAGE_MAX];
    notify_send("STOPPING=1\n");
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
    fingerprint_process_stop(state);
    local_stop(state);
    while (state->book.lost) {
        lease *leased = lease_book_take(&state->book, true);
        lease_free(&leased);
    }
    http_close(&state->metrics);
    wire_close(&state->consumers);
    wire_close(&state->workers);
    wire_close(&state->control);
    wire_free(&state->net);
    source_done(&state->train);
    source_done(&state->eval);
    if (state->signal_fd >= 0)
        close(state->signal_fd);
    free(state->workers_endpoint);
    free(state->control_endpoint);
    free(state->terms);
    arena_done(&state->scratch);
}

status dispatch_run(conf *options, char *const *args, int n_args, bool for_command)
{
    dispatch *state = calloc(1, sizeof(*state));
    if (!state)
        return FAIL(ST_NO_MEMORY, "no memory for the dispatcher");
    *state = (dispatch){.options = options,
                        .args = args,
                        .n_args = n_args,
                        .for_command = for_command,
                        .build = prepd_build,
                        .signal_fd = -1};
    state->train.name = "train";
    state->eval.name = "eval";
    state->started_ns = state->counts.tick_ns = clock_ns();
    lease_book_init(&state->book, (int)options->prepd_solo_deaths);
    arena_init(&state->scratch, SCRATCH_BYTES);
    status st = start_dispatch(state);
    if (st == ST_OK && !state->stopping) {
        log_info("serving endpoint=%s workers=%d", options->prepd_endpoint, state->local.target);
        notify_send("READY=1\n");
        st = serve_sockets(state);
    }
    if (st != ST_OK)
        dispatch_fail(state, st);
    stop(state);
    st = state->outcome;
    if (st != ST_OK)
        status_set(&state->cause);
    if (!state->train.opening &&
        !state->eval.opening) /* otherwise a thread that hangs still reads it */
        free(state);
    return st;
}
