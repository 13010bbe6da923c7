/* audit.c: rows that are made twice, so that a worker which returns other pixels or tokens than it
 * should is found: one that lies, and one whose memory or processor is bad.
 *
 * A share of the rows (prepd.audit) is made by two processes, on different hosts where there are.
 * Which rows these are follows from a secret that no worker is told. The two must have the same
 * digest, with which every receiver compares what it decodes. Where they differ, a third process
 * decides, and the one that stands alone is dismissed. A machine whose copy of the data lacks a
 * file of a row is not asked for it again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/dispatch_state.h"

enum { LISTED = 20, LIST_TEXT = 32 * LISTED };

/* Whether the secret draws this row. */
static bool is_drawn(const dispatch *state, const consumer_seat *consumer, uint64_t row)
{
    const uint64_t key[] = {state->place.secret, consumer->src == &state->eval,
                            (uint64_t)consumer->kind, row};
    const hash128 hash = hash_bytes(key, sizeof(key));
    uint64_t drawn;
    memcpy(&drawn, hash.bytes, sizeof(drawn));
    return (double)drawn * 0x1p-64 < state->options->prepd_audit;
}

static bool has_made(const row_audit *audit, uint64_t number)
{
    bool made = false;
    for (int k = 0; audit && k < audit->count; k++)
        made |= audit->by[k] == number;
    return made;
}

/* Another worker that can make the row; NULL if there is none. `apart`: on another host than the
 * first. */
static const worker_seat *other_worker(const dispatch *state, const row_audit *audit, bool apart)
{
    const worker_seat *other = state->seats;
    while (other && (!seat_can_work(state, other) || has_made(audit, other->number) ||
                     seat_lacks_file(other, &audit->lacking) ||
                     (apart && strcmp(other->host, audit->host[0]) == 0)))
        other = other->next;
    return other;
}

bool audit_may_take(const dispatch *state, const worker_seat *worker, const lease *leased)
{
    const row_audit *audit = leased->audit;
    if (!audit || lease_solo_item(leased) != LEASE_NO_ITEM)
        return true; /* whoever tries one sample alone does not make the row again */
    return !has_made(audit, worker->number) && !seat_lacks_file(worker, &audit->lacking) &&
           (strcmp(worker->host, audit->host[0]) != 0 || !other_worker(state, audit, true));
}

void audit_missed(lease *leased, const worker_seat *worker)
{
    if (leased->audit)
        seat_note_lack(worker, &leased->audit->lacking);
}

static hash128 digest_of(const wire_msg *made)
{
    frame head = {0};
    if (frame_decode(wire_msg_part(made, 0), "row", &head) != ST_OK)
        head.digest = (hash128){{0}};
    return head.digest;
}

/* Keeps a row until another worker has made it as well. Takes the message. */
static status keep_made(lease *leased, const worker_seat *worker, wire_msg *made)
{
    if (!leased->audit)
        leased->audit = (row_audit *)calloc(1, sizeof(*leased->audit));
    row_audit *audit = leased->audit;
    if (!audit) {
        wire_msg_free(&made);
        return FAIL(ST_NO_MEMORY, "no memory to audit a row");
    }
    const int place = audit->count++;
    audit->made[place] = made;
    audit->by[place] = worker->number;
    audit->digest[place] = digest_of(made);
    audit->pid[place] = worker->pid;
    snprintf(audit->host[place], sizeof(audit->host[place]), "%s", worker->host);
    return ST_OK;
}

/* Takes the row at this place of those that were made. */
static wire_msg *take_made(row_audit *audit, int place)
{
    wire_msg *made = audit->made[place];
    audit->made[place] = NULL;
    return made;
}

/* The last rows of this worker that were sent without an audit, for its user to doubt. */
static void list_unaudited(const dispatch *state, uint64_t number, char out[LIST_TEXT])
{
    int count = 0;
    char *to = out;
    *to = 0;
    for (const consumer_seat *consumer = state->consumer_seats; consumer; consumer = consumer->next)
        for (int64_t i = 0; i < consumer->n_made; i++) {
            const made_row *row = &consumer->made[i];
            if (row->by != number || row->audited || count++ >= LISTED)
                continue;
            to += snprintf(to, (size_t)(out + LIST_TEXT - to), "%s%s %llu", *out ? ", " : "",
                           consumer->stream, (unsigned long long)row->row);
        }
    if (count > LISTED)
        snprintf(to, (size_t)(out + LIST_TEXT - to), " and %d more", count - LISTED);
}

