/* SPDX-License-Identifier: Apache-2.0 */
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
#include <time.h>

#include "common/base/clock.h"
#include "common/json/json.h"
#include "common/program/log.h"
#include "proto/session/client.h"
#include "proto/row/row_order.h"
#include "trainer/input/row_feed.h"

/* ---- a daemon that is gone ---- */

enum {
    LOOK_MS = 1000,
    NAP_MS = 200, /* between two tries: a daemon that starts or drains refuses at once */
};
static const int64_t LOG_NS = INT64_C(10) * 1000 * 1000 * 1000;

static double seconds_since(int64_t begin)
{
    return (double)(clock_ns() - begin) * 1e-9;
}

static status came_back(const char *endpoint, int64_t begin)
{
    log_warn("prepd at %s is back after %.1f s; its stream continues after the last row", endpoint,
             seconds_since(begin));
    return ST_OK;
}

/* To be called after client_next on c returned ST_UNAVAILABLE. `endpoint` is for the log; `cursor`
 * is that of the last row that arrived, "" before the first. ST_OK once the stream continues;
 * ST_UNAVAILABLE, with the first cause, after patience_s seconds; ST_STOPPED after
 * client_interrupt; otherwise the daemon's refusal, which no waiting would change. */
static status rejoin_stream(client *consumer, const char *endpoint, const char *cursor,
                            double patience_s)
{
    const status_note why = *status_last();
    const int64_t begin = clock_ns();
    int64_t logged = begin;
    log_warn("prepd at %s is gone (%s); waiting for it for up to %g s (prepd.reconnect_timeout)",
             endpoint, why.message, patience_s);
    while (seconds_since(begin) < patience_s) {
        const double left_ms = (patience_s - seconds_since(begin)) * 1000.0;
        status st = client_rejoin(consumer, cursor, left_ms < LOOK_MS ? (int)left_ms + 1 : LOOK_MS);
        if (st == ST_OK)
            return came_back(endpoint, begin);
        if (st != ST_TIMEOUT && st != ST_UNAVAILABLE)
            return st;
        if (clock_ns() - logged >= LOG_NS) {
            logged = clock_ns();
            log_warn("still waiting for prepd at %s after %.0f s: %s", endpoint,
                     seconds_since(begin), status_text());
        }
        if (st == ST_UNAVAILABLE)
            nanosleep(&(struct timespec){.tv_nsec = NAP_MS * 1000000L}, NULL);
    }
    return FAIL(ST_UNAVAILABLE,
                "prepd at %s did not come back within %g s "
                "(prepd.reconnect_timeout): %s",
                endpoint, patience_s, why.message);
}

/* ---- the receiver ---- */

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
    bool loop_logged;
    bool (*stopped)(void);
    text_kept cursor;  /* the cursor of the last row taken */
    bad_samples known; /* what the run began with, and what the rows taken have listed */
};

enum { STOP_POLL_MS = 50 };

static status keep_text(text_kept *kept, const char *text)
{
    size_t bytes = strlen(text) + 1;
    if (bytes > kept->bytes) {
        char *more = realloc(kept->text, 2 * bytes);
        if (!more)
            return FAIL(ST_NO_MEMORY, "receiver: out of memory");
        kept->text = more;
        kept->bytes = 2 * bytes;
    }
    memcpy(kept->text, text, bytes);
    return ST_OK;
}

static const char *text_of(const text_kept *kept)
{
    return kept->text ? kept->text : "";
}

/* Checks that a row's cursor points to a row after it: to the next row; for one of several ranks,
 * to one of the same step or to the next step's first. A checkpoint with another cursor would train
 * rows twice or not at all. */
static status check_cursor(const receiver *input, const slot *at)
{
    const int64_t number = (int64_t)at->head.row, step_rows = input->step_rows;
    const int64_t last =
        input->ranks > 1 && step_rows > 0 ? (number / step_rows + 1) * step_rows : number + 1;
    char place[64];
    int64_t next;
    snprintf(place, sizeof place, "row %" PRId64, number);
    if (cursor_read(at->row.cursor, place, "train", step_rows, &next) != ST_OK)
        return FAIL_IN(ST_PROTOCOL, input->endpoint, "%s", status_text());
    return next > number && next <= last
               ? ST_OK
               : FAIL_IN(ST_PROTOCOL, input->endpoint,
                         "row %" PRId64 " came with a cursor that points to row %" PRId64
                         "; it must point to a row from %" PRId64 " to %" PRId64,
                         number, next, number + 1, last);
}

/* Receives the next row. If the daemon goes away meanwhile, waits for it and goes on. */
static status next_row(receiver *input, slot *place)
{
    for (;;) {
        arena_reset(&place->memory);
        status st = client_next(input->source, &place->memory, &place->row, &place->head, NULL);
        if (st == ST_OK && input->trains && input->endpoint)
            TRY(check_cursor(input, place));
        if (st == ST_OK)
            return keep_text(&input->resume, place->row.cursor);
        if (st != ST_UNAVAILABLE || !input->endpoint || input->reconnect_s <= 0)
            return st;
        TRY(rejoin_stream(input->source, input->endpoint, text_of(&input->resume),
                          input->reconnect_s));
    }
}

