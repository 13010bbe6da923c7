/* SPDX-License-Identifier: Apache-2.0 */
/* operator_commands.c: the commands of an operator to the running daemon, as JSON over the control
 * endpoint.
 *
 *   {"command":"status"}
 *   {"command":"scale","workers":N}
 *   {"command":"drain"}
 *   {"command":"admit","name":NAME}   lifts what holds against a key, or an address
 *   {"command":"damaged","from":K}   pictures of the train section that decoded with warnings
 *
 * An answer is an object with "ok":true; that of status has the daemon's figures. Who may send
 * which is said by the roles of the peer (wire_role). */
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/rows/core_rows.h"
#include "prepd/serve/core/consumers/core_consumers.h"
#include "prepd/serve/core/workers/core_workers.h"
#include "prepd/serve/core/decisions/core_decisions.h"
#include "prepd/serve/core/turn/operator_commands.h"

/* An answer has a bounded size, so it shows only the first entries. The whole list is in every
 * row's cursor. */
enum { QUARANTINE_SHOWN = 1000 };

static void put_workers(const dispatch *state, int64_t now, json_writer *writer)
{
    json_begin_key_array(writer, "workers");
    for (const worker_seat *seat = state->seats; seat; seat = seat->next) {
        json_begin_object(writer);
        json_put_key_int(writer, "pid", seat->pid);
        json_put_key_cstr(writer, "host", seat->host);
        json_put_key_cstr(writer, "build", seat->build);
        json_put_key_bool(writer, "local", seat->local);
        json_put_key_bool(writer, "decider", seat->decider);
        json_put_key_cstr(writer, "key", seat->of ? seat->of->name : "");
        json_put_key_bool(writer, "busy", seat->work != NULL);
        json_put_key_real(writer, "seconds", (double)(now - seat->since_ns) / 1e9);
        json_put_key_bool(writer, "ship", seat->ship);
        json_put_key_int(writer, "leases", seat->leases_done);
        json_end_object(writer);
    }
    json_end_array(writer);
}

static void put_sessions(const dispatch *state, json_writer *writer)
{
    json_begin_key_array(writer, "consumers");
    for (const consumer_seat *consumer = state->consumer_seats; consumer;
         consumer = consumer->next) {
        json_begin_object(writer);
        json_put_key_cstr(writer, "stream", consumer->stream);
        json_put_key_int(writer, "rank", consumer->rank);
        json_put_key_int(writer, "ranks", consumer->ranks);
        json_put_key_int(writer, "next_row", consumer->next_row);
        json_put_key_int(writer, "rows_sent", consumer->rows_sent);
        json_put_key_int(writer, "in_work", consumer->n_slots);
        json_put_key_int(writer, "credit_bytes", consumer->credit);
        json_put_key_int(writer, "unreturned_bytes", consumer->unreturned);
        json_put_key_int(writer, "reserved_bytes", consumer->reserved);
        json_put_key_int(writer, "known_bad", consumer->known ? consumer->known->bad.n : 0);
        if (consumer->welcomed) {
            const stream_place place = consumer_place(consumer);
            json_put_key_int(writer, "epoch", place.epoch);
            json_put_key_real(writer, "epoch_share", place.share);
            json_put_key_real(writer, "epoch_seconds_left", place.seconds_left);
        }
        json_end_object(writer);
    }
    json_end_array(writer);
}

static void put_source(const dispatch *state, const source *section, json_writer *writer)
{
    json_begin_key_object(writer, section->name);
    json_put_key_cstr(writer, "state",
                      section->ready       ? "ready"
                      : section->opened    ? "building the index"
                      : section->waits_for ? "waiting for an index that another prepd builds"
                      : section->opening   ? "being opened"
                                           : "not opened");
    json_put_key_cstr(writer, "waits_for", section->waits_for ? section->waits_for : "");
    if (section->opened) {
        json_put_key_int(writer, "samples", section->data->adapter->samples(section->data));
        json_put_key_int(writer, "records_left", section->build.active ? section->build.left : 0);
    }
    json_put_key_int(writer, "quarantined_count", section->bad.n);
    json_begin_key_array(writer, "quarantined");
    for (int64_t i = 0; i < section->bad.n && i < QUARANTINE_SHOWN; i++) {
        json_begin_object(writer);
        json_put_key_int(writer, "id", section->bad.id[i]);
        json_put_key_cstr(writer, "cause", section->bad.cause[i]);
        json_end_object(writer);
    }
    json_end_array(writer);
    json_put_key_cstr(writer, "quarantine_warning",
                      known_most(state, section) < BAD_SAMPLES_WARN
                          ? ""
                          : "the quarantine is nearly full: " BAD_SAMPLES_MEND
                            ", or the run cannot be resumed");
    json_put_key_int(writer, "damaged_count", section->damaged.n);
    json_put_key(writer, "damaged");
    damage_put(section, 0, QUARANTINE_SHOWN, writer);
    json_end_object(writer);
}

