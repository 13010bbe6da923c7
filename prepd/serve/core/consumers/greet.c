/* SPDX-License-Identifier: Apache-2.0 */
/* greet.c: HELLO and WELCOME: which stream a consumer may have, and from which row on.
 *
 * A HELLO is checked and kept until its data section is open and indexed. Then its cursor is
 * compared with the index, the plan is made as far as WELCOME needs it, and WELCOME is sent. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/state/hello.h"
#include "prepd/serve/core/rows/core_rows.h"
#include "prepd/serve/core/consumers/core_consumers.h"

enum {
    SHORT_CURSOR = 1 << 16, /* a cursor up to this size is not counted */
    CROWD = 256,            /* so many consumers are always let in */
};
/* How far into a stream without end a consumer may begin.
 * All rows before that are planned first. */
#define BEGIN_AGAIN                                                                                \
    "raise data.generation: the run keeps its weights and reads the changed data from their "      \
    "first row"
enum { MAX_EPOCHS_AHEAD = 1000, MAX_ROWS_AHEAD = 1 << 20 };

/* Checks that the cursor's rows were packed by the rules of this consumer's plan. */
static status check_packing(const consumer_seat *consumer, const json_value *cursor,
                            const char *name)
{
    const int ours = plan_version(&consumer->src->options);
    int64_t packing;
    TRY(json_want_int(cursor, "plan", name, &packing));
    if (packing == ours)
        return ST_OK;
    return FAIL_IN(
        ST_CONFIG, name,
        "the cursor belongs to rows packed by version %lld, but this prepd packs them by "
        "version %d. Resume with the prepd that made it, or " BEGIN_AGAIN,
        (long long)packing, ours);
}

/* Takes from the cursor where its epoch begins. */
static status take_begin(consumer_seat *consumer, const json_value *begin, const char *name)
{
    int64_t epoch, row;
    TRY(json_want_int(begin, "epoch", name, &epoch));
    TRY(json_want_int(begin, "row", name, &row));
    const int64_t batch = consumer->src->options.training_global_batch_size,
                  next = (int64_t)consumer->next_row;
    if (epoch < 0 || row < 0 || row > next - next % batch)
        return FAIL_IN(ST_PROTOCOL, name,
                       "the cursor is impossible: it resumes at row %lld, and its epoch %lld "
                       "begins at row %lld",
                       (long long)next, (long long)epoch, (long long)row);
    return plan_from(consumer->plan, (uint64_t)epoch, (uint64_t)row, &consumer->from);
}

enum { WEIGHT_TEXT = 32 };

static void weight_words(double weight, char out[WEIGHT_TEXT])
{
    if (weight > 0)
        snprintf(out, WEIGHT_TEXT, "%g", weight);
    else
        snprintf(out, WEIGHT_TEXT, "none");
}

/* Refuses a cursor of the same records mixed by other weights, and names the first source whose
 * weight differs: such a stream has other samples in other places. OK if that is not what is wrong.
 */
static status check_weights(const source *section, const json_value *cursor, const char *name)
{
    const dataset_part *parts = NULL;
    const int count =
        section->data->adapter->parts ? section->data->adapter->parts(section->data, &parts) : 0;
    const json_value *weights = json_find(cursor, "weights");
    const char *contents = json_text(json_find(cursor, "contents"), "");
    char ours[HASH_TEXT], was[WEIGHT_TEXT], is[WEIGHT_TEXT];
    hash_print(index_contents(section->index), ours);
    for (int k = 0; k < count && weights && strcmp(contents, ours) == 0; k++) {
        const double weight = json_real(json_find(weights, parts[k].name), 0);
        if (weight == parts[k].weight)
            continue;
        weight_words(weight, was);
        weight_words(parts[k].weight, is);
        return FAIL_IN(
            ST_CONFIG, name,
            "the cursor belongs to a mixture in which source %s has weight %s, but in %s it has "
            "%s: "
            "further rows would repeat some samples and leave out others. Set the weight back, "
            "or " BEGIN_AGAIN,
            parts[k].name, was, section->options.data_path, is);
    }
    return ST_OK;
}