static bool hands_on(const receiver *input)
{
    return input->row_broadcast && row_broadcast_is_source(input->row_broadcast);
}

static status fill_slot(receiver *input, slot *place)
{
    if (input->source)
        return next_row(input, place);
    arena_reset(&place->memory);
    return row_feed_next(input->row_broadcast, &place->memory, &place->row, &place->head,
                         &place->shared_bytes);
}

static void note_end(receiver *input, status how)
{
    pthread_mutex_lock(&input->lock);
    input->ended = how;
    input->note = *status_last();
    pthread_cond_broadcast(&input->changed);
    pthread_mutex_unlock(&input->lock);
}

static void *receive_thread(void *user)
{
    receiver *input = user;
    for (;;) {
        pthread_mutex_lock(&input->lock);
        while (!input->stop && input->n_filled - input->n_given_back >= input->n_slots)
            pthread_cond_wait(&input->changed, &input->lock);
        bool stop = input->stop;
        slot *place = &input->slots[input->n_filled % input->n_slots];
        pthread_mutex_unlock(&input->lock);
        if (stop)
            return NULL;
        status st = fill_slot(input, place);
        if (st != ST_OK) {
            note_end(input, st);
            if (hands_on(input) && row_feed_last(input->row_broadcast, st) != ST_OK)
                status_clear(); /* closing */
            return NULL;
        }
        pthread_mutex_lock(&input->lock);
        input->n_filled++;
        pthread_cond_broadcast(&input->changed);
        pthread_mutex_unlock(&input->lock);
        /* The step may read the row meanwhile. Only this thread fills its slot again. */
        if (hands_on(input) &&
            row_feed_send(input->row_broadcast, &place->row, &place->head) != ST_OK)
            return NULL;
    }
}

static status read_welcome(receiver *input)
{
    json_value *welcome = NULL;
    hash128 index;
    const char *text = client_welcome(input->source);
    TRY(json_parse(text, strlen(text), "WELCOME", &welcome));
    input->step_rows = json_int(json_find(welcome, "global_batch_size"), 0);
    if (hash_parse(json_text(json_find(welcome, "index"), ""), &index))
        hash_print(index, input->known.index);
    json_free(&welcome);
    return ST_OK;
}

static status open_source(receiver *input, const receiver_options *options)
{
    if (options->replay.path && options->replay.path[0])
        return client_replay(&options->replay, &input->source);
    input->endpoint = strdup(options->client.endpoint);
    if (!input->endpoint)
        return FAIL(ST_NO_MEMORY, "receiver: out of memory");
    TRY(client_open(&options->client, &input->source));
    if (input->trains && options->client.quarantine)
        TRY(bad_samples_read_text(&input->known, options->client.quarantine, "quarantine"));
    return read_welcome(input);
}

/* Opens this rank's own source of rows, or waits for the source of the rank that receives them for
 * this one. */
static status reach_rows(receiver *input, const receiver_options *options)
{
    if (!input->row_broadcast)
        return open_source(input, options);
    if (!row_broadcast_is_source(input->row_broadcast))
        return row_feed_await(input->row_broadcast, &input->welcome);
    status st = open_source(input, options);
    if (st == ST_OK)
        return row_feed_welcome(input->row_broadcast, client_welcome(input->source));
    status_note note = *status_last();
    if (row_feed_last(input->row_broadcast, st) != ST_OK)
        status_clear();
    status_set(&note);
    return st;
}

status receiver_open(const receiver_options *options, receiver **out)
{
    status st = ST_OK;
    receiver *input = calloc(1, sizeof *input);
    if (!input) {
        row_broadcast *given = options->row_broadcast;
        row_broadcast_close(&given);
        return FAIL(ST_NO_MEMORY, "receiver: out of memory");
    }
    input->row_broadcast = options->row_broadcast;
    pthread_mutex_init(&input->lock, NULL);
    /* Waits use the monotonic clock: a wall clock that is set back would stretch a wait, and a
     * signal would go unnoticed for as long. */
    pthread_condattr_t steady;
    pthread_condattr_init(&steady);
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    pthread_cond_init(&input->changed, &steady);
    pthread_condattr_destroy(&steady);
    input->n_slots = options->slots;
    input->stopped = options->stopped;
    input->reconnect_s = options->reconnect_s;
    input->trains = options->trains;
    input->ranks = options->client.ranks;
    input->slots = calloc((size_t)options->slots, sizeof *input->slots);
    if (!input->slots) {
        st = FAIL(ST_NO_MEMORY, "receiver: out of memory for %lld rows", (long long)options->slots);
        goto done;
    }
    for (int64_t i = 0; i < input->n_slots; i++)
        arena_init(&input->slots[i].memory, 0);
    TRY_OR(done, reach_rows(input, options));
    if (pthread_create(&input->thread, NULL, receive_thread, input) != 0) {
        st = FAIL(ST_OS, "receiver: its thread cannot be started");
        goto done;
    }
    input->thread_runs = true;
    *out = input;
    return ST_OK;
done:
    receiver_close(&input);
    return st;
}

