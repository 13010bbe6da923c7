#include "trainer/input/receive.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"

typedef struct slot {
    arena memory;
    row row;
    frame head;
} slot;

struct receiver {
    client *source;
    slot *slots;
    int64_t n_slots;
    pthread_t thread;
    bool thread_runs;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Rows are filled, taken and given back in order; counts since the start. */
    int64_t n_filled, n_taken, n_given_back;
    bool stop;
    status ended; /* ST_OK while the thread works */
    status_note note;
    /* of the taker */
    uint64_t last_row;
    bool loop_told;
    bool (*stopped)(void);
    char *cursor; /* of the last row taken; heap */
    size_t cursor_bytes;
};

enum { STOP_POLL_MS = 50 };

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

        arena_reset(&s->memory);
        status st = client_next(r->source, &s->memory, &s->row, &s->head, NULL);

        pthread_mutex_lock(&r->lock);
        if (st == ST_OK) {
            r->n_filled++;
        } else {
            r->ended = st;
            r->note = *status_last();
        }
        pthread_cond_broadcast(&r->changed);
        pthread_mutex_unlock(&r->lock);
        if (st != ST_OK)
            return NULL;
    }
}

status receiver_open(const receiver_options *o, receiver **out)
{
    status st = ST_OK;
    receiver *r = calloc(1, sizeof *r);
    if (!r)
        return FAIL(ST_NO_MEMORY, "receiver: out of memory");
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    r->n_slots = o->slots;
    r->stopped = o->stopped;
    r->slots = calloc((size_t)o->slots, sizeof *r->slots);
    if (!r->slots) {
        st = FAIL(ST_NO_MEMORY, "receiver: out of memory for %lld rows", (long long)o->slots);
        goto done;
    }
    for (int64_t i = 0; i < r->n_slots; i++)
        arena_init(&r->slots[i].memory, 0);
    if (o->replay.path && o->replay.path[0])
        TRY_OR(done, client_replay(&o->replay, &r->source));
    else
        TRY_OR(done, client_open(&o->client, &r->source));
    if (pthread_create(&r->thread, NULL, receive_thread, r) != 0) {
        st = FAIL(ST_OS, "receiver: can not start its thread");
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
        client_interrupt(r->source);
        pthread_join(r->thread, NULL);
    }
    client_close(&r->source);
    for (int64_t i = 0; r->slots && i < r->n_slots; i++)
        arena_done(&r->slots[i].memory);
    free(r->slots);
    free(r->cursor);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
    *held = NULL;
}

const char *receiver_welcome(const receiver *r)
{
    return client_welcome(r->source);
}

int64_t receiver_rows(const receiver *r)
{
    return client_rows(r->source);
}

/* Rows of a stream rise; of a recording that is over they begin again. Said once, when the step
 * takes the first of them: the thread is ahead. */
static void note_loop(receiver *r, const frame *head)
{
    if (r->n_taken && head->row <= r->last_row && !r->loop_told) {
        r->loop_told = true;
        log_warn("the recording is over after %lld rows and begins again: training.steps asks for "
                 "more than it holds",
                 (long long)r->n_taken);
    }
    r->last_row = head->row;
}

/* The row's own text goes with its slot. */
static status keep_cursor(receiver *r, const char *cursor)
{
    size_t bytes = strlen(cursor) + 1;
    if (bytes > r->cursor_bytes) {
        char *more = realloc(r->cursor, 2 * bytes);
        if (!more)
            return FAIL(ST_NO_MEMORY, "receiver: out of memory");
        r->cursor = more;
        r->cursor_bytes = 2 * bytes;
    }
    memcpy(r->cursor, cursor, bytes);
    return ST_OK;
}

const char *receiver_cursor(const receiver *r)
{
    return r->cursor ? r->cursor : "";
}

/* Until something changed, for a short while: a signal changes nothing here. */
static void wait_a_little(receiver *r)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
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
            if (r->stopped && r->stopped())
                st = FAIL(ST_STOPPED, "stopped by a signal while waiting for a row");
            else
                wait_a_little(r);
        }
        *inout_waited_ns += clock_ns() - start;
    }
    if (st == ST_OK && r->n_taken < r->n_filled)
        st = keep_cursor(r, r->slots[r->n_taken % r->n_slots].row.cursor);
    if (st != ST_OK) {
        pthread_mutex_unlock(&r->lock);
        return st;
    }
    if (r->n_taken < r->n_filled) {
        slot *s = &r->slots[r->n_taken % r->n_slots];
        out->row = s->row;
        out->head = s->head;
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