static status take_cursor(consumer_seat *consumer, const json_value *cursor, const char *name)
{
    char ours[HASH_TEXT];
    const char *theirs;
    int64_t row;
    const int64_t generation = json_int(json_find(cursor, "generation"), 0);
    hash_print(index_digest(consumer->src->index), ours);
    if (generation != consumer->src->options.data_generation)
        return FAIL_IN(ST_CONFIG, name,
                       "the cursor belongs to data.generation %" PRId64 ", but this daemon serves "
                       "generation %" PRId64 ": start another generation without a cursor",
                       generation, consumer->src->options.data_generation);
    TRY(json_want_text(cursor, "index", name, &theirs));
    TRY(json_want_int(cursor, "row", name, &row));
    if (strcmp(ours, theirs) != 0) {
        TRY(check_weights(consumer->src, cursor, name));
        return FAIL_IN(
            ST_CONFIG, name,
            "the cursor belongs to index %s, but the data set here has index %s: files or "
            "options have changed since the checkpoint. Restore them, or " BEGIN_AGAIN,
            theirs, ours);
    }
    TRY(fingerprints_check_cursor(consumer->src, cursor, name));
    if (row < 0)
        return FAIL_IN(ST_PROTOCOL, name, "the cursor has the impossible row %lld", (long long)row);
    if (consumer->kind != PLAN_SAMPLES)
        TRY(check_packing(consumer, cursor, name));
    consumer->next_row = (uint64_t)row;
    return consumer->kind == PLAN_SAMPLES ? ST_OK
                                          : take_begin(consumer, json_find(cursor, "begin"), name);
}

/* Refuses a consumer for which the buffer has no room. Each may have one row under way whatever its
 * share is, so many consumers need a buffer for many rows. */
static status check_crowd(const dispatch *state, const consumer_seat *consumer, const char *name)
{
    const int64_t row = consumer_row_bytes(&consumer->src->options),
                  most = state->options->prepd_buffer_bytes / row;
    if (state->n_consumers < CROWD || state->n_consumers < most)
        return ST_OK;
    return FAIL_IN(
        ST_UNAVAILABLE, name,
        "%d consumers are here already, and prepd.buffer_bytes (%lld) holds a row of %lld bytes "
        "for no more than %lld of them",
        state->n_consumers, (long long)state->options->prepd_buffer_bytes, (long long)row,
        (long long)most);
}

static status check_row(const consumer_seat *consumer, const char *name)
{
    const uint64_t epoch = plan_epoch_rows(consumer->plan);
    const uint64_t ahead = consumer->next_row - plan_first_row(consumer->from);
    if (!plan_endless(consumer->plan) || ahead <= MAX_ROWS_AHEAD ||
        ahead / epoch <= MAX_EPOCHS_AHEAD)
        return ST_OK;
    return FAIL_IN(
        ST_PROTOCOL, name,
        "row %llu is more than %d epochs of %llu rows ahead; set training.epochs for a stream "
        "that long",
        (unsigned long long)consumer->next_row, MAX_EPOCHS_AHEAD, (unsigned long long)epoch);
}

static void put_buckets(json_writer *writer, const plan *planned)
{
    int count;
    const shape_bucket *bound = plan_buckets(planned, &count);
    json_begin_key_array(writer, "buckets");
    for (int i = 0; i < count; i++) {
        const struct {
            const char *name;
            int64_t value;
        } member[] = {{"tokens", bound[i].tokens},   {"patches", bound[i].patches},
                      {"targets", bound[i].targets}, {"documents", bound[i].documents},
                      {"longest", bound[i].longest}, {"images", bound[i].images},
                      {"frames", bound[i].frames},   {"frame", bound[i].frame},
                      {"rows", bound[i].rows}};
        json_begin_object(writer);
        for (size_t k = 0; k < sizeof(member) / sizeof(*member); k++)
            json_put_key_int(writer, member[k].name, member[k].value);
        json_end_object(writer);
    }
    json_end_array(writer);
}

