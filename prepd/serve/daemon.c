/* SPDX-License-Identifier: Apache-2.0 */
/* daemon.c: the daemon's start, its loop and its end.
 *
 * A turn of the loop waits for sockets, signals and the metrics port, hands what has come to the
 * core (workers first, since they bring what consumers wait for), and lets the core act. Nothing in
 * a turn waits for a peer. */
#include "prepd/serve/daemon.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/proc.h"
#include "common/program/bar.h"
#include "common/program/log.h"
#include "prepd/serve/shell.h"
#include "prepd/serve/core/consumers/core_consumers.h"

/* Tells people how far the daemon is: by a bar on a terminal, by lines in the
 * log while an index is built, and by the status line of a service manager. */

static const int64_t TELL_EVERY_NS = 2000000000;

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
    if (state->train.waits_for) {
        snprintf(line, sizeof(line), "STATUS=waiting for the index, which %s builds\n",
                 state->train.waits_for);
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
                 (long long)(state->train.bad.n + state->eval.bad.n));
    }
    notify_try(line);
}

/* Shows on a terminal how far the epoch is and how long it still takes. */
static void show_epoch(const dispatch *state)
{
    const consumer_seat *consumer = leading(state);
    if (state->train.build.active || state->eval.build.active)
        return; /* the bar is that of the index */
    if (!consumer) {
        bar_clear();
        return;
    }
    const stream_place place = consumer_place(consumer);
    bar_draw(place.share, place.seconds_left, "epoch %lld, %.0f %%, %.1f samples/s%s",
             (long long)place.epoch, 100 * place.share, state->counts.samples_per_s,
             place.seconds_left < 0 ? ", waiting" : "");
}

/* Shows how far an index is, by the bar or now and then by a line. */
static void show_index(const dispatch *state, const source *section, int64_t now,
                       int64_t *inout_told_ns)
{
    const index_build *build = &section->build;
    if (!build->active)
        return;
    const int64_t total = index_samples(section->index) + index_images(section->index),
                  done = total - build->left;
    /* Of two indexes that are built at once, the bar shows the one for training. */
    if (section == &state->train || !state->train.build.active)
        bar_draw((double)done / (double)total, bar_seconds_left(build->started_ns, done, total),
                 "index of %s: %lld of %lld", section->name, (long long)done, (long long)total);
    if (*inout_told_ns < build->started_ns)
        *inout_told_ns = build->started_ns;
    if (bar_is_shown() || now - *inout_told_ns < TELL_EVERY_NS)
        return;
    *inout_told_ns = now;
    log_info("index building section=%s done=%lld of=%lld seconds=%.0f", section->name,
             (long long)done, (long long)total, (double)(now - build->started_ns) / 1e9);
}

void progress_watchdog(shell *around, int64_t now)
{
    const int64_t watchdog = notify_watchdog_ns();
    if (watchdog && now - around->watchdog_ns >= watchdog / 2 &&
        !metrics_unhealthy(around->core, now)) {
        notify_try("WATCHDOG=1\n");
        around->watchdog_ns = now;
    }
}

/* daemon.c */
static void progress_tell(shell *around, int64_t now)
{
    const dispatch *state = around->core;
    show_index(state, &state->train, now, &around->index_told_ns[0]);
    show_index(state, &state->eval, now, &around->index_told_ns[1]);
    if (state->counts.tick_ns == around->told_ns)
        return; /* the rates are those that were told before */
    around->told_ns = state->counts.tick_ns;
    doors_tell(around);
    tell_service_manager(state);
    show_epoch(state);
}

/* Tells the core of SIGTERM and SIGINT, and remembers SIGHUP. */

