/* operator_commands.c: the commands of an operator to the running daemon, as JSON over the control
 * endpoint.
 *
 *   {"command":"status"}
 *   {"command":"scale","workers":N}
 *   {"command":"drain"}
 *   {"command":"damaged","from":K}   pictures of the train section that decoded with warnings
 *
 * An answer is an object with "ok":true; that of status has the daemon's figures. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "common/base/proc.h"
#include "prepd/serve/dispatch_state.h"

/* An answer has a bounded size, so it shows only the first entries. The whole list is in every
 * row's cursor. */
enum { QUARANTINE_SHOWN = 1000 };

static void put_workers(const dispatch *d, int64_t now, json_writer *w)
{
    json_begin_key_array(w, "workers");
    for (const worker_seat *s = d->seats; s; s = s->next) {
        json_begin_object(w);
        json_put_key_int(w, "pid", s->pid);
        json_put_key_cstr(w, "host", s->host);
        json_put_key_bool(w, "local", s->local);
        json_put_key_bool(w, "busy", s->work != NULL);
        json_put_key_real(w, "seconds", (double)(now - s->since_ns) / 1e9);
        json_put_key_bool(w, "ship", s->ship);
        json_put_key_int(w, "leases", s->leases_done);
        json_end_object(w);
    }
    json_end_array(w);
}

static void put_sessions(const dispatch *d, json_writer *w)
{
    json_begin_key_array(w, "consumers");
    for (const consumer_seat *consumer = d->consumer_seats; consumer; consumer = consumer->next) {
        json_begin_object(w);
        json_put_key_cstr(w, "stream", consumer->stream);
        json_put_key_int(w, "rank", consumer->rank);
        json_put_key_int(w, "ranks", consumer->ranks);
        json_put_key_int(w, "next_row", consumer->next_row);
        json_put_key_int(w, "rows_sent", consumer->rows_sent);
        json_put_key_int(w, "in_work", consumer->n_slots);
        json_put_key_int(w, "credit_bytes", consumer->credit);
        json_put_key_int(w, "unreturned_bytes", consumer->unreturned);
        json_put_key_int(w, "reserved_bytes", consumer->reserved);
        json_put_key_int(w, "quarantined", consumer->bad.n_entries);
        if (consumer->welcomed) {
            const stream_place p = consumer_place(consumer);
            json_put_key_int(w, "epoch", p.epoch);
            json_put_key_real(w, "epoch_share", p.share);
            json_put_key_real(w, "epoch_seconds_left", p.seconds_left);
        }
        json_end_object(w);
    }
    json_end_array(w);
}

static void put_source(const source *section, json_writer *w)
{
    json_begin_key_object(w, section->name);
    json_put_key_cstr(w, "state",
                      section->ready              ? "ready"
                      : section->opened           ? "building the index"
                      : source_waits_for(section) ? "waiting for an index that another prepd builds"
                      : section->opening          ? "being opened"
                                                  : "not opened");
    json_put_key_cstr(w, "waits_for", source_waits_for(section) ? source_waits_for(section) : "");
    if (section->opened) {
        json_put_key_int(w, "samples", section->data->adapter->samples(section->data));
        json_put_key_int(w, "records_left", section->build.active ? section->build.left : 0);
    }
    json_put_key_int(w, "quarantined_count", section->bad.n_entries);
    json_begin_key_array(w, "quarantined");
    for (int64_t i = 0; i < section->bad.n_entries && i < QUARANTINE_SHOWN; i++) {
        json_begin_object(w);
        json_put_key_int(w, "id", section->bad.entry[i].sample);
        json_put_key_cstr(w, "cause", section->bad.entry[i].cause);
        json_end_object(w);
    }
    json_end_array(w);
    json_put_key_int(w, "damaged_count", section->damaged.n_entries);
    json_put_key(w, "damaged");
    damage_put(section, 0, QUARANTINE_SHOWN, w);
    json_end_object(w);
}

/* Answers with one piece of the list of damaged pictures. "next" is where the next piece begins. */
static status put_damaged(const dispatch *d, const json_value *said, const char *name,
                          json_writer *w)
{
    int64_t from;
    TRY(json_want_int(said, "from", name, &from));
    json_put_key(w, "damaged");
    const int64_t next = damage_put(&d->train, from, QUARANTINE_SHOWN, w);
    json_put_key_int(w, "next", next);
    json_put_key_int(w, "count", d->train.damaged.n_entries);
    return ST_OK;
}

