/* session.c: consumers: HELLO, credit, rows in stream order, END.
 *
 * A row is leased only with credit for its planned bytes, reserved until it is sent, so a late row
 * can always finish; rows done early wait in their slots. One row is always allowed, however small
 * the credit. A session is one consumer's walk over the rows of one stream that its rank is owed.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "prepd/serve/state.h"

enum {
    /* Planned bytes of a row: six i32 or f32 per token, a patch, an image part's head, and room for
     * borders, ids and cursor. An upper bound; what was not needed is given back when it is sent.
     */
    TOKEN_BYTES = 32,
    PATCH_WIRE_BYTES = 772,
    ROW_BYTES = 16384,
    DECISION_BYTES = 256, /* of a quarantined sample, in the cursor */
    MAX_RANKS = 65536,
};
static const int64_t MAX_CREDIT = (int64_t)1 << 42;
static const int64_t STILL_HERE_NS = 15000000000; /* well under any consumer's time limit */

static session *session_of(dispatch *d, const wire_peer *peer)
{
    for (session *s = d->sessions; s; s = s->next)
        if (s->peer.size == peer->size && memcmp(s->peer.id, peer->id, peer->size) == 0)
            return s;
    return NULL;
}

static void session_free(session *s)
{
    for (int i = 0; i < s->n_slots; i++)
        wire_msg_free(&s->slots[(s->first_slot + i) % SESSION_SLOTS].msg);
    plan_free(&s->plan);
    free(s->rank_of);
    free(s->hello);
    free(s);
}

void session_close(dispatch *d, session *s, const char *error)
{
    if (error && wire_send_error(d->consumers, &s->peer, 0, FAIL(ST_STOPPED, "%s", error)) != ST_OK)
        log_debug("consumer could not be told: %s", status_text());
    for (worker_seat *w = d->seats; w; w = w->next)
        if (w->work && w->work->owner == s)
            w->work->owner = NULL;
    lease_book_forget(&d->book, s);
    session **at = &d->sessions;
    while (*at && *at != s)
        at = &(*at)->next;
    if (*at)
        *at = s->next;
    log_info("consumer left stream=%s rank=%d of=%d rows=%llu", s->stream, s->rank, s->ranks,
             (unsigned long long)s->rows_sent);
    session_free(s);
}

/* A parsed value as text again, for the comparison of options. */
static void put_value(json_writer *w, const json_value *v)
{
    const char *key;
    switch (json_typeof(v)) {
    case JSON_NULL:
        json_put_null(w);
        break;
    case JSON_BOOL:
        json_put_bool(w, json_bool(v, false));
        break;
    case JSON_INT:
        json_put_int(w, json_int(v, 0));
        break;
    case JSON_REAL:
        json_put_real(w, json_real(v, 0));
        break;
    case JSON_TEXT:
        json_put_text(w, json_text(v, ""), json_text_size(v));
        break;
    case JSON_ARRAY:
        json_begin_array(w);
        for (size_t i = 0; i < json_count(v); i++)
            put_value(w, json_item(v, i));
        json_end_array(w);
        break;
    case JSON_OBJECT:
        json_begin_object(w);
        for (size_t i = 0; i < json_count(v); i++) {
            const json_value *member = json_member(v, i, &key);
            json_put_key(w, key);
            put_value(w, member);
        }
        json_end_object(w);
        break;
    }
}

static status check_options(const source *src, const json_value *hello, const char *name)
{
    const json_value *theirs = json_find(hello, "options");
    char *difference = NULL, *text = NULL;
    size_t size;
    json_writer w;
    if (!theirs || json_typeof(theirs) == JSON_NULL)
        return ST_OK; /* takes ours as they are */
    json_writer_init(&w);
    put_value(&w, theirs);
    status st = json_writer_take(&w, &text, &size);
    json_writer_done(&w);
    if (st == ST_OK)
        st = conf_stream_diff(src->stream_json, text, &difference);
    free(text);
    if (st == ST_OK && difference)
        st = FAIL_IN(ST_CONFIG, name,
                     "the consumer's options give another stream: %s; start both programs with "
                     "the same configuration",
                     difference);
    free(difference);
    return st;
}

