/* receive.c: see receive.h.
 *
 * The thread and the step share three counters under one lock: slots filled, taken and given back.
 * Slot i holds row number i modulo the size of the ring. Whoever changes a counter signals the one
 * condition. */
#include "trainer/input/receive.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/json/json.h"
#include "common/program/log.h"
#include "proto/cursor.h"
#include "trainer/input/rejoin.h"
#include "trainer/input/row_feed.h"

typedef struct slot {
    arena memory;
    row row;
    frame head;
    int64_t shared_bytes;
} slot;

/* A text that outlives the row it came with. */
typedef struct text_kept {
    char *text; /* on the heap; NULL before the first */
    size_t bytes;
} text_kept;

struct receiver {
    client *source;               /* NULL: another rank has the source */
    row_broadcast *row_broadcast; /* NULL: the rows are not shared */
    char *welcome;                /* WELCOME of another rank's source; on the heap */
    slot *slots;
    int64_t n_slots;
    pthread_t thread;
    bool thread_runs;
    /* Used by the thread. */
    double reconnect_s;
    bool trains;
    int64_t step_rows; /* rows of a step of the daemon's stream; 0: WELCOME does not say */
    int ranks;         /* ranks that share its steps */
    char *endpoint;    /* on the heap; NULL for a recording */
    text_kept resume;  /* the cursor of the last row that arrived */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Slots are filled, taken and given back in order. These count since the start. */
    int64_t n_filled, n_taken, n_given_back;
    bool stop;
    status ended; /* ST_OK while the thread works */
    status_note note;
    /* Used by the step. */
    uint64_t last_row;
    bool loop_told;
    bool (*stopped)(void);
    text_kept cursor; /* the cursor of the last row taken */
};

enum { STOP_POLL_MS = 50 };

static status keep_text(text_kept *k, const char *text)
{
    size_t bytes = strlen(text) + 1;
    if (bytes > k->bytes) {
        char *more = realloc(k->text, 2 * bytes);
        if (!more)
            return FAIL(ST_NO_MEMORY, "receiver: out of memory");
        k->text = more;
        k->bytes = 2 * bytes;
    }
    memcpy(k->text, text, bytes);
    return ST_OK;
}

static const char *text_of(const text_kept *k)
{
    return k->text ? k->text : "";
}

/* Checks that a row's cursor points to a row after it: to the next row; for one of several ranks,
 * to one of the same step or to the next step's first. A checkpoint with another cursor would train
 * rows twice or not at all. */
static status check_cursor(const receiver *r, const slot *s)
{
    const int64_t number = (int64_t)s->head.row, g = r->step_rows;
    const int64_t last = r->ranks > 1 && g > 0 ? (number / g + 1) * g : number + 1;
    char place[64];
    int64_t next;
    snprintf(place, sizeof place, "row %" PRId64, number);
    if (cursor_read(s->row.cursor, place, "train", g, &next) != ST_OK)
        return FAIL_IN(ST_PROTOCOL, r->endpoint, "%s", status_text());
    return next > number && next <= last
               ? ST_OK
               : FAIL_IN(ST_PROTOCOL, r->endpoint,
                         "row %" PRId64 " came with a cursor that points to row %" PRId64
                         "; it must point to a row from %" PRId64 " to %" PRId64,
                         number, next, number + 1, last);
}

/* Receives the next row. If the daemon goes away meanwhile, waits for it and goes on. */
static status next_row(receiver *r, slot *s)
{
    for (;;) {
        arena_reset(&s->memory);
        status st = client_next(r->source, &s->memory, &s->row, &s->head, NULL);
        if (st == ST_OK && r->trains && r->endpoint)
            TRY(check_cursor(r, s));
        if (st == ST_OK)
            return keep_text(&r->resume, s->row.cursor);
        if (st != ST_UNAVAILABLE || !r->endpoint || r->reconnect_s <= 0)
            return st;
        TRY(rejoin_stream(r->source, r->endpoint, text_of(&r->resume), r->reconnect_s));
    }
}

static bool hands_on(const receiver *r)
{
    return r->row_broadcast && row_broadcast_is_source(r->row_broadcast);
}

