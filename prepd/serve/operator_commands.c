/* operator_commands.c: status, scale and drain of the running daemon, as JSON over the control
 * endpoint.
 *
 *   {"command":"status"}  {"command":"scale","workers":N}  {"command":"drain"}
 *   {"command":"damaged","from":K}: which pictures of the train section were decoded with warnings
 * Answers are an object with "ok"; status holds the figures (prepd/README.md lists them). */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "common/base/proc.h"
#include "prepd/serve/dispatch_state.h"

#define PUT_INT(key, value)  (json_put_key(w, key), json_put_int(w, (int64_t)(value)))
#define PUT_REAL(key, value) (json_put_key(w, key), json_put_real(w, value))
#define PUT_TEXT(key, value) (json_put_key(w, key), json_put_cstr(w, value))

/* The whole list is in every row's cursor; an answer has a bounded size. */
enum { QUARANTINE_SHOWN = 1000 };

static void put_workers(const dispatch *d, int64_t now, json_writer *w)
{
    json_put_key(w, "workers");
    json_begin_array(w);
    for (const worker_seat *s = d->seats; s; s = s->next) {
        json_begin_object(w);
        PUT_INT("pid", s->pid);
        PUT_TEXT("host", s->host);
        json_put_key(w, "local");
        json_put_bool(w, s->local);
        json_put_key(w, "busy");
        json_put_bool(w, s->work != NULL);
        PUT_REAL("seconds", (double)(now - s->since_ns) / 1e9);
        json_put_key(w, "ship");
        json_put_bool(w, s->ship);
        PUT_INT("leases", s->leases_done);
        json_end_object(w);
    }
    json_end_array(w);
}

static void put_sessions(const dispatch *d, json_writer *w)
{
    json_put_key(w, "consumers");
    json_begin_array(w);
    for (const session *s = d->sessions; s; s = s->next) {
        json_begin_object(w);
        PUT_TEXT("stream", s->stream);
        PUT_INT("rank", s->rank);
        PUT_INT("ranks", s->ranks);
        PUT_INT("next_row", s->next_row);
        PUT_INT("rows_sent", s->rows_sent);
        PUT_INT("in_work", s->n_slots);
        PUT_INT("credit_bytes", s->credit);
        PUT_INT("unreturned_bytes", s->unreturned);
        PUT_INT("reserved_bytes", s->reserved);
        PUT_INT("quarantined", s->bad.n);
        if (s->welcomed) {
            const stream_place p = session_place(s);
            PUT_INT("epoch", p.epoch);
            PUT_REAL("epoch_share", p.share);
            PUT_REAL("epoch_seconds_left", p.seconds_left);
        }
        json_end_object(w);
    }
    json_end_array(w);
}

static void put_source(const source *s, json_writer *w)
{
    json_put_key(w, s->name);
    json_begin_object(w);
    PUT_TEXT("state", s->ready              ? "ready"
                      : s->opened           ? "building the index"
                      : source_waits_for(s) ? "waiting for an index that another prepd builds"
                      : s->opening          ? "being opened"
                                            : "not opened");
    PUT_TEXT("waits_for", source_waits_for(s) ? source_waits_for(s) : "");
    if (s->opened) {
        PUT_INT("samples", s->data->v->samples(s->data));
        PUT_INT("records_left", s->build.active ? s->build.left : 0);
    }
    PUT_INT("quarantined_count", s->bad.n);
    json_put_key(w, "quarantined");
    json_begin_array(w);
    for (int64_t i = 0; i < s->bad.n && i < QUARANTINE_SHOWN; i++) {
        json_begin_object(w);
        PUT_INT("id", s->bad.entry[i].sample);
        PUT_TEXT("cause", s->bad.entry[i].cause);
        json_end_object(w);
    }
    json_end_array(w);
    PUT_INT("damaged_count", s->damaged.n);
    json_put_key(w, "damaged");
    damage_put(s, 0, QUARANTINE_SHOWN, w);
    json_end_object(w);
}

/* All of them, a piece at a time: "next" is the number of those told so far. */
static status put_damaged(const dispatch *d, const json_value *v, const char *name, json_writer *w)
{
    int64_t from;
    TRY(json_want_int(v, "from", name, &from));
    json_put_key(w, "damaged");
    const int64_t next = damage_put(&d->train, from, QUARANTINE_SHOWN, w);
    PUT_INT("next", next);
    PUT_INT("count", d->train.damaged.n);
    return ST_OK;
}

