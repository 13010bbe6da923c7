/* SPDX-License-Identifier: Apache-2.0 */
/* joining.c: JOIN: which worker may work here.
 *
 * A worker says its version, build, lease form and fingerprints. One of another form or with other
 * fingerprints is refused; one of another build must have those of rows as well, and is watched. A
 * worker gets TERMS once the fingerprint of its pictures agrees, and work once all fingerprints do.
 *
 * The daemon's own workers say the ticket that it gave them when it started them; nothing else
 * makes a worker local. Whoever holds another key may be excluded, or be here too often: then it is
 * told how long to wait. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/workers/core_workers.h"

/* Removes the seat of a worker that differs, and keeps the thread's note about it. What the worker
 * had in work is given again, and nothing is blamed. */
static status refuse_other(dispatch *state, worker_seat *worker, status st)
{
    const status_note why = *status_last();
    if (worker->local)
        local_note_cause(state, worker->pid);
    seat_gone(state, worker, LOSS_OUTSIDE, "it differs from the daemon");
    status_set(&why);
    return st;
}

static bool has_said_all(const dispatch *state, const worker_seat *worker)
{
    for (int k = 0; k < (worker->other_build ? N_PRINTS : N_STREAM_PRINTS); k++)
        if ((state->videos || !print_needs_videos((print_kind)k)) &&
            (!worker->fingerprints.of[k][0] || !state->fingerprints.of[k][0]))
            return false;
    return true;
}

status seat_prove(dispatch *state, worker_seat *worker, const char *name)
{
    if (worker->late)
        return ST_OK;
    const print_kind other = fingerprints_of_worker(state, worker);
    if (other < N_PRINTS)
        return refuse_other(state, worker,
                            fingerprints_refuse_worker(&worker->fingerprints, &state->fingerprints,
                                                       other, worker->pid, worker->host, name));
    if (!worker->has_terms && state->fingerprints.of[PRINT_IMAGES][0]) {
        const status st = seat_send_terms(state, &worker->peer);
        if (st == ST_UNAVAILABLE) {
            seat_unreachable(worker);
            return ST_OK;
        }
        if (st != ST_OK)
            return refuse_other(state, worker, st);
        worker->has_terms = true;
    }
    worker->proved = worker->has_terms && has_said_all(state, worker);
    return ST_OK;
}

/* A worker sends JOIN again when it has loaded what TERMS name, since it then knows the rest of its
 * fingerprints. An idle one also sends it now and then, to see whether the daemon is there. */
static status join_again(dispatch *state, worker_seat *worker, const char *name,
                         const json_value *said)
{
    TRY(fingerprints_read(said, name, &worker->fingerprints));
    const bool told = worker->has_terms;
    TRY(seat_prove(state, worker, name));
    return told ? seat_send_terms(state, &worker->peer) : ST_OK;
}

/* What a worker says of itself. Its texts lie in the message. */
typedef struct joiner {
    const char *host;
    const char *version, *build;
    int64_t pid, form;
    fingerprints fingerprints;
    bool local, decider, ship, other_build;
    bool dead_ticket;
    account *of; /* NULL for a local worker */
} joiner;

static status read_joiner(dispatch *state, const wire_peer *from, const char *name,
                          const json_value *said, joiner *out)
{
    char address[WIRE_HOST_TEXT];
    const char *ticket = json_text(json_find(said, "ticket"), "");
    const local_child *child = local_child_with(state, ticket);
    TRY(json_want_text(said, "version", name, &out->version));
    TRY(json_want_text(said, "host", name, &out->host));
    TRY(json_want_int(said, "pid", name, &out->pid));
    TRY(fingerprints_read(said, name, &out->fingerprints));
    out->build = json_text(json_find(said, "build"), "unknown");
    out->local = child != NULL;
    out->dead_ticket = ticket[0] && !child;
    out->decider = child || (from->roles & WIRE_TRUSTED);
    out->form = json_int(json_find(said, "form"), 0);
    out->other_build =
        strcmp(out->build, state->place.build) != 0 || strcmp(out->version, TESSERA_VERSION) != 0;
    out->ship = !out->local && json_bool(json_find(said, "ship"), false);
    out->of = NULL;
    if (child) {
        out->pid = child->pid;
        return ST_OK;
    }
    state->outside.peer_host(state->outside.shell, from, address);
    return account_open(&state->accounts, from, address, state->now_ns, &out->of);
}

/* Workers of another build may work here if they understand the same leases; whether they make the
 * same rows of them, the fingerprints show. */
static status check_build(const dispatch *state, const char *name, const joiner *waiting)
{
    if (!waiting->other_build || waiting->form == LEASE_FORM)
        return ST_OK;
    return FAIL_IN(
        ST_MISMATCH, name,
        "this worker (pid %lld on %s) has version %s, build %s, lease form %lld, and this "
        "daemon has version %s, build %s, lease form %d: install the same on both "
        "machines",
        (long long)waiting->pid, waiting->host, waiting->version, waiting->build,
        (long long)waiting->form, TESSERA_VERSION, state->place.build, LEASE_FORM);
}

