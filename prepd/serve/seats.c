/* seats.c: workers as the dispatcher sees them: who joined, what each has in work, how it went.
 *
 * Every lease ends in exactly one answer (ROW, RECORDS, FAILED) or in the loss of its worker. A
 * message of a worker without a seat or without a lease is late and dropped: its lease has been
 * given again. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "prepd/serve/state.h"

enum {
    MISSING_LIMIT = 3, /* files a worker may miss that the dispatcher sees, before it must go */
    QUARANTINE_JUDGED = 1000, /* samples before data.quarantine_limit is judged */
};

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
    if (w->keeper[0]) {
        d->kept_away++;
        d->kept_gone_ns = clock_ns();
    }
    free(w);
}

static source *source_of(const lease *l)
{
    return l->kind == LEASE_ROW ? ((session *)l->owner)->src : l->owner;
}

/* Counts of this run: decisions that came with a cursor are not its doing, and what the index
 * refuses never gets here. */
void seats_judge_quarantine(dispatch *d)
{
    const serve_counts *k = &d->counts;
    const double share = k->samples ? 100.0 * (double)k->quarantined / (double)k->samples : 0.0;
    if (k->samples < QUARANTINE_JUDGED || share <= d->c->data_quarantine_limit || d->stopping)
        return;
    const source *s = d->train.bad.n ? &d->train : &d->eval;
    const quarantined *some = s->bad.n ? &s->bad.entry[0] : NULL;
    dispatch_fail(d, FAIL(ST_BAD_INPUT,
                          "%.1f %% of %llu samples are quarantined, over data.quarantine_limit "
                          "%.1f %%; one of them: sample %lld: %s",
                          share, (unsigned long long)k->samples, d->c->data_quarantine_limit,
                          some ? (long long)some->sample : -1, some ? some->cause : "-"));
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
    seats_judge_quarantine(d);
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
        seats_quarantine(d, source_of(l), item, cause);
        return;
    }
    log_warn("index: item %lld refused cause=\"%s\"", (long long)item, cause);
    if (index_build_poison(d, l, item, cause) != ST_OK)
        dispatch_fail(d, status_last()->code);
}

void seat_gone(dispatch *d, worker_seat *w, loss how, const char *what)
{
    lease *l = w->work;
    if (l || how != LOSS_OUTSIDE)
        log_info("worker gone pid=%d host=%s cause=\"%s\"%s", (int)w->pid, w->host, what,
                 l ? ", its lease is given again" : "");
    remove_seat(d, w);
    if (l)
        lose_lease(d, l, how, what);
}