void receiver_close(receiver **held)
{
    receiver *input = *held;
    if (!input)
        return;
    if (input->thread_runs) {
        pthread_mutex_lock(&input->lock);
        input->stop = true;
        pthread_cond_broadcast(&input->changed);
        pthread_mutex_unlock(&input->lock);
        if (input->source)
            client_interrupt(input->source);
        if (input->row_broadcast)
            row_broadcast_interrupt(input->row_broadcast);
        pthread_join(input->thread, NULL);
    }
    client_close(&input->source);
    row_broadcast_close(&input->row_broadcast);
    free(input->welcome);
    for (int64_t i = 0; input->slots && i < input->n_slots; i++)
        arena_done(&input->slots[i].memory);
    free(input->slots);
    free(input->cursor.text);
    bad_samples_done(&input->known);
    free(input->resume.text);
    free(input->endpoint);
    pthread_cond_destroy(&input->changed);
    pthread_mutex_destroy(&input->lock);
    free(input);
    *held = NULL;
}

const char *receiver_welcome(const receiver *input)
{
    return input->source ? client_welcome(input->source) : input->welcome;
}

int64_t receiver_rows(const receiver *input)
{
    return input->source ? client_rows(input->source) : -1;
}

int64_t receiver_left_over(const receiver *input)
{
    return input->source ? client_left_over(input->source) : 0;
}

/* Row numbers of a stream rise. Those of a recording start again after its end; the log says so
 * once, when the step takes the first of them (the thread is ahead of it). */
static void note_loop(receiver *input, const frame *head)
{
    if (input->n_taken && head->row <= input->last_row && !input->loop_logged) {
        input->loop_logged = true;
        log_warn("the recording ended after %lld rows and begins again: training.steps asks for "
                 "more rows than it holds",
                 (long long)input->n_taken);
    }
    input->last_row = head->row;
}

const char *receiver_cursor(const receiver *input)
{
    return text_of(&input->cursor);
}

/* Keeps what a row says of its own bad samples. */
static status note_bad_samples(receiver *input, const received *got)
{
    if (!input->trains || !input->endpoint || strcmp(got->row.quarantine, "[]") == 0)
        return ST_OK;
    char place[64];
    snprintf(place, sizeof place, "row %" PRIu64, got->head.row);
    return bad_samples_read_text(&input->known, got->row.quarantine, place);
}

const bad_samples *receiver_bad_samples(const receiver *input)
{
    return &input->known;
}

/* Waits until something changes, but only for a short while,
 * since a signal changes nothing here. */
static void wait_a_little(receiver *input)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += STOP_POLL_MS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&input->changed, &input->lock, &until);
}

status receiver_next(receiver *input, received *out, int64_t *inout_waited_ns)
{
    status st = ST_OK;
    pthread_mutex_lock(&input->lock);
    if (input->n_taken == input->n_filled && input->ended == ST_OK) {
        int64_t start = clock_ns();
        while (input->n_taken == input->n_filled && input->ended == ST_OK && st == ST_OK) {
            if (input->stopped && input->stopped() && !input->row_broadcast)
                st = FAIL(ST_STOPPED, "stopped by a signal while waiting for a row");
            else
                wait_a_little(input);
            /* Ranks that share rows must stop after the same row; interrupting the source makes its
             * thread report it to all of them. */
            if (input->stopped && input->stopped() && hands_on(input))
                client_interrupt(input->source);
        }
        *inout_waited_ns += clock_ns() - start;
    }
    if (st == ST_OK && input->n_taken < input->n_filled)
        st = keep_text(&input->cursor, input->slots[input->n_taken % input->n_slots].row.cursor);
    if (st != ST_OK) {
        pthread_mutex_unlock(&input->lock);
        return st;
    }
    if (input->n_taken < input->n_filled) {
        slot *place = &input->slots[input->n_taken % input->n_slots];
        out->row = place->row;
        out->head = place->head;
        out->shared_bytes = place->shared_bytes;
        out->slot = place;
        note_loop(input, &place->head);
        input->n_taken++;
    } else {
        st = input->ended;
        status_set(&input->note);
    }
    pthread_mutex_unlock(&input->lock);
    return st == ST_OK ? note_bad_samples(input, out) : st;
}

void receiver_give_back(receiver *input, received *got)
{
    if (!got->slot)
        return;
    got->slot = NULL;
    pthread_mutex_lock(&input->lock);
    input->n_given_back++;
    pthread_cond_broadcast(&input->changed);
    pthread_mutex_unlock(&input->lock);
}