/* Adds the plan's report for people.
 * It may take long, so only a command that waits for it gets it. */
static status put_report(const consumer_seat *consumer, json_writer *writer)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    if (!file)
        return FAIL(ST_NO_MEMORY, "no memory for a report");
    status st = plan_report(consumer->plan, file);
    if (fclose(file) != 0 && st == ST_OK)
        st = FAIL(ST_NO_MEMORY, "no memory for a report");
    if (st == ST_OK) {
        json_put_key_text(writer, "report", text, size);
        json_put_key_int(writer, "planning_ns", consumer->src->plans[consumer->kind].spent_ns);
    }
    free(text);
    return st;
}

/* Whether rows of the consumer's stream may have prefixes. In the sample stream every sample has a
 * row of its own. */
static bool has_prefixes(const consumer_seat *consumer)
{
    return consumer->kind != PLAN_SAMPLES &&
           consumer->src->options.data_group == GROUP_SHARED_PREFIX;
}

static status send_welcome(dispatch *state, const consumer_seat *consumer)
{
    const source *src = consumer->src;
    const uint64_t rows = plan_rows(consumer->plan, consumer->from);
    char digest[HASH_TEXT], key[HASH_TEXT];
    json_writer writer;
    hash_print(index_digest(src->index), digest);
    hash_print(src->index_key, key);
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_int(&writer, "version", SESSION_VERSION);
    json_put_key_cstr(&writer, "program", "prepd " TESSERA_VERSION);
    json_put_key_cstr(&writer, "build", state->place.build);
    fingerprints_put(&src->fingerprints, &writer);
    json_put_key_cstr(&writer, "stream", consumer->stream);
    if (has_prefixes(consumer))
        json_put_key_bool(&writer, "prefixes", true);
    json_put_key_raw(&writer, "options", src->stream_json, strlen(src->stream_json));
    json_put_key_cstr(&writer, "index", digest);
    json_put_key_cstr(&writer, "index_file", src->index_path);
    json_put_key_cstr(&writer, "index_key", key);
    json_put_key_int(&writer, "samples", index_samples(src->index));
    json_put_key_int(&writer, "refused", plan_refused(consumer->plan));
    json_put_key_int(&writer, "quarantined", known_count(consumer));
    json_put_key_int(&writer, "seq_len", src->options.training_seq_len);
    json_put_key_int(&writer, "token_budget", plan_token_budget(consumer->plan));
    json_put_key_int(&writer, "patch_budget", plan_patch_budget(consumer->plan));
    json_put_key_int(&writer, "global_batch_size", src->options.training_global_batch_size);
    json_put_key_int(&writer, "epoch_rows", plan_epoch_rows(consumer->plan));
    if (rows == UINT64_MAX && !plan_endless(consumer->plan)) /* not known yet; END will say it */
        json_put_key_null(&writer, "rows");
    else
        json_put_key_int(&writer, "rows",
                         rows == UINT64_MAX ? -1 : (int64_t)rows); /* -1: without end */
    json_put_key_int(&writer, "row", consumer->next_row);
    json_put_key_int(&writer, "rank", consumer->rank);
    json_put_key_int(&writer, "ranks", consumer->ranks);
    put_buckets(&writer, consumer->plan);
    status st = consumer->report ? put_report(consumer, &writer) : ST_OK;
    json_end_object(&writer);
    if (st == ST_OK)
        return outside_send_writer(&state->outside, DOOR_CONSUMERS, &consumer->peer, KIND_WELCOME,
                                   0, &writer);
    json_writer_done(&writer);
    return st;
}