static status take_cursor(session *s, const json_value *cursor, const char *name)
{
    char ours[HASH_TEXT];
    const char *theirs;
    int64_t row;
    hash_print(index_digest(s->src->index), ours);
    TRY(json_want_text(cursor, "index", name, &theirs));
    TRY(json_want_int(cursor, "row", name, &row));
    if (strcmp(ours, theirs) != 0)
        return FAIL_IN(ST_CONFIG, name,
                       "the cursor belongs to index %s, the data set here has index %s: files or "
                       "options changed since the checkpoint",
                       theirs, ours);
    if (row < 0)
        return FAIL_IN(ST_PROTOCOL, name, "cursor row %lld", (long long)row);
    const json_value *bad = json_find(cursor, "quarantine");
    if (bad)
        TRY(quarantine_merge(&s->src->bad, bad, index_samples(s->src->index), name));
    s->next_row = (uint64_t)row;
    return ST_OK;
}

static void put_buckets(json_writer *w, const plan *p)
{
    int n;
    const shape_bucket *b = plan_buckets(p, &n);
    json_put_key(w, "buckets");
    json_begin_array(w);
    for (int i = 0; i < n; i++) {
        json_begin_object(w);
        json_put_key(w, "tokens");
        json_put_int(w, b[i].tokens);
        json_put_key(w, "patches");
        json_put_int(w, b[i].patches);
        json_put_key(w, "documents");
        json_put_int(w, b[i].documents);
        json_put_key(w, "images");
        json_put_int(w, b[i].images);
        json_put_key(w, "longest");
        json_put_int(w, b[i].longest);
        json_put_key(w, "rows");
        json_put_int(w, b[i].rows);
        json_end_object(w);
    }
    json_end_array(w);
}

static status send_welcome(dispatch *d, const session *s)
{
    const source *src = s->src;
    const uint64_t rows = plan_rows(s->plan);
    char digest[HASH_TEXT], key[HASH_TEXT], *text = NULL;
    size_t size;
    json_writer w;
    hash_print(index_digest(src->index), digest);
    hash_print(src->index_key, key);
    json_writer_init(&w);
    json_begin_object(&w);
#define PUT_TEXT(key, value) (json_put_key(&w, key), json_put_cstr(&w, value))
#define PUT_INT(key, value)  (json_put_key(&w, key), json_put_int(&w, (int64_t)(value)))
    PUT_INT("version", FRAME_VERSION);
    PUT_TEXT("program", "prepd " TESSERA_VERSION);
    PUT_TEXT("stream", s->stream);
    json_put_key(&w, "options");
    json_put_raw(&w, src->stream_json, strlen(src->stream_json));
    PUT_TEXT("index", digest);
    PUT_TEXT("index_file", src->index_path);
    PUT_TEXT("index_key", key);
    PUT_INT("samples", index_samples(src->index));
    PUT_INT("refused", plan_refused(s->plan));
    PUT_INT("quarantined", src->bad.n);
    PUT_INT("seq_len", src->c.training_seq_len);
    PUT_INT("token_budget", plan_token_budget(s->plan));
    PUT_INT("patch_budget", plan_patch_budget(s->plan));
    PUT_INT("global_batch_size", src->c.training_global_batch_size);
    PUT_INT("epoch_rows", plan_epoch_rows(s->plan));
    PUT_INT("rows", rows == UINT64_MAX ? -1 : (int64_t)rows); /* -1: without end */
    PUT_INT("row", s->next_row);
    PUT_INT("rank", s->rank);
    PUT_INT("ranks", s->ranks);
#undef PUT_TEXT
#undef PUT_INT
    put_buckets(&w, s->plan);
    json_end_object(&w);
    status st = json_writer_take(&w, &text, &size);
    if (st == ST_OK)
        st = wire_send_json(d->consumers, &s->peer, KIND_WELCOME, 0, text, size);
    free(text);
    json_writer_done(&w);
    return st;
}