static void put_status(const dispatch *d, json_writer *w)
{
    const serve_counts *k = &d->counts;
    int64_t now = clock_ns();
    json_put_key_cstr(w, "version", TESSERA_VERSION);
    json_put_key_int(w, "pid", getpid());
    json_put_key_cstr(w, "endpoint", d->options->prepd_endpoint);
    json_put_key_cstr(w, "build", d->build);
    fingerprints_put(&d->fingerprints, w);
    json_put_key_real(w, "seconds", (double)(now - d->started_ns) / 1e9);
    json_put_key_int(w, "rss_bytes", proc_rss_bytes());
    json_put_key_bool(w, "draining", d->draining);
    json_put_key_int(w, "rows", k->rows);
    json_put_key_int(w, "samples", k->samples);
    json_put_key_int(w, "bytes", k->bytes);
    json_put_key_int(w, "leases_pressed", k->pressed);
    json_put_key_real(w, "rows_per_s", k->rows_per_s);
    json_put_key_real(w, "samples_per_s", k->samples_per_s);
    json_put_key_real(w, "longest_turn_seconds", (double)k->longest_turn_ns / 1e9);
    json_put_key_int(w, "shipped_bytes", k->shipped);
    json_put_key_int(w, "leases_ahead", k->leases_ahead);
    json_put_key_int(w, "leases_lost", k->leases_lost);
    json_put_key_int(w, "lost_by_crash", k->crashes);
    json_put_key_int(w, "lost_by_timeout", k->timeouts);
    json_put_key_int(w, "lost_from_outside", k->outside);
    json_put_key_int(w, "lost_by_breach", k->breaches);
    json_put_key_int(w, "leases_waiting", lease_book_waiting(&d->book));
    json_put_key_int(w, "refused_messages", d->peer_limits.refused);
    json_put_key_int(w, "refused_keys", d->peer_limits.refused_keys);
    json_put_key_int(w, "supervisors", d->n_supervisors);
    json_put_key_int(w, "workers_target", d->local.target);
    json_put_key_int(w, "workers_alive", local_alive(d));
    json_put_key_int(w, "workers_replaced", d->local.respawned);
    json_begin_key_object(w, "cache");
    json_put_key_int(w, "hits", k->cached[0]);
    json_put_key_int(w, "misses", k->cached[1]);
    json_end_object(w);
    json_begin_key_object(w, "stage_seconds");
    for (int i = 0; i < N_STAGES; i++)
        json_put_key_real(w, stage_names[i], (double)k->stage_ns[i] / 1e9);
    json_end_object(w);
    put_workers(d, now, w);
    put_sessions(d, w);
    put_source(&d->train, w);
    put_source(&d->eval, w);
}

static status command(dispatch *d, const json_value *said, const char *name, json_writer *w)
{
    const char *what;
    TRY(json_want_text(said, "command", name, &what));
    if (strcmp(what, "status") == 0) {
        put_status(d, w);
    } else if (strcmp(what, "scale") == 0) {
        int64_t n;
        TRY(json_want_int(said, "workers", name, &n));
        if (n < 0 || n > MAX_LOCAL)
            return FAIL(ST_USAGE, "cannot run %lld workers; expected 0 to %d", (long long)n,
                        MAX_LOCAL);
        log_info("scaled workers=%lld were=%d", (long long)n, d->local.target);
        local_scale(d, (int)n);
        json_put_key_int(w, "workers_target", n);
    } else if (strcmp(what, "drain") == 0) {
        log_info("draining");
        d->draining = true;
    } else if (strcmp(what, "damaged") == 0) {
        TRY(put_damaged(d, said, name, w));
    } else {
        return FAIL(ST_USAGE, "unknown command \"%s\"; expected status, scale, drain or damaged",
                    what);
    }
    return ST_OK;
}

static status answer_command(dispatch *d, const wire_peer *from, wire_msg *message,
                             const char *name)
{
    frame head;
    json_value *said = NULL;
    char *text = NULL;
    size_t size;
    json_writer w;
    TRY(wire_read_json(message, name, &head, &said));
    json_writer_init(&w);
    json_begin_object(&w);
    json_put_key_bool(&w, "ok", true);
    status st =
        head.kind == KIND_COMMAND
            ? command(d, said, name, &w)
            : FAIL_IN(ST_PROTOCOL, name, "the control endpoint received %s; it takes command only",
                      frame_kind_name(head.kind));
    json_end_object(&w);
    if (st == ST_OK)
        st = json_writer_take(&w, &text, &size);
    if (st == ST_OK)
        st = wire_send_json(d->control, from, KIND_ANSWER, head.row, text, size);
    free(text);
    json_writer_done(&w);
    json_free(&said);
    return st;
}

void control_message(dispatch *d, const wire_peer *from, wire_msg *message)
{
    char name[WIRE_PEER_TEXT];
    wire_peer_print(from, name);
    status st = answer_command(d, from, message, name);
    if (st == ST_OK)
        return;
    peer_limits_refuse(&d->peer_limits, d->control, from, "command", st);
}
