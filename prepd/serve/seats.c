/* seats.c: workers as the dispatcher sees them: who joined, how they go, what their samples are
 * blamed for; what they answer is in worker_answers.c.
 *
 * Every lease ends in exactly one answer (ROW, RECORDS, FAILED) or in the loss of its worker. A
 * message of a worker without a seat or without a lease is late and dropped: its lease has been
 * given again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "prepd/serve/dispatch_state.h"

static worker_seat *seat_of(dispatch *d, const wire_peer *peer)
{
    for (worker_seat *w = d->seats; w; w = w->next)
        if (w->peer.size == peer->size && memcmp(w->peer.id, peer->id, peer->size) == 0)
            return w;
    return NULL;
}

worker_seat *seat_of_pid(dispatch *d, pid_t pid)
{
    for (worker_seat *w = d->seats; w; w = w->next)
        if (w->local && w->pid == pid)
            return w;
    return NULL;
}

static void remove_seat(dispatch *d, worker_seat *w)
{
    worker_seat **at = &d->seats;
    while (*at && *at != w)
        at = &(*at)->next;
    if (*at) {
        *at = w->next;
        d->n_seats--;
    }
    free(w);
}

source *lease_source(const lease *l)
{
    return l->kind == LEASE_ROW ? ((session *)l->owner)->src : l->owner;
}

void seats_quarantine(dispatch *d, source *s, int64_t id, const char *cause)
{
    bool fresh = false;
    if (quarantine_add(&s->bad, id, cause, &fresh) != ST_OK) {
        dispatch_fail(d, ST_NO_MEMORY);
        return;
    }
    if (!fresh)
        return;
    for (session *to = d->sessions; to; to = to->next)
        if (to->src == s && quarantine_add(&to->bad, id, cause, &fresh) != ST_OK) {
            dispatch_fail(d, ST_NO_MEMORY);
            return;
        }
    log_warn("sample quarantined section=%s id=%lld cause=\"%s\"", s->name, (long long)id, cause);
    d->counts.quarantined++;
}

/* A worker went while it had a lease. */
static void lose_lease(dispatch *d, lease *l, loss how, const char *what)
{
    int64_t item = -1;
    char cause[160];
    if (!l->owner) { /* its consumer has gone */
        lease_free(&l);
        return;
    }
    d->counts.leases_lost++;
    if (how == LOSS_CRASH)
        d->counts.crashes++;
    else if (how == LOSS_TIMEOUT)
        d->counts.timeouts++;
    else if (how == LOSS_BREACH)
        d->counts.breaches++;
    else
        d->counts.outside++;
    if (lease_lost(&d->book, l, how, &item) != LEASE_POISON)
        return;
    if (how == LOSS_TIMEOUT)
        snprintf(cause, sizeof(cause), "takes a worker longer than %.3g s (prepd.sample_timeout)",
                 d->c->prepd_sample_timeout);
    else
        snprintf(cause, sizeof(cause), "ends its worker: %s", what);
    if (l->kind == LEASE_ROW) {
        seats_quarantine(d, lease_source(l), item, cause);
        return;
    }
    log_warn("index: item %lld refused cause=\"%s\"", (long long)item, cause);
    if (index_build_poison(d, l, item, cause) != ST_OK)
        dispatch_fail(d, status_last()->code);
}

static void give_back(dispatch *d, lease *l)
{
    if (l && l->owner)
        lease_unbegun(&d->book, l);
    else if (l)
        lease_free(&l); /* its consumer has gone */
}

void seat_gone(dispatch *d, worker_seat *w, loss how, const char *what)
{
    lease *l = w->work;
    give_back(d, w->ahead);
    if (l || how != LOSS_OUTSIDE)
        log_info("worker gone%s pid=%d host=\"%s\" cause=\"%s\"",
                 l ? ", its lease is given again" : "", (int)w->pid, w->host, what);
    remove_seat(d, w);
    if (l)
        lose_lease(d, l, how, what);
}