/* The index is there: the plan, the place to start, WELCOME. */
static status welcome(dispatch *d, session *s, const char *name)
{
    json_value *hello = NULL;
    status st = ST_OK;
    TRY(plan_new(&s->src->c, s->src->data, s->src->index, s->kind, &s->plan));
    TRY(json_parse(s->hello, strlen(s->hello), name, &hello));
    const json_value *cursor = json_find(hello, "cursor");
    json_value *parsed = NULL;
    if (cursor && json_typeof(cursor) == JSON_TEXT) { /* as it stood in a row's metadata */
        TRY_OR(done, json_parse(json_text(cursor, ""), json_text_size(cursor), "cursor", &parsed));
        cursor = parsed;
    }
    if (cursor && json_typeof(cursor) != JSON_NULL)
        TRY_OR(done, take_cursor(s, cursor, name));
    else
        s->next_row = (uint64_t)json_int(json_find(hello, "start_row"), 0);
    TRY_OR(done, send_welcome(d, s));
    s->welcomed = true;
    log_info("consumer joined stream=%s rank=%d of=%d row=%llu", s->stream, s->rank, s->ranks,
             (unsigned long long)s->next_row);
done:
    json_free(&parsed);
    json_free(&hello);
    return st;
}

static void try_welcome(dispatch *d, session *s)
{
    char name[WIRE_PEER_TEXT];
    wire_peer_print(&s->peer, name);
    status st = welcome(d, s, name);
    if (st == ST_OK)
        return;
    log_warn("consumer refused: %s", status_text());
    d->counts.refused_peers++;
    if (wire_send_error(d->consumers, &s->peer, 0, st) != ST_OK)
        log_debug("it could not be told: %s", status_text());
    session_close(d, s, NULL);
}

void session_index_ready(dispatch *d, source *src)
{
    for (session *s = d->sessions, *next; s; s = next) {
        next = s->next;
        if (s->src == src && !s->welcomed)
            try_welcome(d, s);
    }
}

static status read_hello(dispatch *d, session *s, const json_value *v, const char *name)
{
    const char *stream;
    int64_t version;
    TRY(json_want_int(v, "version", name, &version));
    TRY(json_want_text(v, "stream", name, &stream));
    if (version != FRAME_VERSION)
        return FAIL_IN(ST_PROTOCOL, name, "consumer of protocol version %lld, this daemon has %d",
                       (long long)version, FRAME_VERSION);
    if (strcmp(stream, "train") != 0 && strcmp(stream, "eval") != 0 &&
        strcmp(stream, "sample") != 0)
        return FAIL_IN(ST_PROTOCOL, name, "stream \"%s\", expected train, eval or sample", stream);
    snprintf(s->stream, sizeof(s->stream), "%s", stream);
    s->src = strcmp(stream, "eval") == 0 ? &d->eval : &d->train;
    s->kind = strcmp(stream, "sample") == 0 ? PLAN_SAMPLES : PLAN_PACKED;
    const int64_t ranks = json_int(json_find(v, "ranks"), 1);
    const int64_t rank = json_int(json_find(v, "rank"), 0);
    const int64_t row = json_int(json_find(v, "start_row"), 0);
    const int64_t g = d->c->training_global_batch_size;
    TRY(json_want_int(v, "credit_bytes", name, &s->credit));
    if (ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks)
        return FAIL_IN(ST_PROTOCOL, name, "rank %lld of %lld", (long long)rank, (long long)ranks);
    if (ranks > g)
        return FAIL_IN(ST_CONFIG, name,
                       "%lld ranks for training.global_batch_size %lld: every rank needs a row of "
                       "each step",
                       (long long)ranks, (long long)g);
    if (s->credit < 1 || s->credit > MAX_CREDIT || row < 0)
        return FAIL_IN(ST_PROTOCOL, name, "credit of %lld bytes from row %lld",
                       (long long)s->credit, (long long)row);
    s->rank = (int)rank;
    s->ranks = (int)ranks;
    s->rank_of = calloc((size_t)g, sizeof(*s->rank_of));
    return s->rank_of ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for a session");
}

static status hello(dispatch *d, const wire_peer *from, wire_msg *m, const json_value *v,
                    const char *name)
{
    session *old = session_of(d, from);
    if (old)
        session_close(d, old, NULL);
    session *s = calloc(1, sizeof(*s));
    if (!s)
        return FAIL(ST_NO_MEMORY, "no memory for a session");
    status st = ST_OK;
    span text = wire_msg_part(m, 1);
    s->peer = *from;
    s->step = UINT64_MAX;
    s->started_ns = s->said_ns = clock_ns();
    TRY_OR(failed, read_hello(d, s, v, name));
    s->hello = strndup((const char *)text.data, text.size);
    if (!s->hello) {
        st = FAIL(ST_NO_MEMORY, "no memory for a session");
        goto failed;
    }
    TRY_OR(failed, source_want(d, s->src));
    TRY_OR(failed, check_options(s->src, v, name));
    s->next = d->sessions;
    d->sessions = s;
    if (s->src->ready)
        try_welcome(d, s);
    return ST_OK;
failed:
    session_free(s);
    return st;
}