static status fill_slot(receiver *r, slot *s)
{
    if (r->source)
        return next_row(r, s);
    arena_reset(&s->memory);
    return row_feed_next(r->row_broadcast, &s->memory, &s->row, &s->head, &s->shared_bytes);
}

static void note_end(receiver *r, status how)
{
    pthread_mutex_lock(&r->lock);
    r->ended = how;
    r->note = *status_last();
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

static void *receive_thread(void *user)
{
    receiver *r = user;
    for (;;) {
        pthread_mutex_lock(&r->lock);
        while (!r->stop && r->n_filled - r->n_given_back >= r->n_slots)
            pthread_cond_wait(&r->changed, &r->lock);
        bool stop = r->stop;
        slot *s = &r->slots[r->n_filled % r->n_slots];
        pthread_mutex_unlock(&r->lock);
        if (stop)
            return NULL;
        status st = fill_slot(r, s);
        if (st != ST_OK) {
            note_end(r, st);
            if (hands_on(r) && row_feed_last(r->row_broadcast, st) != ST_OK)
                status_clear(); /* closing */
            return NULL;
        }
        pthread_mutex_lock(&r->lock);
        r->n_filled++;
        pthread_cond_broadcast(&r->changed);
        pthread_mutex_unlock(&r->lock);
        /* The step may read the row meanwhile. Only this thread fills its slot again. */
        if (hands_on(r) && row_feed_send(r->row_broadcast, &s->row, &s->head) != ST_OK)
            return NULL;
    }
}

static status read_step_rows(receiver *r)
{
    json_value *welcome = NULL;
    const char *text = client_welcome(r->source);
    TRY(json_parse(text, strlen(text), "WELCOME", &welcome));
    r->step_rows = json_int(json_find(welcome, "global_batch_size"), 0);
    json_free(&welcome);
    return ST_OK;
}

static status open_source(receiver *r, const receiver_options *o)
{
    if (o->replay.path && o->replay.path[0])
        return client_replay(&o->replay, &r->source);
    r->endpoint = strdup(o->client.endpoint);
    if (!r->endpoint)
        return FAIL(ST_NO_MEMORY, "receiver: out of memory");
    TRY(client_open(&o->client, &r->source));
    return read_step_rows(r);
}

/* Opens this rank's own source of rows, or waits for the source of the rank that receives them for
 * this one. */
static status reach_rows(receiver *r, const receiver_options *o)
{
    if (!r->row_broadcast)
        return open_source(r, o);
    if (!row_broadcast_is_source(r->row_broadcast))
        return row_feed_await(r->row_broadcast, &r->welcome);
    status st = open_source(r, o);
    if (st == ST_OK)
        return row_feed_welcome(r->row_broadcast, client_welcome(r->source));
    status_note note = *status_last();
    if (row_feed_last(r->row_broadcast, st) != ST_OK)
        status_clear();
    status_set(&note);
    return st;
}

status receiver_open(const receiver_options *o, receiver **out)
{
    status st = ST_OK;
    receiver *r = calloc(1, sizeof *r);
    if (!r) {
        row_broadcast *given = o->row_broadcast;
        row_broadcast_close(&given);
        return FAIL(ST_NO_MEMORY, "receiver: out of memory");
    }
    r->row_broadcast = o->row_broadcast;
    pthread_mutex_init(&r->lock, NULL);
    /* Waits use the monotonic clock: a wall clock that is set back would stretch a wait, and a
     * signal would go unnoticed for as long. */
    pthread_condattr_t steady;
    pthread_condattr_init(&steady);
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    pthread_cond_init(&r->changed, &steady);
    pthread_condattr_destroy(&steady);
    r->n_slots = o->slots;
    r->stopped = o->stopped;
    r->reconnect_s = o->reconnect_s;
    r->trains = o->trains;
    r->ranks = o->client.ranks;
    r->slots = calloc((size_t)o->slots, sizeof *r->slots);
    if (!r->slots) {
        st = FAIL(ST_NO_MEMORY, "receiver: out of memory for %lld rows", (long long)o->slots);
        goto done;
    }
    for (int64_t i = 0; i < r->n_slots; i++)
        arena_init(&r->slots[i].memory, 0);
    TRY_OR(done, reach_rows(r, o));
    if (pthread_create(&r->thread, NULL, receive_thread, r) != 0) {
        st = FAIL(ST_OS, "receiver: its thread cannot be started");
        goto done;
    }
    r->thread_runs = true;
    *out = r;
    return ST_OK;
done:
    receiver_close(&r);
    return st;
}

void receiver_close(receiver **held)
{
    receiver *r = *held;
    if (!r)
        return;
    if (r->thread_runs) {
        pthread_mutex_lock(&r->lock);
        r->stop = true;
        pthread_cond_broadcast(&r->changed);
        pthread_mutex_unlock(&r->lock);
        if (r->source)
            client_interrupt(r->source);
        if (r->row_broadcast)
            row_broadcast_interrupt(r->row_broadcast);
        pthread_join(r->thread, NULL);
    }
    client_close(&r->source);
    row_broadcast_close(&r->row_broadcast);
    free(r->welcome);
    for (int64_t i = 0; r->slots && i < r->n_slots; i++)
        arena_done(&r->slots[i].memory);
    free(r->slots);
    free(r->cursor.text);
    free(r->resume.text);
    free(r->endpoint);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
    *held = NULL;
}

const char *receiver_welcome(const receiver *r)
{
    return r->source ? client_welcome(r->source) : r->welcome;
}

int64_t receiver_rows(const receiver *r)
{
    return r->source ? client_rows(r->source) : -1;
}

int64_t receiver_left_over(const receiver *r)
{
    return r->source ? client_left_over(r->source) : 0;
}

/* Row numbers of a stream rise. Those of a recording start again after its end; the log says so
 * once, when the step takes the first of them (the thread is ahead of it). */
static void note_loop(receiver *r, const frame *head)
{
    if (r->n_taken && head->row <= r->last_row && !r->loop_told) {
        r->loop_told = true;
        log_warn("the recording ended after %lld rows and begins again: training.steps asks for "
                 "more rows than it holds",
                 (long long)r->n_taken);
    }
    r->last_row = head->row;
}

const char *receiver_cursor(const receiver *r)
{
    return text_of(&r->cursor);
}

/* Waits until something changes, but only for a short while, since a signal changes nothing here.
 */
static void wait_a_little(receiver *r)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += STOP_POLL_MS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&r->changed, &r->lock, &until);
}