/* Finds the row at which the consumer starts, now that the index is there. The plan need not be. */
static status find_place(consumer_seat *consumer, const char *name)
{
    json_value *cursor = NULL;
    if (consumer->cursor)
        TRY(json_parse(consumer->cursor, strlen(consumer->cursor), name, &cursor));
    status st = cursor ? take_cursor(consumer, cursor, name) : ST_OK;
    json_free(&cursor);
    if (st == ST_OK)
        st = known_check(consumer, name);
    if (st != ST_OK)
        return st;
    consumer->placed = true;
    free(consumer->cursor);
    consumer->cursor = NULL;
    consumer->cursor_bytes = 0;
    return ST_OK;
}

/* Welcomes a consumer whose plan is ready. */
static status welcome(dispatch *state, consumer_seat *consumer, const char *name)
{
    TRY(check_row(consumer, name));
    TRY(send_welcome(state, consumer));
    consumer->welcomed = true;
    consumer->ended = consumer->end_sent = consumer->report;
    core_info(state, "consumer joined stream=%s rank=%d of=%d row=%llu", consumer->stream,
              consumer->rank, consumer->ranks, (unsigned long long)consumer->next_row);
    return ST_OK;
}

static void refuse_session(dispatch *state, consumer_seat *consumer, status st)
{
    if (!state->place.for_command)
        peer_limits_refuse(&state->peer_limits, &state->outside, DOOR_CONSUMERS, &consumer->peer,
                           "consumer", st);
    else
        outside_send_error(&state->outside, DOOR_CONSUMERS, &consumer->peer, st);
    consumer_close(state, consumer, NULL);
}

void consumers_refuse(dispatch *state, const source *src, status st)
{
    const status_note why = *status_last();
    for (consumer_seat *consumer = state->consumer_seats, *next; consumer; consumer = next) {
        next = consumer->next;
        if (consumer->src != src || consumer->welcomed)
            continue;
        status_set(&why);
        refuse_session(state, consumer, st);
    }
}

void consumers_greet(dispatch *state)
{
    char name[WIRE_PEER_TEXT];
    for (consumer_seat *consumer = state->consumer_seats, *next; consumer; consumer = next) {
        bool ready = false;
        next = consumer->next;
        if (consumer->welcomed || !consumer->src->ready || !fingerprints_are_known(state))
            continue;
        fingerprints_of_source(state, consumer->src);
        wire_peer_print(&consumer->peer, name);
        status st = planning_want(consumer);
        if (st == ST_OK && !consumer->placed)
            st = find_place(consumer, name);
        if (st == ST_OK)
            st = planning_ready(state, consumer, &ready);
        if (st == ST_OK && ready && consumer->report &&
            consumer->src->plans[consumer->kind].worked) {
            state->plans_wait = true; /* the report says how long planning took, this turn too */
            continue;
        }
        if (st == ST_OK && ready)
            st = welcome(state, consumer, name);
        if (st != ST_OK)
            refuse_session(state, consumer, st);
    }
}

static status take_hello(dispatch *state, consumer_seat *consumer, const json_value *said,
                         const char *name)
{
    hello greeting;
    const int64_t batch = state->options->training_global_batch_size;
    TRY(hello_read(said, batch, name, &greeting));
    if (!state->place.for_command)
        TRY(hello_rank_is_served(&greeting, state->options->prepd_ranks, name));
    snprintf(consumer->stream, sizeof(consumer->stream), "%s", greeting.stream);
    consumer->src = strcmp(greeting.stream, "eval") == 0 ? &state->eval : &state->train;
    TRY(section_want(state, consumer->src)); /* its options are known from here on */
    consumer->kind = strcmp(greeting.stream, "sample") == 0 ? PLAN_SAMPLES : PLAN_PACKED;
    if (has_prefixes(consumer))
        TRY(hello_knows_prefixes(greeting.prefixes, name));
    consumer->report = state->place.for_command && json_bool(json_find(said, "report"), false);
    consumer->rows_later = json_bool(json_find(said, "rows_later"), false);
    consumer->credit = greeting.credit_bytes;
    consumer->next_row = (uint64_t)greeting.start_row;
    consumer->rank = greeting.rank;
    consumer->ranks = greeting.ranks;
    snprintf(consumer->run, sizeof(consumer->run), "%s", greeting.run);
    snprintf(consumer->self, sizeof(consumer->self), "%s", greeting.consumer);
    consumer->rank_of = calloc((size_t)batch, sizeof(*consumer->rank_of));
    return consumer->rank_of ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for a consumer");
}