void seat_retire(dispatch *d, worker_seat *w, bool again)
{
    const char *json = again ? "{\"again\":true}" : "{\"again\":false}";
    if (wire_send_json(d->workers, &w->peer, KIND_BYE, 0, json, strlen(json)) != ST_OK)
        log_debug("worker could not be told to leave: %s", status_text());
    remove_seat(d, w);
}

status seat_send_terms(dispatch *d, const wire_peer *to)
{
    return wire_send_json(d->workers, to, KIND_TERMS, 0, d->terms, strlen(d->terms));
}

/* "before" of a JOIN: how the process died that this one replaces. The dispatcher saw at most that
 * a connection ended. */
static status bury(dispatch *d, const char *keeper, const json_value *before, const char *name)
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
    worker_seat *w = d->seats;
    while (w && (w->pid != pid || !keeper[0] || strcmp(w->keeper, keeper) != 0))
        w = w->next;
    for (size_t i = 0; w && i < sizeof(ends) / sizeof(*ends); i++)
        if (strcmp(how, ends[i].word) == 0) {
            seat_gone(d, w, ends[i].how, what);
            return ST_OK;
        }
    return ST_OK; /* it had nothing in work */
}

/* The thread's own note stays. What the worker had in work is blamed on nothing. */
static status refuse_other(dispatch *d, worker_seat *w, status st)
{
    const status_note why = *status_last();
    if (w->local)
        local_said_why(d, w->pid);
    seat_gone(d, w, LOSS_OUTSIDE, "is of another kind");
    status_set(&why);
    return st;
}

static bool has_said_all(const dispatch *d, const worker_seat *w)
{
    for (int k = 0; k < N_PRINTS; k++)
        if ((k != PRINT_VIDEOS || d->videos) && (!w->prints.of[k][0] || !d->prints.of[k][0]))
            return false;
    return true;
}

status seat_prove(dispatch *d, worker_seat *w, const char *name)
{
    const print_kind other = fingerprints_other(&w->prints, &d->prints);
    if (other < N_PRINTS && !d->c->prepd_mixed_workers)
        return refuse_other(
            d, w, prints_refuse_worker(&w->prints, &d->prints, other, w->pid, w->host, name));
    if (!w->has_terms && d->prints.of[PRINT_IMAGES][0]) {
        const status st = seat_send_terms(d, &w->peer);
        if (st != ST_OK)
            return refuse_other(d, w, st);
        w->has_terms = true;
    }
    const bool was = w->proved;
    w->proved = w->has_terms && (has_said_all(d, w) || d->c->prepd_mixed_workers);
    if (w->proved && !was && other < N_PRINTS)
        log_warn("worker of another kind taken (prepd.mixed_workers) pid=%d host=\"%s\" "
                 "fingerprint=%s theirs=%s ours=%s",
                 (int)w->pid, w->host, print_names[other], w->prints.of[other],
                 d->prints.of[other]);
    return ST_OK;
}

/* A worker joins a second time when it has loaded what TERMS name: then it knows the rest of its
 * fingerprints. An idle one asks now and then whether all is well. */
static status join_again(dispatch *d, worker_seat *w, const char *name, const json_value *v)
{
    TRY(fingerprints_read(v, name, &w->prints));
    const bool told = w->has_terms;
    TRY(seat_prove(d, w, name));
    return told ? seat_send_terms(d, &w->peer) : ST_OK;
}

/* What a worker says of itself. Texts lie in the message. */
typedef struct joiner {
    const char *host, *keeper;
    const char *version, *build;
    int64_t pid;
    fingerprints prints;
    bool local, ship;
} joiner;

static status read_joiner(const dispatch *d, const char *name, const json_value *v, joiner *out)
{
    TRY(json_want_text(v, "version", name, &out->version));
    TRY(json_want_text(v, "host", name, &out->host));
    TRY(json_want_int(v, "pid", name, &out->pid));
    TRY(fingerprints_read(v, name, &out->prints));
    out->build = json_text(json_find(v, "build"), "unknown");
    out->local = strcmp(out->host, d->host) == 0 && local_is_child(d, (pid_t)out->pid);
    out->ship = !out->local && json_bool(json_find(v, "ship"), false);
    out->keeper = json_text(json_find(v, "keeper"), "");
    return ST_OK;
}

