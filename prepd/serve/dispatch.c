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
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur == r.rlim_max)
        return;
    r.rlim_cur = r.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &r) != 0)
        log_debug("descriptor limit stays: %s", strerror(errno));
}

/* Takes over a section that its thread has opened. After a failure the consumers that wait for it
 * are refused, and the section may be wanted again. */
static status advance_source(dispatch *d, source *section)
{
    const status st = source_advance(d, section);
    if (st == ST_OK)
        return ST_OK;
    const status_note why = *status_last();
    consumers_refuse(d, section, st);
    source_done(section);
    status_set(&why);
    return st;
}

/* Opens the training data and waits for it. Reading a large data set takes time and its file system
 * may hang, so signals are handled meanwhile. If another prepd builds the index, the wait for that
 * happens in the loop instead. */
static status open_train(dispatch *d)
{
    TRY(source_want(d, &d->train));
    TRY(fingerprint_process_start(d)); /* runs meanwhile */
    while (d->train.opening && !source_waits_for(&d->train) && !d->stopping && !d->draining) {
        wire_wait signals = {.fd = d->signal_fd};
        TRY(wire_poll(&signals, 1, OPENING_MS));
        dispatch_signals(d);
        TRY(advance_source(d, &d->train));
    }
    d->stopping |= d->draining;
    return ST_OK;
}

/* Checks one of the two endpoints that the daemon derives from the user's. With tcp these are the
 * next two ports, which the message must say, since the user wrote neither. */
static status may_bind_beside(const dispatch *d, const char *whose, const char *beside)
{
    const status st = wire_may_bind(d->net, beside);
    return st == ST_OK || wire_is_ipc(beside)
               ? st
               : status_context(st, "the %s port of %s", whose, d->options->prepd_endpoint);
}

/* Checks that every address can be listened on, before anything does listen. */
static status may_listen(dispatch *d)
{
    d->io = io_threads_of(d->options, proc_cpus());
    TRY(wire_new(&d->net));
    TRY(wire_io_threads(d->net, d->io.n_threads));
    if (d->options->prepd_keys[0] && !wire_is_ipc(d->options->prepd_endpoint))
        TRY(wire_serve_keys(d->net, d->options->prepd_keys));
    TRY(wire_may_bind(d->net, d->options->prepd_endpoint));
    TRY(may_bind_beside(d, "workers'", d->workers_endpoint));
    TRY(may_bind_beside(d, "control", d->control_endpoint));
    if (d->options->metrics_listen[0])
        TRY(http_open(d->options->metrics_listen, metrics_answer, d, &d->metrics));
    http_close(&d->metrics);
    return ST_OK;
}

static status start_dispatch(dispatch *d)
{
    if (gethostname(d->host, sizeof(d->host) - 1) != 0)
        snprintf(d->host, sizeof(d->host), "localhost");
    raise_descriptors();
    TRY(proc_signal_fd(&d->signal_fd));
    TRY(wire_beside(d->options->prepd_endpoint, 1, &d->workers_endpoint));
    TRY(wire_beside(d->options->prepd_endpoint, 2, &d->control_endpoint));
    TRY(may_listen(d)); /* an address that cannot be used is told before data is read for minutes */
    /* The data is opened before there is a socket: a consumer that sees a socket waits for the
     * daemon, and would wait in vain if the data cannot be opened. */
    TRY(open_train(d));
    if (d->stopping)
        return ST_OK;
    TRY(dispatch_make_terms(d));
    if (d->options->metrics_listen[0])
        TRY(http_open(d->options->metrics_listen, metrics_answer, d, &d->metrics));
    wire_limits from_consumer = consumer_limits, from_worker = worker_limits;
    from_consumer.io_threads = d->io.consumers;
    TRY(wire_bind(d->net, d->options->prepd_endpoint, &from_consumer, &d->consumers));
    from_worker.io_threads = d->io.workers;
    from_worker.part_bytes += 2 * consumer_row_bytes(d->options);
    from_worker.known_bytes = 2 * from_worker.part_bytes;
    TRY(wire_bind(d->net, d->workers_endpoint, &from_worker, &d->workers));
    TRY(wire_bind(d->net, d->control_endpoint, &control_limits, &d->control));
    return local_start(d);
}

static void from_consumer(void *d, const wire_peer *from, wire_msg *message)
{
    consumer_message(d, from, message);
}

static void from_control(void *d, const wire_peer *from, wire_msg *message)
{
    control_message(d, from, message);
}