static status handle(dispatch *d, const wire_peer *from, wire_msg *m, const char *name)
{
    frame head;
    json_value *v = NULL;
    status st = ST_OK;
    session *s = session_of(d, from);
    TRY(wire_read_json(m, name, &head, &v));
    if (head.kind == KIND_HELLO) {
        st = d->draining ? FAIL(ST_UNAVAILABLE, "the daemon is being drained")
                         : hello(d, from, m, v, name);
    } else if (head.kind == KIND_CREDIT && s) {
        int64_t bytes = 0;
        st = json_want_int(v, "bytes", name, &bytes);
        if (st == ST_OK && (bytes < 0 || bytes > MAX_CREDIT - s->credit))
            st = FAIL_IN(ST_PROTOCOL, name, "credit of %lld bytes", (long long)bytes);
        if (st == ST_OK) {
            s->credit += bytes;
            s->unreturned -= bytes;
        }
    } else if (head.kind == KIND_BYE || (head.kind == KIND_ERROR && s)) {
        if (s)
            session_close(d, s, NULL);
    } else if (head.kind != KIND_CREDIT) {
        st = FAIL_IN(ST_PROTOCOL, name, "a consumer does not send %s", frame_kind_name(head.kind));
    } else {
        st = FAIL_IN(ST_PROTOCOL, name, "credit before hello");
    }
    json_free(&v);
    return st;
}

void session_message(dispatch *d, const wire_peer *from, wire_msg *m)
{
    char name[WIRE_PEER_TEXT];
    wire_peer_print(from, name);
    status st = handle(d, from, m, name);
    if (st == ST_OK)
        return;
    log_warn("consumer refused: %s", status_text());
    d->counts.refused_peers++;
    if (wire_send_error(d->consumers, from, 0, st) != ST_OK)
        log_debug("it could not be told: %s", status_text());
    session *s = session_of(d, from);
    if (s)
        session_close(d, s, NULL);
}

/* Predicted time of a row in MFLOP of the 30B-A3B model: 18.25 GF a token, 2.9 GF a patch, and
 * attention by the square of each document. Only the proportions matter, and that they are the same
 * on every machine: integers. */
static int64_t row_cost(const planned_row *r)
{
    int64_t cost = r->tokens * 18250 + r->patches * 2900;
    for (int64_t i = 0; i < r->n_docs; i++)
        cost += (int64_t)r->docs[i].tokens * r->docs[i].tokens * 118 / 100;
    return cost;
}

static status assign_step(dispatch *d, session *s, uint64_t step)
{
    const int64_t g = s->src->c.training_global_batch_size;
    int64_t *cost = calloc((size_t)g, sizeof(*cost));
    status st = ST_OK;
    if (!cost)
        return FAIL(ST_NO_MEMORY, "no memory for a step of %lld rows", (long long)g);
    for (int64_t k = 0; k < g; k++) {
        planned_row r;
        arena_reset(&d->scratch);
        TRY_OR(done, plan_row(s->plan, step * (uint64_t)g + (uint64_t)k, &d->scratch, &r));
        cost[k] = row_cost(&r);
    }
    TRY_OR(done, plan_assign(cost, g, s->ranks, s->rank_of));
    s->step = step;
done:
    free(cost);
    return st;
}

/* The first row from next_row on that this rank is owed. */
static status next_owed(dispatch *d, session *s, uint64_t *out)
{
    const uint64_t g = (uint64_t)s->src->c.training_global_batch_size;
    for (; s->ranks > 1; s->next_row++) {
        if (s->step != s->next_row / g)
            TRY(assign_step(d, s, s->next_row / g));
        if (s->rank_of[s->next_row % g] == s->rank)
            break;
    }
    *out = s->next_row;
    return ST_OK;
}