/* Answers with one piece of the list of damaged pictures. "next" is where the next piece begins. */
static status put_damaged(const dispatch *state, const json_value *said, const char *name,
                          json_writer *writer)
{
    int64_t from;
    TRY(json_want_int(said, "from", name, &from));
    json_put_key(writer, "damaged");
    const int64_t next = damage_put(&state->train, from, QUARANTINE_SHOWN, writer);
    json_put_key_int(writer, "next", next);
    json_put_key_int(writer, "count", state->train.damaged.n);
    return ST_OK;
}

/* Writes the keys for which `until` or `watched` says something, with what it says. */
static void put_keys(const dispatch *state, const char *member, bool excluded, json_writer *writer)
{
    const int64_t now = state->now_ns;
    json_begin_key_array(writer, member);
    for (int i = 0; i < state->accounts.used; i++) {
        const account *held = state->accounts.of[i];
        if (excluded ? !account_is_excluded(held, now) : held->watched == 0)
            continue;
        json_begin_object(writer);
        json_put_key_cstr(writer, "key", held->name);
        if (excluded) {
            json_put_key_real(writer, "seconds", (double)(held->excluded.until_ns - now) / 1e9);
            json_put_key_cstr(writer, "why", held->why);
        } else {
            json_put_key_int(writer, "rows", held->watched);
        }
        json_end_object(writer);
    }
    json_end_array(writer);
}

/* What waits for a decider where none is here; "" if nothing does. */
static const char *waits_for_decider(const dispatch *state)
{
    for (const lease *leased = state->book.lost; leased; leased = leased->next)
        if (lease_needs_decider(leased) && !decider_can_take(state, leased))
            return leased->kind != LEASE_ROW ? "the index waits for a worker of this machine"
                   : leased->doubt ? "rows wait for a worker of this machine to check them"
                   : leased->failures || leased->solo
                       ? "samples wait for a worker of this machine to try them alone"
                       : "rows wait for a worker of this machine to make them";
    return "";
}

/* Whom the daemon believes, and whom not. */
static void put_trust(const dispatch *state, json_writer *writer)
{
    int deciders = 0;
    for (const worker_seat *seat = state->seats; seat; seat = seat->next)
        deciders += seat->decider && seat_can_work(seat);
    json_put_key_int(writer, "deciders", deciders);
    put_keys(state, "excluded", true, writer);
    put_keys(state, "watched", false, writer);
    json_put_key_int(writer, "doubts_waiting", doubts_waiting(state));
    json_put_key_cstr(writer, "waits_for_decider", waits_for_decider(state));
    json_put_key_int(writer, "alarms", state->alarm.count);
    json_put_key_cstr(writer, "alarm", state->alarm.why);
    json_put_key_real(writer, "alarm_seconds_ago",
                      state->alarm.count ? (double)(state->now_ns - state->alarm.at_ns) / 1e9 : -1);
}