/* daemon.c */
static void signals_read(shell *around)
{
    struct signalfd_siginfo info;
    while (read(around->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGCHLD)
            continue; /* children are reaped after their last messages were read */
        if (info.ssi_signo == SIGHUP) {
            around->reload = true;
            continue;
        }
        const bool drained = around->core->draining;
        dispatch_at(around->core, clock_ns());
        signal_came(around->core, info.ssi_signo == SIGTERM ? SIGNAL_DRAIN : SIGNAL_STOP,
                    strsignal((int)info.ssi_signo));
        if (around->core->draining && !drained)
            notify_send("STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=30000000\n");
    }
}

enum {
    TICK_MS = 100,
    OPENING_MS = 5,
    LEAVING_MS = 5,
};

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

static bool is_ending(const dispatch *state)
{
    return state->stopping || state->draining;
}

/* Opens the training data and waits for it. Reading a large data set takes time and its file system
 * may hang, so signals are handled meanwhile. If another prepd builds the index, the wait for that
 * happens in the loop instead. */
static status open_train(shell *around)
{
    dispatch *state = around->core;
    TRY(dispatch_open(state));
    while (!state->train.opened && !state->train.waits_for && !is_ending(state)) {
        wire_wait signals = {.fd = around->signal_fd};
        TRY(wire_poll(&signals, 1, OPENING_MS));
        signals_read(around);
        source_advance(around, &state->train);
    }
    state->stopping |= state->draining;
    return ST_OK;
}

static status open_metrics(shell *around)
{
    const http_place at = {.option = "metrics.listen",
                           .address = around->options->metrics_listen,
                           .any_address = around->options->metrics_any_address};
    return at.address[0] ? http_open(&at, metrics_answer, around->core, &around->metrics) : ST_OK;
}

static void tell_audience(const conf *options)
{
    const char *who = http_audience(options->metrics_listen);
    if (who)
        log_warn("metrics.listen %s: %s", options->metrics_listen, who);
}

/* What draws the rows that are audited.
 * Without the system's random numbers, the time draws them. */
static uint64_t random_secret(void)
{
    uint64_t secret;
    return getrandom(&secret, sizeof(secret), 0) == (ssize_t)sizeof(secret) ? secret
                                                                            : (uint64_t)clock_ns();
}

/* Somebody must be able to decide about the data: this machine, or keys that are trusted. */
static status check_deciders(const conf *options, bool trusted)
{
    if (trusted || options->prepd_workers >= 0 || !options->data_images[0] ||
        file_is_folder(options->data_images))
        return ST_OK;
    return FAIL_IN(ST_NO_INPUT, options->data_images,
                   "there is no such folder, prepd.workers is -1, and no key in prepd.keys has the "
                   "role trusted, so nobody could decide what the pictures are: let data.images "
                   "name them here, or give the keys of the machines that have them the role "
                   "trusted (prepd keygen --roles trusted)");
}

static status new_core(shell *around, bool for_command)
{
    if (gethostname(around->host, sizeof(around->host) - 1) != 0)
        snprintf(around->host, sizeof(around->host), "localhost");
    bool trusted = false;
    if (around->options->prepd_keys[0] &&
        wire_role_is_given(around->options->prepd_keys, WIRE_TRUSTED, &trusted) != ST_OK)
        trusted = false; /* reading the keys says why */
    TRY(check_deciders(around->options, trusted));
    const daemon_place place = {.pid = getpid(),
                                .host = around->host,
                                .cpus = proc_cpus(),
                                .build = prepd_build,
                                .secret = random_secret(),
                                .trusted = trusted,
                                .for_command = for_command,
                                .on_one_machine = wire_is_ipc(around->options->prepd_endpoint)};
    const outside world = shell_outside(around);
    TRY(dispatch_new(around->options, &place, &world, clock_ns(), &around->core));
    around->told_ns = around->core->counts.tick_ns;
    return ST_OK;
}