static void end_if_done(dispatch *d, session *s)
{
    if (!s->ended || s->n_slots > 0)
        return;
    char json[64];
    int n = snprintf(json, sizeof(json), "{\"rows\":%llu}", (unsigned long long)s->rows_sent);
    if (wire_send_json(d->consumers, &s->peer, KIND_END, s->next_row, json, (size_t)n) != ST_OK)
        log_debug("consumer could not be told of the end: %s", status_text());
}

static bool may_reserve(const session *s)
{
    return s->need <= s->credit || (s->n_slots == 0 && s->unreturned <= 0);
}

status session_produce(dispatch *d, session *s, lease **out)
{
    uint64_t number;
    planned_row r;
    status st;
    if (!s->welcomed || s->ended || s->n_slots == SESSION_SLOTS || (s->need && !may_reserve(s)))
        return ST_OK;
    st = next_owed(d, s, &number);
    arena_reset(&d->scratch);
    if (st == ST_OK)
        st = plan_row(s->plan, number, &d->scratch, &r);
    if (st == ST_END) {
        s->ended = true;
        end_if_done(d, s);
        return ST_OK;
    }
    if (st != ST_OK)
        return st;
    s->need = r.tokens * TOKEN_BYTES + r.patches * PATCH_WIRE_BYTES + ROW_BYTES +
              s->src->bad.n * DECISION_BYTES;
    if (!may_reserve(s))
        return ST_OK;
    int64_t *item = NULL;
    TRY(arena_alloc(&d->scratch, ((size_t)r.n_docs + 1) * sizeof(*item), (void **)&item));
    for (int64_t i = 0; i < r.n_docs; i++)
        item[i] = r.docs[i].sample;
    TRY(lease_new(&d->book, LEASE_ROW, s, number, item, r.n_docs, out));
    s->slots[(s->first_slot + s->n_slots++) % SESSION_SLOTS] =
        (slot){.row = number, .reserved = s->need, .n_docs = r.n_docs};
    s->credit -= s->need;
    s->need = 0;
    s->next_row = number + 1;
    return ST_OK;
}

/* Sends the rows that are ready, in order. False if the consumer has gone. */
static bool deliver(dispatch *d, session *s)
{
    while (s->n_slots > 0 && s->slots[s->first_slot].msg) {
        slot *first = &s->slots[s->first_slot];
        int64_t bytes = (int64_t)wire_msg_bytes(first->msg);
        if (wire_send(d->consumers, &s->peer, first->msg) != ST_OK) {
            log_info("consumer gone: %s", status_text());
            return false;
        }
        wire_msg_free(&first->msg);
        s->credit += first->reserved - bytes;
        s->unreturned += bytes;
        s->said_ns = clock_ns();
        s->rows_sent++;
        d->counts.rows++;
        d->counts.bytes += (uint64_t)bytes;
        d->counts.samples += (uint64_t)first->n_docs;
        s->first_slot = (s->first_slot + 1) % SESSION_SLOTS;
        s->n_slots--;
    }
    seats_judge_quarantine(d);
    end_if_done(d, s);
    return true;
}

/* Tells consumers that hear nothing that the daemon is there; one that has gone without BYE is
 * found out this way, since sending to it fails. */
void sessions_still_here(dispatch *d, int64_t now)
{
    static const char json[] = "{\"bytes\":0}";
    for (session *s = d->sessions, *next; s; s = next) {
        next = s->next;
        if (now - s->said_ns < STILL_HERE_NS)
            continue;
        s->said_ns = now;
        if (wire_send_json(d->consumers, &s->peer, KIND_CREDIT, 0, json, sizeof(json) - 1) == ST_OK)
            continue;
        log_info("consumer gone: %s", status_text());
        session_close(d, s, NULL);
    }
}

void session_row(dispatch *d, session *s, lease *l, wire_msg *m)
{
    for (int i = 0; i < s->n_slots; i++) {
        slot *at = &s->slots[(s->first_slot + i) % SESSION_SLOTS];
        if (at->row != l->row || at->msg)
            continue;
        if (wire_msg_new(&at->msg) != ST_OK || wire_msg_move(at->msg, m) != ST_OK) {
            dispatch_fail(d, status_last()->code);
            return;
        }
        break;
    }
    lease_free(&l);
    if (!deliver(d, s))
        session_close(d, s, NULL);
}