static void put_status(const dispatch *state, json_writer *writer)
{
    const serve_counts *counts = &state->counts;
    int64_t now = state->now_ns;
    json_put_key_cstr(writer, "version", TESSERA_VERSION);
    json_put_key_int(writer, "pid", state->place.pid);
    json_put_key_cstr(writer, "endpoint", state->options->prepd_endpoint);
    json_put_key_cstr(writer, "ranks", state->options->prepd_ranks);
    json_put_key_cstr(writer, "build", state->place.build);
    fingerprints_put(&state->fingerprints, writer);
    json_put_key_real(writer, "seconds", (double)(now - state->started_ns) / 1e9);
    json_put_key_int(writer, "rss_bytes", state->outside.memory_bytes(state->outside.shell));
    json_put_key_bool(writer, "draining", state->draining);
    json_put_key_int(writer, "rows", counts->rows);
    json_put_key_int(writer, "samples", counts->samples);
    json_put_key_int(writer, "bytes", counts->bytes);
    json_put_key_int(writer, "leases_pressed", counts->pressed);
    json_put_key_real(writer, "rows_per_s", counts->rows_per_s);
    json_put_key_real(writer, "samples_per_s", counts->samples_per_s);
    json_put_key_real(writer, "longest_turn_seconds", (double)counts->longest_turn_ns / 1e9);
    json_put_key_int(writer, "shipped_bytes", counts->shipped);
    json_put_key_int(writer, "leases_ahead", counts->leases_ahead);
    json_put_key_int(writer, "leases_lost", counts->leases_lost);
    json_put_key_int(writer, "lost_by_crash", counts->crashes);
    json_put_key_int(writer, "lost_by_timeout", counts->timeouts);
    json_put_key_int(writer, "lost_from_outside", counts->outside);
    json_put_key_int(writer, "lost_by_breach", counts->breaches);
    json_put_key_int(writer, "rows_checked", counts->checked);
    json_put_key_int(writer, "rows_unchecked", counts->unchecked);
    json_put_key_int(writer, "words_contradicted", counts->contradicted);
    json_put_key_int(writer, "leases_taken", counts->taken);
    json_put_key_int(writer, "joins_deferred", counts->joins_deferred);
    put_trust(state, writer);
    json_put_key_int(writer, "leases_waiting", lease_book_waiting(&state->book));
    json_put_key_int(writer, "refused_messages", state->peer_limits.refused);
    json_put_key_int(writer, "refused_keys", state->peer_limits.refused_keys);
    json_put_key_int(writer, "supervisors", state->n_supervisors);
    json_put_key_int(writer, "workers_target", state->local.target);
    json_put_key_int(writer, "workers_alive", local_alive(state));
    json_put_key_int(writer, "workers_replaced", state->local.respawned);
    json_begin_key_object(writer, "cache");
    json_put_key_int(writer, "hits", counts->cached[0]);
    json_put_key_int(writer, "misses", counts->cached[1]);
    json_end_object(writer);
    json_begin_key_object(writer, "stage_seconds");
    for (int i = 0; i < N_STAGES; i++)
        json_put_key_real(writer, stage_names[i], (double)counts->stage_ns[i] / 1e9);
    json_end_object(writer);
    put_workers(state, now, writer);
    put_sessions(state, writer);
    put_source(state, &state->train, writer);
    put_source(state, &state->eval, writer);
}

static status admit(dispatch *state, const json_value *said, const char *name, json_writer *writer)
{
    const char *key, *was;
    TRY(json_want_text(said, "name", name, &key));
    const int count = accounts_admit(&state->accounts, key, state->now_ns, &was);
    if (count == 0)
        return FAIL(ST_USAGE,
                    "no key or address \"%s\" has been here; prepd status lists those that are "
                    "excluded or watched",
                    key);
    core_info(state, "key admitted name=\"%s\"", key);
    json_put_key_cstr(writer, "was", was);
    return ST_OK;
}

static status command(dispatch *state, const wire_peer *from, const json_value *said,
                      const char *name, json_writer *writer)
{
    const char *what;
    TRY(json_want_text(said, "command", name, &what));
    const bool asks = strcmp(what, "status") == 0 || strcmp(what, "damaged") == 0;
    TRY(wire_may(from, asks ? WIRE_STATUS : WIRE_CONTROL, name));
    if (strcmp(what, "status") == 0) {
        put_status(state, writer);
    } else if (strcmp(what, "scale") == 0) {
        int64_t count;
        TRY(json_want_int(said, "workers", name, &count));
        if (count < 0 || count > MAX_LOCAL)
            return FAIL(ST_USAGE, "cannot run %lld workers; expected 0 to %d", (long long)count,
                        MAX_LOCAL);
        core_info(state, "scaled workers=%lld were=%d", (long long)count, state->local.target);
        local_scale(state, (int)count);
        json_put_key_int(writer, "workers_target", count);
    } else if (strcmp(what, "drain") == 0) {
        core_info(state, "draining");
        state->draining = true;
    } else if (strcmp(what, "admit") == 0) {
        TRY(admit(state, said, name, writer));
    } else if (strcmp(what, "damaged") == 0) {
        TRY(put_damaged(state, said, name, writer));
    } else {
        return FAIL(ST_USAGE,
                    "unknown command \"%s\"; expected status, scale, drain, admit or damaged",
                    what);
    }
    return ST_OK;
}

status operator_command(dispatch *state, const wire_peer *from, const wire_msg *message,
                        const char *name)
{
    frame head;
    json_value *said = NULL;
    json_writer writer;
    TRY(wire_read_json(message, name, &head, &said));
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_bool(&writer, "ok", true);
    status st =
        head.kind == KIND_COMMAND
            ? command(state, from, said, name, &writer)
            : FAIL_IN(ST_PROTOCOL, name, "the control endpoint received %s; it takes command only",
                      frame_kind_name(head.kind));
    json_end_object(&writer);
    json_free(&said);
    if (st == ST_OK)
        return outside_send_writer(&state->outside, DOOR_CONTROL, from, KIND_ANSWER, head.row,
                                   &writer);
    json_writer_done(&writer);
    return st;
}
