/* joining.c: JOIN: which worker may work here.
 *
 * A worker says its version, build, lease form and fingerprints. One of another form or with other
 * fingerprints is refused; one of another build must have those of rows as well. A worker gets
 * TERMS once the fingerprint of its pictures agrees, and work once all fingerprints do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/dispatch_state.h"

/* Handles "before" of a JOIN: how the process died that this one replaces. The dispatcher itself
 * saw at most that a connection ended. */
static status bury(dispatch *state, const char *supervisor, const json_value *before,
                   const char *name)
{
    static const struct {
        const char *word;
        loss how;
    } ends[] = {{"outside", LOSS_OUTSIDE}, {"crash", LOSS_CRASH}, {"timeout", LOSS_TIMEOUT}};
    const char *how, *what;
    int64_t pid;
    TRY(json_want_int(before, "pid", name, &pid));
    TRY(json_want_text(before, "how", name, &how));
    TRY(json_want_text(before, "what", name, &what));
    worker_seat *worker = state->seats;
    while (worker &&
           (worker->pid != pid || !supervisor[0] || strcmp(worker->supervisor, supervisor) != 0))
        worker = worker->next;
    for (size_t i = 0; worker && i < sizeof(ends) / sizeof(*ends); i++)
        if (strcmp(how, ends[i].word) == 0) {
            seat_gone(state, worker, ends[i].how, what);
            return ST_OK;
        }
    return ST_OK; /* its seat is gone: it had nothing in work */
}

/* Removes the seat of a worker that differs, and keeps the thread's note about it. What the worker
 * had in work is given again, and nothing is blamed. */
static status refuse_other(dispatch *state, worker_seat *worker, status st)
{
    const status_note why = *status_last();
    if (worker->local)
        local_said_why(state, worker->pid);
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
            seat_unreachable(state, worker);
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
    const char *host, *supervisor;
    const char *version, *build;
    int64_t pid, form;
    fingerprints fingerprints;
    bool local, ship, other_build;
} joiner;

static status read_joiner(const dispatch *state, const char *name, const json_value *said,
                          joiner *out)
{
    TRY(json_want_text(said, "version", name, &out->version));
    TRY(json_want_text(said, "host", name, &out->host));
    TRY(json_want_int(said, "pid", name, &out->pid));
    TRY(fingerprints_read(said, name, &out->fingerprints));
    out->build = json_text(json_find(said, "build"), "unknown");
    out->form = json_int(json_find(said, "form"), 0);
    out->other_build =
        strcmp(out->build, state->place.build) != 0 || strcmp(out->version, TESSERA_VERSION) != 0;
    out->local =
        strcmp(out->host, state->place.host) == 0 && local_is_child(state, (pid_t)out->pid);
    out->ship = !out->local && json_bool(json_find(said, "ship"), false);
    out->supervisor =
        json_text(json_find(said, "supervisor"), json_text(json_find(said, "keeper"), ""));
    return ST_OK;
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
    worker->ship = waiting->ship;
    worker->fingerprints = waiting->fingerprints;
    worker->other_build = waiting->other_build;
    snprintf(worker->build, sizeof(worker->build), "%s", waiting->build);
    worker->fresh = true;
    worker->joined_ns = worker->heard_ns = worker->since_ns = worker->told_ns = state->now_ns;
    snprintf(worker->supervisor, sizeof(worker->supervisor), "%s", waiting->supervisor);
    snprintf(worker->host, sizeof(worker->host), "%s", waiting->host);
    state->outside.peer_host(state->outside.shell, from, worker->from);
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

status seat_join(dispatch *state, const wire_peer *from, const char *name, const json_value *said)
{
    joiner waiting;
    worker_seat *worker = seat_find(state, from);
    if (worker) /* it is known: it has loaded its terms, or is idle and asks whether the daemon is
                 * there
                 */
        return join_again(state, worker, name, said);
    TRY(read_joiner(state, name, said, &waiting));
    TRY(may_join(state, name, &waiting));
    worker_seat *old = waiting.local ? seat_of_pid(state, (pid_t)waiting.pid) : NULL;
    if (old)
        seat_gone(state, old, LOSS_OUTSIDE, "joined again");
    if (state->n_seats >= MAX_SEATS)
        return FAIL_IN(ST_UNAVAILABLE, name, "%d workers are here already", MAX_SEATS);
    const json_value *before = json_find(said, "before");
    if (before && !waiting.local)
        TRY(bury(state, waiting.supervisor, before, name));
    worker = seat_new(state, from, &waiting);
    if (!worker)
        return FAIL(ST_NO_MEMORY, "no memory for a worker");
    state->retired_ns = 0; /* this is a fresh worker */
    worker->number = ++state->seats_seen;
    append_seat(state, worker);
    if (worker->local)
        local_joined(state, worker->pid);
    outside_debug(&state->outside, "worker joined pid=%d host=\"%s\" local=%d", (int)worker->pid,
                  worker->host, worker->local);
    return seat_prove(state, worker, name);
}