status receiver_next(receiver *r, received *out, int64_t *inout_waited_ns)
{
    status st = ST_OK;
    pthread_mutex_lock(&r->lock);
    if (r->n_taken == r->n_filled && r->ended == ST_OK) {
        int64_t start = clock_ns();
        while (r->n_taken == r->n_filled && r->ended == ST_OK && st == ST_OK) {
            if (r->stopped && r->stopped() && !r->row_broadcast)
                st = FAIL(ST_STOPPED, "stopped by a signal while waiting for a row");
            else
                wait_a_little(r);
            /* Ranks that share rows must stop after the same row; interrupting the source makes its
             * thread tell all of them. */
            if (r->stopped && r->stopped() && hands_on(r))
                client_interrupt(r->source);
        }
        *inout_waited_ns += clock_ns() - start;
    }
    if (st == ST_OK && r->n_taken < r->n_filled)
        st = keep_text(&r->cursor, r->slots[r->n_taken % r->n_slots].row.cursor);
    if (st != ST_OK) {
        pthread_mutex_unlock(&r->lock);
        return st;
    }
    if (r->n_taken < r->n_filled) {
        slot *s = &r->slots[r->n_taken % r->n_slots];
        out->row = s->row;
        out->head = s->head;
        out->shared_bytes = s->shared_bytes;
        out->slot = s;
        note_loop(r, &s->head);
        r->n_taken++;
    } else {
        st = r->ended;
        status_set(&r->note);
    }
    pthread_mutex_unlock(&r->lock);
    return st;
}

void receiver_give_back(receiver *r, received *got)
{
    if (!got->slot)
        return;
    got->slot = NULL;
    pthread_mutex_lock(&r->lock);
    r->n_given_back++;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}