/* The consumer of the train stream that has come furthest; NULL if there is none. */
static const consumer_seat *leading(const dispatch *d)
{
    const consumer_seat *first = NULL;
    for (const consumer_seat *consumer = d->consumer_seats; consumer; consumer = consumer->next)
        if (consumer->welcomed && consumer->src == &d->train &&
            (!first || consumer->next_row > first->next_row))
            first = consumer;
    return first;
}

static void tell_service_manager(const dispatch *d)
{
    char line[256], place[64] = "no consumer";
    const serve_counts *k = &d->counts;
    const consumer_seat *consumer = leading(d);
    if (source_waits_for(&d->train)) {
        snprintf(line, sizeof(line), "STATUS=waiting for the index, which %s builds\n",
                 source_waits_for(&d->train));
    } else if (d->train.build.active) {
        snprintf(line, sizeof(line), "STATUS=building the index, %lld records to go\n",
                 (long long)d->train.build.left);
    } else {
        if (consumer) {
            const stream_place p = consumer_place(consumer);
            snprintf(place, sizeof(place), "epoch %lld %.0f%%", (long long)p.epoch, 100 * p.share);
        }
        snprintf(line, sizeof(line),
                 "STATUS=%s, %llu rows, %.1f samples/s, %d workers, %lld quarantined\n", place,
                 (unsigned long long)k->rows, k->samples_per_s, d->n_seats,
                 (long long)(d->train.bad.n_entries + d->eval.bad.n_entries));
    }
    notify_try(line);
}

/* Shows on a terminal how far the epoch is and how long it still takes. */
static void show_progress(dispatch *d)
{
    const consumer_seat *consumer = leading(d);
    if (d->train.build.active || d->eval.build.active)
        return; /* index_build.c has the bar */
    if (!consumer) {
        bar_clear();
        return;
    }
    const stream_place p = consumer_place(consumer);
    bar_draw(p.share, p.seconds_left, "epoch %lld, %.0f %%, %.1f samples/s%s", (long long)p.epoch,
             100 * p.share, d->counts.samples_per_s, p.seconds_left < 0 ? ", waiting" : "");
}

/* Every RATE_WINDOW_NS: measures the rates, and tells them to the service manager and the terminal.
 */
static void measure(dispatch *d, int64_t now)
{
    serve_counts *k = &d->counts;
    int64_t passed = now - k->tick_ns;
    if (passed < RATE_WINDOW_NS)
        return;
    k->rows_per_s = (double)(k->rows - k->rows_at_tick) * 1e9 / (double)passed;
    k->samples_per_s = (double)(k->samples - k->samples_at_tick) * 1e9 / (double)passed;
    k->rows_at_tick = k->rows;
    k->samples_at_tick = k->samples;
    k->tick_ns = now;
    for (consumer_seat *consumer = d->consumer_seats; consumer; consumer = consumer->next) {
        consumer->rows_per_s =
            (double)(consumer->next_row - consumer->row_at_tick) * 1e9 / (double)passed;
        consumer->row_at_tick = consumer->next_row;
    }
    wire_socket *const sockets[] = {d->consumers, d->workers, d->control};
    peer_limits_tell(&d->peer_limits, d->net, sockets, sizeof(sockets) / sizeof(*sockets));
    tell_service_manager(d);
    show_progress(d);
}

void dispatch_watchdog(dispatch *d, int64_t now)
{
    int64_t watchdog = notify_watchdog_ns();
    if (watchdog && now - d->watchdog_ns >= watchdog / 2 && !metrics_unhealthy(d, now)) {
        notify_try("WATCHDOG=1\n");
        d->watchdog_ns = now;
    }
}

static void tick_dispatch(dispatch *d)
{
    int64_t now = clock_ns();
    if (now - d->ticked_ns < (int64_t)TICK_MS * 1000000)
        return;
    d->ticked_ns = now;
    dispatch_watchdog(d, now);
    seats_check_time(d, now);
    consumers_still_here(d, now);
    local_tick(d, now);
    supervisors_tick(d, now);
    if (d->train.build.active)
        index_build_progress(d, &d->train);
    if (d->eval.build.active)
        index_build_progress(d, &d->eval);
    measure(d, now);
}

/* Whether no work is left. Rows that were made have been sent, as far as their
 * consumers take them. Index records that wait to be confirmed are not waited for, since the
 * workers that could confirm them may have left. */
static bool is_drained(const dispatch *d)
{
    for (const worker_seat *worker = d->seats; worker; worker = worker->next)
        if (worker->work)
            return false;
    const lease *l = d->book.lost;
    while (l && l->n_claims > 0)
        l = l->next;
    return !l;
}