static void put_status(const dispatch *d, json_writer *w)
{
    const serve_counts *k = &d->counts;
    int64_t now = clock_ns();
    PUT_TEXT("version", TESSERA_VERSION);
    PUT_INT("pid", getpid());
    PUT_TEXT("endpoint", d->c->prepd_endpoint);
    PUT_TEXT("build", d->build);
    fingerprints_put(&d->prints, w);
    PUT_REAL("seconds", (double)(now - d->started_ns) / 1e9);
    PUT_INT("rss_bytes", proc_rss_bytes());
    json_put_key(w, "draining");
    json_put_bool(w, d->draining);
    PUT_INT("rows", k->rows);
    PUT_INT("samples", k->samples);
    PUT_INT("bytes", k->bytes);
    PUT_INT("leases_pressed", k->pressed);
    PUT_REAL("rows_per_s", k->rows_per_s);
    PUT_REAL("samples_per_s", k->samples_per_s);
    PUT_REAL("longest_turn_seconds", (double)k->longest_turn_ns / 1e9);
    PUT_INT("shipped_bytes", k->shipped);
    PUT_INT("leases_ahead", k->leases_ahead);
    PUT_INT("leases_lost", k->leases_lost);
    PUT_INT("lost_by_crash", k->crashes);
    PUT_INT("lost_by_timeout", k->timeouts);
    PUT_INT("lost_from_outside", k->outside);
    PUT_INT("lost_by_breach", k->breaches);
    PUT_INT("leases_waiting", lease_book_waiting(&d->book));
    PUT_INT("refused_messages", d->peers.refused);
    PUT_INT("refused_keys", d->peers.refused_keys);
    PUT_INT("keepers", d->n_keepers);
    PUT_INT("workers_target", d->local.target);
    PUT_INT("workers_alive", local_alive(d));
    PUT_INT("workers_replaced", d->local.respawned);
    json_put_key(w, "cache");
    json_begin_object(w);
    PUT_INT("hits", k->cached[0]);
    PUT_INT("misses", k->cached[1]);
    json_end_object(w);
    json_put_key(w, "stage_seconds");
    json_begin_object(w);
    for (int i = 0; i < N_STAGES; i++)
        PUT_REAL(stage_names[i], (double)k->stage_ns[i] / 1e9);
    json_end_object(w);
    put_workers(d, now, w);
    put_sessions(d, w);
    put_source(&d->train, w);
    put_source(&d->eval, w);
}

static status command(dispatch *d, const json_value *v, const char *name, json_writer *w)
{
    const char *what;
    TRY(json_want_text(v, "command", name, &what));
    if (strcmp(what, "status") == 0) {
        put_status(d, w);
    } else if (strcmp(what, "scale") == 0) {
        int64_t n;
        TRY(json_want_int(v, "workers", name, &n));
        if (n < 0 || n > MAX_LOCAL)
            return FAIL(ST_USAGE, "%lld workers, expected 0 to %d", (long long)n, MAX_LOCAL);
        log_info("scaled workers=%lld were=%d", (long long)n, d->local.target);
        local_scale(d, (int)n);
        PUT_INT("workers_target", n);
    } else if (strcmp(what, "drain") == 0) {
        log_info("draining");
        d->draining = true;
    } else if (strcmp(what, "damaged") == 0) {
        TRY(put_damaged(d, v, name, w));
    } else {
        return FAIL(ST_USAGE, "command \"%s\", expected status, scale, drain or damaged", what);
    }
    return ST_OK;
}

static status answer(dispatch *d, const wire_peer *from, wire_msg *m, const char *name)
{
    frame head;
    json_value *v = NULL;
    char *text = NULL;
    size_t size;
    json_writer w;
    TRY(wire_read_json(m, name, &head, &v));
    json_writer_init(&w);
    json_begin_object(&w);
    json_put_key(&w, "ok");
    json_put_bool(&w, true);
    status st = head.kind == KIND_COMMAND
                    ? command(d, v, name, &w)
                    : FAIL_IN(ST_PROTOCOL, name, "%s on the control endpoint, expected command",
                              frame_kind_name(head.kind));
    json_end_object(&w);
    if (st == ST_OK)
        st = json_writer_take(&w, &text, &size);
    if (st == ST_OK)
        st = wire_send_json(d->control, from, KIND_ANSWER, head.row, text, size);
    free(text);
    json_writer_done(&w);
    json_free(&v);
    return st;
}

void control_message(dispatch *d, const wire_peer *from, wire_msg *m)
{
    char name[WIRE_PEER_TEXT];
    wire_peer_print(from, name);
    status st = answer(d, from, m, name);
    if (st == ST_OK)
        return;
    peers_refuse(&d->peers, d->control, from, "command", st);
}