/* Sends the worker away that made the row at this place, which is not the good one. */
static void dismiss_deviant(dispatch *state, const lease *leased, int place, hash128 good)
{
    const row_audit *audit = leased->audit;
    char theirs[HASH_TEXT], ours[HASH_TEXT], rows[LIST_TEXT];
    hash_print(audit->digest[place], theirs);
    hash_print(good, ours);
    list_unaudited(state, audit->by[place], rows);
    const status st = FAIL(ST_PROTOCOL,
                           "row %llu of worker %d on %s has digest %s, but two others made it with "
                           "digest %s: the worker is dismissed. Rows that it made lately and that "
                           "nobody compared: %s",
                           (unsigned long long)leased->row, (int)audit->pid[place],
                           audit->host[place], theirs, ours, *rows ? rows : "none");
    worker_seat *worker = seat_of_number(state, audit->by[place]);
    if (!worker) { /* it has left, or was dismissed for another row */
        outside_warn(&state->outside, "audit: %s", status_text());
        return;
    }
    state->counts.deviants++;
    seat_tell_dismissal(state, worker, st);
    seat_dismiss(state, worker, "its row differs from what others made");
}

/* The second row has come, or the third: whether two agree. The good one becomes *out. */
static bool settle(dispatch *state, lease *leased, const worker_seat *worker, wire_msg *made,
                   wire_msg **out)
{
    row_audit *audit = leased->audit;
    const hash128 digest = digest_of(made);
    for (int k = 0; k < audit->count; k++) {
        if (!hash_equal(digest, audit->digest[k]))
            continue;
        leased->by = audit->by[k];
        leased->audited = true;
        *out = take_made(audit, k);
        wire_msg_free(&made);
        state->counts.audited++;
        for (int other = 0; other < audit->count; other++)
            if (other != k)
                dismiss_deviant(state, leased, other, digest);
        return true;
    }
    if (audit->count < AUDIT_TRIES - 1)
        return false;
    outside_warn(&state->outside,
                 "audit: row %llu came out differently from each of %d workers; that of pid %d on "
                 "%s is sent. Is the memory of these machines sound?",
                 (unsigned long long)leased->row, AUDIT_TRIES, (int)worker->pid, worker->host);
    *out = made;
    return true;
}

/* Decides what becomes of a row, and takes it. *out is the row to be sent, or NULL if another
 * worker is to make it first. */
static status audit_row(dispatch *state, lease *leased, const worker_seat *worker, wire_msg *made,
                        wire_msg **out)
{
    const row_audit self = {.count = 1, .by = {worker->number}};
    *out = NULL;
    if (leased->audit && settle(state, leased, worker, made, out))
        return ST_OK;
    if (!leased->audit) {
        const bool drawn = is_drawn(state, leased->owner, leased->row);
        if (!drawn || state->draining || !other_worker(state, &self, false)) {
            state->counts.unaudited += drawn;
            *out = made;
            return ST_OK;
        }
    }
    return keep_made(leased, worker, made);
}

/* Takes the row out of a worker's message and adds its tag. */
static status take_tagged(const lease *leased, wire_msg *message, wire_msg **out)
{
    wire_msg *made = NULL;
    TRY(wire_msg_new(&made));
    status st = wire_msg_move(made, message);
    if (st == ST_OK)
        st = wire_msg_add(made, leased->tag, strlen(leased->tag));
    if (st != ST_OK) {
        wire_msg_free(&made);
        return st;
    }
    *out = made;
    return ST_OK;
}

status audit_made(dispatch *state, lease *leased, const worker_seat *worker, wire_msg *message)
{
    wire_msg *made = NULL, *good = NULL;
    status st = take_tagged(leased, message, &made);
    if (st == ST_OK)
        st = audit_row(state, leased, worker, made, &good);
    if (st != ST_OK) {
        lease_book_return(&state->book, leased); /* the daemon ends, and frees the book */
        return st;
    }
    if (good)
        consumer_take_row(state, leased->owner, leased, good);
    else
        lease_unbegun(&state->book, leased); /* another worker makes it as well */
    return ST_OK;
}

/* Whether nobody is there who could make the row again, or it would show nothing. */
static bool is_stuck(const dispatch *state, const lease *leased)
{
    return leased->audit && (state->draining || !other_worker(state, leased->audit, false));
}

/* Sends a row as the first worker has made it. Takes its lease, which is in the book. */
static void give_up(dispatch *state, lease *leased)
{
    wire_msg *made = take_made(leased->audit, 0);
    leased->by = leased->audit->by[0];
    state->counts.unaudited++;
    lease_book_remove(&state->book, leased);
    consumer_take_row(state, leased->owner, leased, made);
}

bool audit_wants_third(const lease *leased)
{
    return leased->audit && leased->audit->count == AUDIT_TRIES - 1;
}

void audits_go_on(dispatch *state)
{
    for (lease *leased = state->book.lost, *next; leased; leased = next) {
        next = leased->next;
        if (!is_stuck(state, leased))
            continue;
        if (leased->audit->count == 1) {
            give_up(state, leased);
            return; /* the consumer may have gone, and its leases with it */
        }
        if (!local_call_third(state))
            continue;
        outside_warn(&state->outside,
                     "audit: row %llu came out differently from two workers; another local worker "
                     "is started to decide",
                     (unsigned long long)leased->row);
    }
}