void seat_retire(dispatch *d, worker_seat *w, bool again)
{
    const bool all = !again && w->keeper[0] && d->draining && d->drain_ns == 0;
    const char *json = again ? "{\"again\":true}"
                       : all ? "{\"again\":false,\"all\":true}"
                             : "{\"again\":false}";
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

static status join(dispatch *d, const wire_peer *from, const char *name, const json_value *v)
{
    const char *version, *fingerprint, *host;
    int64_t pid;
    hash128 print;
    worker_seat *w = seat_of(d, from);
    if (w) { /* still there: an idle worker asks now and then */
        w->heard_ns = clock_ns();
        return seat_send_terms(d, from);
    }
    TRY(json_want_text(v, "version", name, &version));
    TRY(json_want_text(v, "fingerprint", name, &fingerprint));
    TRY(json_want_text(v, "host", name, &host));
    TRY(json_want_int(v, "pid", name, &pid));
    if (strcmp(version, TESSERA_VERSION) != 0)
        return FAIL_IN(ST_PROTOCOL, name, "worker of version %s, this daemon is %s", version,
                       TESSERA_VERSION);
    if (!hash_parse(fingerprint, &print))
        return FAIL_IN(ST_PROTOCOL, name, "fingerprint \"%s\" is not 32 hex digits", fingerprint);
    if (d->have_fingerprint && !hash_equal(print, d->fingerprint))
        return FAIL_IN(ST_CONFIG, name,
                       "the images this worker (pid %lld on %s) decodes differ from those of the "
                       "workers already here; install the same libvips and libjpeg",
                       (long long)pid, host);
    bool local = strcmp(host, d->host) == 0 && local_is_child(d, (pid_t)pid);
    const bool ship = !local && json_bool(json_find(v, "ship"), false);
    if (ship && !d->c->data_ship)
        return FAIL_IN(
            ST_CONFIG, name,
            "worker (pid %lld on %s) without --data-root DIR: say where the images lie on "
            "its machine, or let the daemon send them (data.ship true)",
            (long long)pid, host);
    if (ship &&
        (d->c->video_file_bytes > FRAME_MAX_PAYLOAD || d->c->image_file_bytes > FRAME_MAX_PAYLOAD))
        return FAIL_IN(ST_CONFIG, name,
                       "data.ship: image.file_bytes and video.file_bytes may be at most %d, what a "
                       "message holds",
                       FRAME_MAX_PAYLOAD);
    worker_seat *old = local ? seat_of_pid(d, (pid_t)pid) : NULL;
    if (old)
        seat_gone(d, old, LOSS_OUTSIDE, "joined again");
    if (d->n_seats >= MAX_SEATS)
        return FAIL_IN(ST_UNAVAILABLE, name, "%d workers are here already", MAX_SEATS);
    const char *keeper = json_text(json_find(v, "keeper"), "");
    const json_value *before = json_find(v, "before");
    if (before && !local)
        TRY(bury(d, keeper, before, name));
    w = calloc(1, sizeof(*w));
    if (!w)
        return FAIL(ST_NO_MEMORY, "no memory for a worker");
    w->peer = *from;
    snprintf(w->keeper, sizeof(w->keeper), "%s", keeper);
    if (w->keeper[0] && d->kept_away > 0)
        d->kept_away--;
    w->pid = (pid_t)pid;
    w->local = local;
    w->ship = ship;
    w->fresh = true;
    w->joined_ns = w->heard_ns = w->since_ns = w->told_ns = clock_ns();
    snprintf(w->host, sizeof(w->host), "%s", host);
    status st = seat_send_terms(d, from);
    if (st != ST_OK) {
        free(w);
        return st;
    }
    d->fingerprint = print;
    d->have_fingerprint = true;
    d->retired_ns = 0;            /* here is a fresh one */
    worker_seat **at = &d->seats; /* at the end: the longest idle is served first */
    while (*at)
        at = &(*at)->next;
    *at = w;
    d->n_seats++;
    if (local)
        local_joined(d, w->pid);
    log_debug("worker joined pid=%lld host=%s local=%d", (long long)pid, host, local);
    return ST_OK;
}

static lease *end_work(dispatch *d, worker_seat *w)
{
    lease *l = w->work;
    w->work = NULL;
    w->shipped = 0;
    w->fresh = false;
    w->leases_done++;
    w->since_ns = clock_ns();
    d->answered_ns = w->since_ns;
    return l;
}

static status take_row(dispatch *d, worker_seat *w, const frame *head, wire_msg *m,
                       const char *name)
{
    if (!w->work)
        return ST_OK; /* late */
    if (w->work->kind != LEASE_ROW)
        return FAIL_IN(ST_PROTOCOL, name, "a row for a lease of another kind");
    if (head->row != w->work->row)
        return FAIL_IN(ST_PROTOCOL, name, "row %llu for a lease of row %llu",
                       (unsigned long long)head->row, (unsigned long long)w->work->row);
    if (wire_msg_parts(m) != 2 + (size_t)head->n_images)
        return FAIL_IN(ST_PROTOCOL, name, "row of %zu parts, its header says %u images",
                       wire_msg_parts(m), (unsigned)head->n_images);
    w->travel_ns = clock_ns() - w->leased_ns;
    w->row_bytes = (int64_t)wire_msg_bytes(m);
    lease *l = end_work(d, w);
    if (!l->owner)
        lease_free(&l); /* its consumer has gone */
    else if (lease_solo_item(l) >= 0)
        lease_solo_done(&d->book, l);
    else
        session_row(d, l->owner, l, m);
    return ST_OK;
}

/* Readable for us, as for local workers: then a worker that can not open it is at fault. */
static bool seen_by_us(const source *s, const char *file)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", s->data->v->root(s->data), file);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static void dismiss_if_blind(dispatch *d, worker_seat *w)
{
    if (w->missing_files < MISSING_LIMIT)
        return;
    log_warn("worker dismissed: %lld files that are there are missing for it pid=%d host=%s",
             (long long)w->missing_files, (int)w->pid, w->host);
    seat_retire(d, w, false);
}

/* Files of an index lease that this worker could not open and we can: the index must not depend on
 * who read for it. */
static int64_t missed_files(const worker_seat *w, const lease *l, const json_value *v)
{
    const json_value *list = json_find(v, "records");
    const int64_t solo = lease_solo_item(l), n = solo >= 0 ? 1 : l->n_items;
    const source *s = l->owner;
    int64_t missed = 0;
    if (w->local || w->ship || l->kind != LEASE_IMAGES) /* we read for it what is shipped */
        return 0;
    for (int64_t k = 0; k < n; k++) {
        image_place place;
        if (!json_find(json_item(list, (size_t)k), "missing"))
            continue;
        dataset_image_place(s->data, solo >= 0 ? solo : l->item[k], &place);
        missed += seen_by_us(s, place.path);
    }
    return missed;
}

static status take_records(dispatch *d, worker_seat *w, const frame *head, const json_value *v,
                           const char *name)
{
    lease *l = w->work;
    if (!l || head->row != l->number)
        return ST_OK; /* late */
    if (l->kind == LEASE_ROW)
        return FAIL_IN(ST_PROTOCOL, name, "index records for a lease of a row");
    bool solo = lease_solo_item(l) >= 0;
    const int64_t missed = missed_files(w, l, v);
    if (missed > 0) {
        w->missing_files += missed;
        end_work(d, w);
        lease_book_return(&d->book, l);
        dismiss_if_blind(d, w);
        return ST_OK;
    }
    TRY(index_build_take(d, l, v, name));
    end_work(d, w);
    if (solo && l->n_items > 0)
        lease_solo_done(&d->book, l);
    else
        lease_free(&l);
    return ST_OK;
}

/* Samples that could not be decoded. A file that only this worker misses is the worker's fault. */
static status take_failed(dispatch *d, worker_seat *w, const frame *head, const json_value *v,
                          const char *name)
{
    lease *l = w->work;
    const json_value *list;
    bool blamed = false;
    if (!l || head->row != l->number)
        return ST_OK; /* late */
    if (!l->owner) {  /* its consumer has gone */
        end_work(d, w);
        lease_free(&l);
        return ST_OK;
    }
    if (l->kind != LEASE_ROW)
        return FAIL_IN(ST_PROTOCOL, name, "failed samples for a lease of index records");
    TRY(json_want_array(v, "samples", name, &list));
    for (size_t i = 0; i < json_count(list); i++) {
        const json_value *f = json_item(list, i);
        int64_t id;
        const char *cause;
        bool ours = false;
        TRY(json_want_int(f, "id", name, &id));
        TRY(json_want_text(f, "cause", name, &cause));
        for (int64_t k = 0; k < l->n_items && !ours; k++)
            ours = l->item[k] == id;
        if (!ours)
            return FAIL_IN(ST_PROTOCOL, name, "failed sample %lld is not in the lease",
                           (long long)id);
        const char *missing = json_text(json_find(f, "missing"), NULL);
        if (missing && !w->local && !w->ship && seen_by_us(source_of(l), missing)) {
            w->missing_files++;
            continue;
        }
        blamed = true;
        seats_quarantine(d, source_of(l), id, cause);
    }
    end_work(d, w);
    if (lease_solo_item(l) >= 0)
        lease_solo_done(&d->book, l);
    else
        lease_book_return(&d->book, l);
    if (!blamed && w->missing_files == 0)
        return FAIL_IN(ST_PROTOCOL, name, "a failure that names no sample");
    dismiss_if_blind(d, w);
    return ST_OK;
}

static void take_on(dispatch *d, worker_seat *w, const frame *head, const json_value *v)
{
    const json_value *stages = json_find(v, "stage_ns"), *cache = json_find(v, "cache");
    for (int i = 0; cache && i < 2; i++) {
        const int64_t n = json_int(json_item(cache, (size_t)i), 0);
        d->counts.cached[i] += n > 0 && n < INT32_MAX ? (uint64_t)n : 0;
    }
    for (int i = 0; stages && i < N_STAGES; i++) {
        int64_t ns = json_int(json_item(stages, (size_t)i), 0);
        ns = ns > 0 && ns < INT64_MAX / 1024 ? ns : 0;
        d->counts.stage_ns[i] += ns;
        w->travel_ns -= ns; /* what is left once all are known is the link's */
    }
    if (stages && w->row_bytes > 0)
        press_link_saw(&w->link, w->row_bytes, w->travel_ns);
    w->row_bytes = 0;
    if (!w->work || head->row != w->work->number)
        return;
    w->since_ns = clock_ns();
    lease_on(w->work, json_int(json_find(v, "item"), -1));
}

/* Its work has begun: what it dies of from now on may be a sample's doing. */
static void begun(dispatch *d, worker_seat *w)
{
    w->begun = true;
    local_begun(d, w->local ? w->pid : 0);
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
        return w ? take_row(d, w, &head, m, name) : send_away(d, from);
    TRY(wire_read_json(m, name, &head, &v));
    status st = ST_OK;
    if (head.kind == KIND_JOIN)
        st = join(d, from, name, v);
    else if (!w)
        st = head.kind == KIND_RECORDS || head.kind == KIND_FAILED ? send_away(d, from) : ST_OK;
    else if (head.kind == KIND_ON)
        take_on(d, w, &head, v);
    else if (head.kind == KIND_RECORDS)
        st = take_records(d, w, &head, v, name);
    else if (head.kind == KIND_FAILED)
        st = take_failed(d, w, &head, v, name);
    else if (head.kind == KIND_BYE)
        seat_gone(d, w, LOSS_OUTSIDE, "left");
    else if (head.kind == KIND_ERROR)
        give_up(d, w, v, name);
    else
        st = FAIL_IN(ST_PROTOCOL, name, "a worker does not send %s", frame_kind_name(head.kind));
    json_free(&v);
    return st;
}

void seat_message(dispatch *d, const wire_peer *from, wire_msg *m)
{
    char name[WIRE_PEER_TEXT];
    wire_peer_print(from, name);
    status st = seat_handle(d, from, m, name);
    if (st == ST_OK || d->stopping)
        return;
    dispatch_refused(d, "worker");
    if (wire_send_error(d->workers, from, 0, st) != ST_OK)
        log_debug("it could not be told: %s", status_text());
    worker_seat *w = seat_of(d, from);
    if (w)
        seat_gone(d, w, LOSS_CRASH, "broke the protocol");
}