static status may_join(const dispatch *state, const char *name, const joiner *waiting)
{
    TRY(check_build(state, name, waiting));
    if (!waiting->ship)
        return ST_OK;
    if (!state->options->data_ship)
        return FAIL_IN(
            ST_CONFIG, name,
            "this worker (pid %lld on %s) was started without --data-root DIR: say where the "
            "images are on its machine, or let the daemon send them (data.ship true)",
            (long long)waiting->pid, waiting->host);
    if (state->options->video_file_bytes > FRAME_MAX_PAYLOAD ||
        state->options->image_file_bytes > FRAME_MAX_PAYLOAD)
        return FAIL_IN(ST_CONFIG, name,
                       "with data.ship, image.file_bytes and video.file_bytes may be at most %d, "
                       "since a message holds no more",
                       FRAME_MAX_PAYLOAD);
    return ST_OK;
}

static worker_seat *seat_new(const dispatch *state, const wire_peer *from, const joiner *waiting)
{
    worker_seat *worker = calloc(1, sizeof(*worker));
    if (!worker)
        return NULL;
    worker->peer = *from;
    worker->pid = (pid_t)waiting->pid;
    worker->local = waiting->local;
    worker->decider = waiting->decider;
    worker->of = waiting->of;
    worker->ship = waiting->ship;
    worker->fingerprints = waiting->fingerprints;
    worker->other_build = waiting->other_build;
    snprintf(worker->build, sizeof(worker->build), "%s", waiting->build);
    worker->fresh = true;
    worker->joined_ns = worker->heard_ns = worker->since_ns = worker->told_ns = state->now_ns;
    snprintf(worker->host, sizeof(worker->host), "%s", waiting->host);
    if (worker->of) {
        worker->of->uses++;
        worker->of->seats++;
    }
    return worker;
}

/* Adds the seat at the end of the list. */
static void append_seat(dispatch *state, worker_seat *worker)
{
    worker_seat **at = &state->seats;
    while (*at)
        at = &(*at)->next;
    *at = worker;
    state->n_seats++;
    state->outside.know_worker(state->outside.shell, &worker->peer);
}

/* Tells a worker to wait that may not join now. True if it was told. */
static bool is_to_wait(dispatch *state, const wire_peer *from, const joiner *waiting)
{
    static const int64_t SECOND_NS = 1000000000;
    account *of = waiting->of;
    int64_t wait_ns = 0;
    const char *why = "its key joins too often, or has too many workers here";
    if (!of)
        return false;
    if (account_is_excluded(of, state->now_ns)) {
        wait_ns = of->excluded.until_ns - state->now_ns;
        why = of->why;
    } else if (!account_may_join(of, state->now_ns)) {
        wait_ns = SECOND_NS;
    }
    if (wait_ns == 0)
        return false;
    state->counts.joins_deferred++;
    if (seat_send_wait(state, from, wait_ns, why) != ST_OK)
        core_debug(state, "worker could not be told to wait: %s", status_text());
    return true;
}

status seat_join(dispatch *state, const wire_peer *from, const char *name, const json_value *said)
{
    joiner waiting;
    worker_seat *worker = seat_find(state, from);
    if (worker) /* it is known: it has loaded its terms, or is idle and asks whether the daemon is
                 * there
                 */
        return join_again(state, worker, name, said);
    TRY(read_joiner(state, from, name, said, &waiting));
    TRY(may_join(state, name, &waiting));
    if (is_to_wait(state, from, &waiting))
        return ST_OK;
    if (waiting.dead_ticket) /* of a child that has ended, or of nobody */
        return seat_send_wait(state, from, 0, "its ticket is no longer good");
    worker_seat *old = waiting.local ? seat_of_pid(state, (pid_t)waiting.pid) : NULL;
    if (old)
        seat_gone(state, old, LOSS_OUTSIDE, "joined again");
    if (state->n_seats >= MAX_SEATS)
        return FAIL_IN(ST_UNAVAILABLE, name, "%d workers are here already", MAX_SEATS);
    worker = seat_new(state, from, &waiting);
    if (!worker)
        return FAIL(ST_NO_MEMORY, "no memory for a worker");
    state->retired_ns = 0; /* this is a fresh worker */
    worker->number = ++state->seats_seen;
    append_seat(state, worker);
    if (worker->other_build && !worker->decider)
        account_take_build(worker->of, worker->build);
    if (worker->local)
        local_joined(state, worker->pid);
    core_debug(state, "worker joined pid=%d host=\"%s\" local=%d key=\"%s\"", (int)worker->pid,
               worker->host, worker->local, worker->of ? worker->of->name : "");
    return seat_prove(state, worker, name);
}