/* Finds the account of the consumer's key, which may be turned away for a while. */
static status take_account(dispatch *state, consumer_seat *consumer, const char *name)
{
    char address[WIRE_HOST_TEXT];
    account *of;
    state->outside.peer_host(state->outside.shell, &consumer->peer, address);
    TRY(account_open(&state->accounts, &consumer->peer, address, state->now_ns, &of));
    if (penalty_holds(&of->refused, state->now_ns))
        return FAIL_IN(
            ST_UNAVAILABLE, name,
            "a consumer of %s refused rows that are what was ordered: try again in %lld s, "
            "or have the operator run prepd admit %s",
            of->name, (long long)((of->refused.until_ns - state->now_ns) / 1000000000 + 1),
            of->name);
    consumer->of = of;
    of->uses++;
    return ST_OK;
}

/* Keeps the cursor of HELLO until the index is there, without the list of bad samples that it may
 * have, and what the consumer knows of those. */
static status keep_cursor(dispatch *state, consumer_seat *consumer, const json_value *said,
                          const char *name)
{
    json_value *parsed = NULL;
    const json_value *cursor;
    size_t size = 0;
    status st = ST_OK;
    TRY(hello_cursor(said, &parsed, &cursor));
    if (cursor) {
        json_writer writer;
        json_writer_init(&writer);
        bad_samples_put_cursor(cursor, &writer);
        st = json_writer_take(&writer, &consumer->cursor, &size);
        json_writer_done(&writer);
    }
    const int64_t bytes = size > SHORT_CURSOR ? (int64_t)size : 0;
    if (st == ST_OK)
        st = known_may_keep(state, bytes, name);
    if (st == ST_OK)
        st = known_take(state, consumer, said, cursor, name);
    consumer->cursor_bytes = bytes;
    json_free(&parsed);
    return st;
}

status consumer_hello(dispatch *state, const wire_peer *from, const json_value *said,
                      const char *name)
{
    consumer_seat *old = consumer_find(state, from);
    if (old) {
        /* To start again it should make a new connection. */
        peer_limits_offence(&state->peer_limits, &state->outside);
        consumer_close(state, old, NULL);
    }
    if (state->n_consumers >= MAX_SESSIONS)
        return FAIL(ST_UNAVAILABLE, "%d consumers are here already", MAX_SESSIONS);
    consumer_seat *consumer = calloc(1, sizeof(*consumer));
    if (!consumer)
        return FAIL(ST_NO_MEMORY, "no memory for a consumer");
    status st = ST_OK;
    consumer->peer = *from;
    TRY_OR(failed, take_account(state, consumer, name));
    consumer->step = UINT64_MAX;
    consumer->started_ns = consumer->said_ns = state->now_ns;
    TRY_OR(failed, take_hello(state, consumer, said, name));
    TRY_OR(failed, twin_make_room(state, consumer, name));
    TRY_OR(failed, check_crowd(state, consumer, name));
    TRY_OR(failed, keep_cursor(state, consumer, said, name));
    TRY_OR(failed, hello_options_agree(consumer->src->stream_json, said, name));
    consumer->next = state->consumer_seats;
    state->consumer_seats = consumer;
    state->n_consumers++;
    return ST_OK;
failed:
    consumer_free(consumer);
    return st;
}