/* The sources that rows are made by. A version is a name for many of them. */
static status check_build(const dispatch *d, const char *name, const joiner *j)
{
    if (strcmp(j->build, d->build) == 0 && strcmp(j->version, TESSERA_VERSION) == 0)
        return ST_OK;
    if (d->c->prepd_mixed_workers) {
        log_warn("worker of version %s, build %s taken (prepd.mixed_workers) pid=%lld host=\"%s\"",
                 j->version, j->build, (long long)j->pid, j->host);
        return ST_OK;
    }
    return FAIL_IN(ST_MISMATCH, name,
                   "this worker (pid %lld on %s) is of version %s, build %s; this daemon is of "
                   "version %s, build %s: install the same on both machines, or set "
                   "prepd.mixed_workers to allow it",
                   (long long)j->pid, j->host, j->version, j->build, TESSERA_VERSION, d->build);
}

static status may_join(const dispatch *d, const char *name, const joiner *j)
{
    TRY(check_build(d, name, j));
    if (!j->ship)
        return ST_OK;
    if (!d->c->data_ship)
        return FAIL_IN(
            ST_CONFIG, name,
            "worker (pid %lld on %s) without --data-root DIR: say where the images lie on "
            "its machine, or let the daemon send them (data.ship true)",
            (long long)j->pid, j->host);
    if (d->c->video_file_bytes > FRAME_MAX_PAYLOAD || d->c->image_file_bytes > FRAME_MAX_PAYLOAD)
        return FAIL_IN(ST_CONFIG, name,
                       "data.ship: image.file_bytes and video.file_bytes may be at most %d, what a "
                       "message holds",
                       FRAME_MAX_PAYLOAD);
    return ST_OK;
}

static worker_seat *seat_new(const wire_peer *from, const joiner *j)
{
    worker_seat *w = calloc(1, sizeof(*w));
    if (!w)
        return NULL;
    w->peer = *from;
    w->pid = (pid_t)j->pid;
    w->local = j->local;
    w->ship = j->ship;
    w->prints = j->prints;
    w->fresh = true;
    w->joined_ns = w->heard_ns = w->since_ns = w->told_ns = clock_ns();
    snprintf(w->keeper, sizeof(w->keeper), "%s", j->keeper);
    snprintf(w->host, sizeof(w->host), "%s", j->host);
    wire_peer_host(from, w->from);
    return w;
}

/* At the end: the longest idle is served first. */
static void append_seat(dispatch *d, worker_seat *w)
{
    worker_seat **at = &d->seats;
    while (*at)
        at = &(*at)->next;
    *at = w;
    d->n_seats++;
    wire_know(d->workers, &w->peer);
}

static status join(dispatch *d, const wire_peer *from, const char *name, const json_value *v)
{
    joiner j;
    worker_seat *w = seat_of(d, from);
    if (w) /* still there: an idle worker asks now and then */
        return join_again(d, w, name, v);
    TRY(read_joiner(d, name, v, &j));
    TRY(may_join(d, name, &j));
    worker_seat *old = j.local ? seat_of_pid(d, (pid_t)j.pid) : NULL;
    if (old)
        seat_gone(d, old, LOSS_OUTSIDE, "joined again");
    if (d->n_seats >= MAX_SEATS)
        return FAIL_IN(ST_UNAVAILABLE, name, "%d workers are here already", MAX_SEATS);
    const json_value *before = json_find(v, "before");
    if (before && !j.local)
        TRY(bury(d, j.keeper, before, name));
    w = seat_new(from, &j);
    if (!w)
        return FAIL(ST_NO_MEMORY, "no memory for a worker");
    d->retired_ns = 0; /* here is a fresh one */
    w->number = ++d->seats_seen;
    append_seat(d, w);
    if (w->local)
        local_joined(d, w->pid);
    log_debug("worker joined pid=%d host=\"%s\" local=%d", (int)w->pid, w->host, w->local);
    return seat_prove(d, w, name);
}