static status serve_sockets(dispatch *d)
{
    while (!d->stopping) {
        wire_wait wait[] = {{.socket = d->workers},
                            {.socket = d->consumers},
                            {.socket = d->control},
                            {.fd = d->signal_fd},
                            {.fd = d->maker.pid ? d->maker.fd : -1},
                            {.fd = http_fd(d->metrics)}};
        TRY(wire_poll(wait, sizeof(wait) / sizeof(*wait), d->plans_wait ? 0 : TICK_MS));
        const int64_t turn_ns = clock_ns();
        if (wait[3].ready)
            dispatch_signals(d);
        TRY(seats_read(d));
        local_reap(d);
        fingerprint_process_read(d);
        TRY(peer_limits_read(&d->peer_limits, d->consumers, from_consumer, d));
        TRY(peer_limits_read(&d->peer_limits, d->control, from_control, d));
        consumers_deliver(d);
        tick_dispatch(d);
        const status opened = advance_source(d, &d->train);
        if (opened != ST_OK)
            dispatch_fail(d, opened);
        if (advance_source(d, &d->eval) != ST_OK)
            log_debug("held-out data: %s", status_text()); /* the consumers that waited were told */
        planning_turn(d);
        consumers_greet(d);
        seats_schedule(d);
        if (d->reload) {
            d->reload = false;
            dispatch_reload(d);
        }
        http_run(d->metrics);
        if (d->draining && (is_drained(d) || (d->drain_ns && clock_ns() > d->drain_ns))) {
            log_info("drained rows=%llu", (unsigned long long)d->counts.rows);
            d->stopping = true;
        }
        const int64_t took_ns = clock_ns() - turn_ns;
        if (took_ns > d->counts.longest_turn_ns)
            d->counts.longest_turn_ns = took_ns;
    }
    return ST_OK;
}

static void stop(dispatch *d)
{
    char why[STATUS_MESSAGE_MAX];
    notify_send("STOPPING=1\n");
    d->stopping = true;
    snprintf(why, sizeof(why), "the daemon stops%s%s", d->outcome != ST_OK ? ": " : "",
             d->outcome != ST_OK ? d->cause.message : "");
    while (d->consumer_seats)
        consumer_close(d, d->consumer_seats, why);
    /* Remote workers wait for a daemon to come back, unless an operator drained this one for good.
     */
    const bool for_good = d->draining && d->drain_ns == 0;
    supervisors_leave(d, for_good);
    while (d->seats) {
        worker_seat *worker = d->seats;
        lease_free(&worker->work);
        lease_free(&worker->ahead);
        seat_retire(d, worker, !worker->local && !for_good);
    }
    fingerprint_process_stop(d);
    local_stop(d);
    while (d->book.lost) {
        lease *l = lease_book_take(&d->book, true);
        lease_free(&l);
    }
    http_close(&d->metrics);
    wire_close(&d->consumers);
    wire_close(&d->workers);
    wire_close(&d->control);
    wire_free(&d->net);
    source_done(&d->train);
    source_done(&d->eval);
    if (d->signal_fd >= 0)
        close(d->signal_fd);
    free(d->workers_endpoint);
    free(d->control_endpoint);
    free(d->terms);
    arena_done(&d->scratch);
}

status dispatch_run(conf *c, char *const *args, int n_args, bool for_command)
{
    dispatch *d = calloc(1, sizeof(*d));
    if (!d)
        return FAIL(ST_NO_MEMORY, "no memory for the dispatcher");
    *d = (dispatch){.options = c,
                    .args = args,
                    .n_args = n_args,
                    .for_command = for_command,
                    .build = prepd_build,
                    .signal_fd = -1};
    d->train.name = "train";
    d->eval.name = "eval";
    d->started_ns = d->counts.tick_ns = clock_ns();
    lease_book_init(&d->book, (int)c->prepd_solo_deaths);
    arena_init(&d->scratch, SCRATCH_BYTES);
    status st = start_dispatch(d);
    if (st == ST_OK && !d->stopping) {
        log_info("serving endpoint=%s workers=%d", c->prepd_endpoint, d->local.target);
        notify_send("READY=1\n");
        st = serve_sockets(d);
    }
    if (st != ST_OK)
        dispatch_fail(d, st);
    stop(d);
    st = d->outcome;
    if (st != ST_OK)
        status_set(&d->cause);
    if (!d->train.opening && !d->eval.opening) /* otherwise a thread that hangs still reads it */
        free(d);
    return st;
}