static status start(shell *around)
{
    raise_descriptors();
    TRY(proc_self_path(around->self, sizeof(around->self)));
    TRY(own_files_open(&around->files));
    TRY(proc_signal_fd(&around->signal_fd));
    /* An address that cannot be used is told before data is read for minutes. */
    TRY(doors_may_open(around));
    TRY(open_metrics(around));
    http_close(&around->metrics);
    /* The data is opened before there is a socket: a consumer that sees a socket waits for the
     * daemon, and would wait in vain if the data cannot be opened. */
    TRY(open_train(around));
    if (around->core->stopping)
        return ST_OK;
    TRY(open_metrics(around));
    tell_audience(around->options);
    TRY(doors_open(around));
    dispatch_at(around->core, clock_ns()); /* the data may have taken minutes */
    return dispatch_begin(around->core);
}

static void tick_shell(shell *around)
{
    const int64_t now = clock_ns();
    if (now - around->ticked_ns < (int64_t)TICK_MS * 1000000)
        return;
    around->ticked_ns = now;
    progress_watchdog(around, now);
    progress_tell(around, now);
}

/* Hands what has come to the core. */
static status read_all(shell *around)
{
    signals_read(around);
    TRY(doors_read(around, DOOR_WORKERS));
    processes_reap(around);
    fingerprint_pipe_read(around);
    TRY(doors_read(around, DOOR_CONSUMERS));
    TRY(doors_read(around, DOOR_CONTROL));
    source_advance(around, &around->core->train);
    source_advance(around, &around->core->eval);
    return ST_OK;
}

static status serve(shell *around)
{
    dispatch *state = around->core;
    while (!state->stopping) {
        wire_wait wait[] = {{.socket = around->socket[DOOR_WORKERS]},
                            {.socket = around->socket[DOOR_CONSUMERS]},
                            {.socket = around->socket[DOOR_CONTROL]},
                            {.fd = around->signal_fd},
                            {.fd = around->pipe.pid ? around->pipe.fd : -1},
                            {.fd = http_fd(around->metrics)}};
        TRY(wire_poll(wait, sizeof(wait) / sizeof(*wait), state->plans_wait ? 0 : TICK_MS));
        const int64_t began_ns = clock_ns(), worked_ns = clock_thread_ns();
        TRY(read_all(around));
        dispatch_at(state, clock_ns());
        dispatch_turn(state);
        tick_shell(around);
        if (around->reload) {
            around->reload = false;
            reload_options(around);
        }
        http_run(around->metrics);
        dispatch_note_turn_time(state, clock_ns() - began_ns, clock_thread_ns() - worked_ns);
    }
    return ST_OK;
}

/* Stops the core and waits for the children. A second signal ends the wait. */
static void stop(shell *around)
{
    dispatch *state = around->core;
    notify_send("STOPPING=1\n");
    dispatch_at(state, clock_ns());
    dispatch_stop(state);
    fingerprint_pipe_forget(around);
    for (;;) {
        processes_reap(around);
        signals_read(around);
        dispatch_at(state, clock_ns());
        if (dispatch_stopped(state))
            break;
        usleep(LEAVING_MS * 1000);
    }
    http_close(&around->metrics);
    doors_close(around);
    dispatch_free(&around->core);
    own_files_close(&around->files);
    if (around->signal_fd >= 0)
        close(around->signal_fd);
}

status daemon_run(conf *options, char *const *args, int n_args, bool for_command)
{
    shell around = {.options = options, .args = args, .n_args = n_args, .signal_fd = -1};
    TRY(new_core(&around, for_command));
    status st = start(&around);
    if (st == ST_OK && !around.core->stopping) {
        log_info("serving endpoint=%s workers=%d%s%s", options->prepd_endpoint,
                 around.core->local.target, options->prepd_ranks[0] ? " ranks=" : "",
                 options->prepd_ranks);
        notify_send("READY=1\n");
        st = serve(&around);
    }
    if (st != ST_OK)
        dispatch_fail(around.core, st);
    st = around.core->outcome;
    const status_note cause = around.core->cause;
    stop(&around);
    if (st != ST_OK)
        status_set(&cause);
    return st;
}