/* Its work has begun: what it dies of from now on may be a sample's doing. */
static void begun(dispatch *d, worker_seat *w)
{
    w->begun = true;
    local_begun(d, w->local ? w->pid : 0);
}

/* Between two leases. One that was on its way to it has not been begun, and is not lost. */
static void left(dispatch *d, worker_seat *w)
{
    if (w->unbegun) {
        give_back(d, w->work);
        w->work = NULL;
    }
    seat_gone(d, w, LOSS_OUTSIDE, "left");
}

/* It can not go on, and says why. Before it began any work that is no sample's doing: its model
 * folder, its memory. */
static void give_up(dispatch *d, worker_seat *w, const json_value *v, const char *name)
{
    const status code = wire_error(v, name);
    const char *why = json_text(json_find(v, "message"), "no reason given");
    if (!w->begun && w->local && FAIL(code, "workers can not begin: %s", why) == code)
        local_said_why(d, w->pid);
    seat_gone(d, w, w->begun ? LOSS_CRASH : LOSS_OUTSIDE, why);
}

/* Late, or nobody: what it had is given again, and it may join anew. */
static status send_away(dispatch *d, const wire_peer *from)
{
    static const char json[] = "{\"again\":true}";
    if (wire_send_json(d->workers, from, KIND_BYE, 0, json, sizeof(json) - 1) != ST_OK)
        log_debug("late worker could not be told: %s", status_text());
    return ST_OK;
}

static status seat_handle(dispatch *d, const wire_peer *from, wire_msg *m, const char *name)
{
    frame head;
    json_value *v = NULL;
    worker_seat *w = seat_of(d, from);
    TRY(frame_decode(wire_msg_part(m, 0), name, &head));
    if (w)
        w->heard_ns = clock_ns();
    if (w && !w->begun &&
        (head.kind == KIND_ROW || head.kind == KIND_ON || head.kind == KIND_RECORDS))
        begun(d, w);
    if (head.kind == KIND_ROW)
        return w ? answer_row(d, w, &head, m, name) : send_away(d, from);
    TRY(wire_read_json(m, name, &head, &v));
    status st = ST_OK;
    if (head.kind == KIND_JOIN && json_find(v, "keeps"))
        st = keeper_heard(d, from, name);
    else if (head.kind == KIND_JOIN)
        st = join(d, from, name, v);
    else if (head.kind == KIND_HELLO)
        st = FAIL_IN(ST_PROTOCOL, name,
                     "a worker does not send hello: this is the endpoint of workers; trainers "
                     "connect to prepd.endpoint itself");
    else if (!w)
        st = head.kind == KIND_RECORDS || head.kind == KIND_FAILED ? send_away(d, from) : ST_OK;
    else if (head.kind == KIND_ON)
        st = answer_on(d, w, &head, v, name);
    else if (head.kind == KIND_RECORDS)
        st = answer_records(d, w, &head, v, name);
    else if (head.kind == KIND_FAILED)
        st = answer_failed(d, w, &head, v, name);
    else if (head.kind == KIND_BYE)
        left(d, w);
    else if (head.kind == KIND_ERROR)
        give_up(d, w, v, name);
    else
        st = FAIL_IN(ST_PROTOCOL, name, "a worker does not send %s", frame_kind_name(head.kind));
    json_free(&v);
    return st;
}

/* What it had is given again and no sample is blamed, however often: it proves nothing. A child of
 * ours is killed as well. */
static void dismiss(dispatch *d, worker_seat *w)
{
    if (w->local)
        local_kill(d, w->pid);
    else
        breach_note(&d->breaches, w->from, clock_ns());
    seat_gone(d, w, LOSS_BREACH, "broke the protocol");
}

void seat_message(dispatch *d, const wire_peer *from, wire_msg *m)
{
    char name[WIRE_PEER_TEXT];
    wire_peer_print(from, name);
    status st = seat_handle(d, from, m, name);
    if (st == ST_OK || d->stopping)
        return;
    peers_refuse(&d->peers, d->workers, from, "worker", st);
    worker_seat *w = seat_of(d, from);
    if (w)
        dismiss(d, w);
}
