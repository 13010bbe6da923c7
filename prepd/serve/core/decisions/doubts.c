/* SPDX-License-Identifier: Apache-2.0 */
/* doubts.c: rows that a decider makes, or makes again, before they are sent.
 *
 * A row of a worker that is no decider is in doubt if the secret draws it (prepd.audit), or if its
 * key is watched. A decider gets its bytes, makes the row itself, compares the content, and what
 * the decider made is sent. If the two differ, a second decider makes the row too: if that one
 * agrees with the first, the key is excluded. Rows of deciders are drawn as well and made again by
 * another, so that bad memory is found. Where two deciders differ a third one makes the row, an
 * alarm is raised, and nobody is excluded.
 *
 * A row that a consumer refused is made again by a decider, whose digest shows who is wrong: the
 * maker is excluded if the row was another one (once a second decider agrees); otherwise the
 * maker's key is watched, and the consumer's key gets rows of deciders only. A consumer that
 * refuses what two deciders made alike is turned away for a while. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/rows/core_rows.h"
#include "prepd/serve/core/consumers/core_consumers.h"
#include "prepd/serve/core/workers/core_workers.h"
#include "prepd/serve/core/decisions/core_decisions.h"

enum { ALARM_KEYS = 3 };
/* How long a drawn row waits where no decider can start; then it is sent unchecked. */
static const int64_t UNCHECKED_NS = 30000000000;
static const int64_t HOUR_NS = 3600 * INT64_C(1000000000);

bool doubt_may_take(const worker_seat *worker, const lease *leased)
{
    return !doubt_has_made(leased->doubt, worker->number) ||
           lease_solo_item(leased) != LEASE_NO_ITEM;
}

int doubt_deciders(const dispatch *state, const lease *leased)
{
    int count = 1;
    for (const worker_seat *worker = state->seats; leased->doubt && worker; worker = worker->next)
        count += worker->decider && seat_can_work(worker) &&
                 doubt_has_made(leased->doubt, worker->number);
    return count;
}

bool decider_can_take(const dispatch *state, const lease *leased)
{
    for (const worker_seat *worker = state->seats; worker; worker = worker->next)
        if (worker->decider && seat_can_work(worker) && doubt_may_take(worker, leased))
            return true;
    return false;
}

bool decider_is_here(const dispatch *state, uint64_t except)
{
    for (const worker_seat *worker = state->seats; worker; worker = worker->next)
        if (worker->decider && worker->number != except && seat_can_work(worker))
            return true;
    return false;
}

static bool is_drawn(const dispatch *state, const consumer_seat *consumer, uint64_t row,
                     double share)
{
    const uint64_t key[] = {state->place.secret, consumer->src == &state->eval,
                            (uint64_t)consumer->kind, row};
    const hash128 hash = hash_bytes(key, sizeof(key));
    uint64_t drawn;
    memcpy(&drawn, hash.bytes, sizeof(drawn));
    return share >= 1 || (double)drawn * 0x1p-64 < share; /* the product may round up to 1 */
}

static void alarm_raise(dispatch *state, const char *why)
{
    snprintf(state->alarm.why, sizeof state->alarm.why, "%s", why);
    state->alarm.at_ns = state->now_ns;
    state->alarm.count++;
    core_warn(state, "ALARM %s", why);
}

/* Raises an alarm if the words of several keys were found to be false of late: it may be this
 * machine that is wrong. */
static void count_contradicted(dispatch *state)
{
    char why[sizeof state->alarm.why];
    int count = 0, at = snprintf(why, sizeof why,
                                 "either this machine or the workers of these keys are wrong, "
                                 "which it contradicted within an hour:");
    for (int i = 0; i < state->accounts.used; i++) {
        const account *held = state->accounts.of[i];
        if (held->contradicted_ns == 0 || state->now_ns - held->contradicted_ns > HOUR_NS)
            continue;
        count++;
        if (at < (int)sizeof why)
            at += snprintf(why + at, sizeof why - (size_t)at, " %s", held->name);
    }
    if (count >= ALARM_KEYS)
        alarm_raise(state, why);
}

void key_contradicted(dispatch *state, uint64_t number, const char *why)
{
    account *held = account_of(&state->accounts, number);
    state->counts.contradicted++;
    if (!held) {
        core_warn(state, "a key that has gone was wrong: %s", why);
        return;
    }
    if (!account_exclude(held, why, state->now_ns))
        return; /* it was said before */
    seats_send_off(state, held);
    count_contradicted(state);
}

/* Sends the row to its consumer. Takes the lease and the row, which has no tag yet. */
static status send_row(dispatch *state, lease *leased, wire_msg *made)
{
    const status st = wire_msg_add(made, leased->tag, strlen(leased->tag));
    if (st != ST_OK) {
        wire_msg_free(&made);
        lease_book_return(&state->book, leased); /* the daemon ends, and frees the book */
        return st;
    }
    doubt_free(&leased->doubt);
    consumer_take_row(state, leased->owner, leased, made);
    return ST_OK;
}

static status send_checked(dispatch *state, lease *leased, wire_msg *made)
{
    state->counts.checked++;
    return send_row(state, leased, made);
}

/* Keeps a decider's row, with which that of the next one is compared. Takes it. */
static void keep_decided(dispatch *state, lease *leased, const worker_seat *worker, wire_msg *made)
{
    doubt *held = leased->doubt;
    held->must = true;
    held->made[held->n_made++] = made;
    held->by[held->n_by++] = worker->number;
    lease_unbegun(&state->book, leased);
}

/* The digest that shows whether a refused row was another one. */
static status judge_refused(dispatch *state, lease *leased, const worker_seat *worker,
                            wire_msg *made)
{
    doubt *held = leased->doubt;
    account *maker = account_of(&state->accounts, held->account),
            *refuser = account_of(&state->accounts, held->refuser);
    held->refused = false;
    if (!hash_equal(made_digest(made), held->digest)) {
        if (!held->account)
            alarm_raise(state,
                        "two of this machine's workers made a row differently: is its memory "
                        "sound?");
        keep_decided(state, leased, worker, made);
        return ST_OK;
    }
    if (maker)
        account_watch(maker);
    if (refuser && held->account)
        penalty_set(&refuser->suspected, held->refused_ns, state->now_ns);
    else if (refuser)
        penalty_set(&refuser->refused, held->refused_ns, state->now_ns);
    if (refuser)
        core_warn(state, "refused row came out the same, its consumer's key %s row=%llu key=\"%s\"",
                  held->account ? "gets rows of this machine's own workers for a while"
                                : "is turned away for a while",
                  (unsigned long long)leased->row, refuser->name);
    return send_checked(state, leased, made);
}

/* A third decider has made the row, after two that differ. What two of them made alike is sent; if
 * there are none, a fourth makes it. */
static status judge_third(dispatch *state, lease *leased, const worker_seat *worker, wire_msg *made)
{
    doubt *held = leased->doubt;
    if (leased->same[0] || leased->same[1] ||
        (held->refuser && hash_equal(made_digest(made), held->digest))) {
        core_warn(state,
                  "row %llu was made differently by two of this machine's workers; that of pid %d "
                  "is sent, which agrees with one of them",
                  (unsigned long long)leased->row, (int)worker->pid);
        return send_checked(state, leased, made);
    }
    alarm_raise(state,
                "three of this machine's workers made a row differently: is its memory sound?");
    if (held->n_made > 1) {
        wire_msg_free(&held->made[0]);
        held->made[0] = held->made[--held->n_made];
    }
    held->by[0] = held->by[--held->n_by];
    keep_decided(state, leased, worker, made);
    return ST_OK;
}

/* A second decider has made the row, or a third. */
static status judge_again(dispatch *state, lease *leased, const worker_seat *worker, wire_msg *made)
{
    doubt *held = leased->doubt;
    char why[2 * DOUBT_WHO_BYTES];
    if (held->n_by == DOUBT_DECIDERS - 1)
        return judge_third(state, leased, worker, made);
    if (!leased->same[0]) {
        alarm_raise(state, "two of this machine's workers made a row differently: is its memory "
                           "sound?");
        keep_decided(state, leased, worker, made);
        return ST_OK;
    }
    const uint64_t number = held->account;
    const uint64_t row = leased->row;
    snprintf(why, sizeof why, "row %llu of %s is not what two of this machine's workers made of it",
             (unsigned long long)row, held->maker);
    const status st = send_checked(state, leased, made);
    if (number)
        key_contradicted(state, number, why);
    return st;
}

static status judge(dispatch *state, lease *leased, const worker_seat *worker, wire_msg *made)
{
    doubt *held = leased->doubt;
    if (held->refused)
        return judge_refused(state, leased, worker, made);
    if (held->n_by > 0)
        return judge_again(state, leased, worker, made);
    if (leased->same[0])
        return send_checked(state, leased, made);
    while (held->n_made > 0)
        wire_msg_free(&held->made[--held->n_made]);
    keep_decided(state, leased, worker, made);
    return ST_OK;
}

/* Whether a row that was just made is to be made by another as well. */
static bool is_in_doubt(dispatch *state, const lease *leased, const worker_seat *worker,
                        bool *out_must)
{
    static const double OTHER_BUILD = 0.02; /* share of the rows of another build */
    const double audit = state->options->prepd_audit,
                 share = worker->other_build && audit < OTHER_BUILD ? OTHER_BUILD : audit;
    account *maker = worker->decider ? NULL : worker->of;
    const bool watched = maker && maker->watched > 0;
    *out_must = watched || audit >= 1;
    if (watched) {
        maker->watched--;
        return true;
    }
    if (leased->decide && worker->decider && audit < 1)
        return false; /* it is with a decider because nobody else may or could */
    if (!is_drawn(state, leased->owner, leased->row, share))
        return false;
    if (!worker->decider || decider_is_here(state, worker->number) ||
        (audit >= 1 && local_may_decide(state)))
        return true;
    state->counts.unchecked++; /* there is one decider, which would compare with itself */
    return false;
}

/* Keeps a row for a decider to make again. Takes it. */
static status begin_doubt(dispatch *state, lease *leased, const worker_seat *worker, bool must,
                          wire_msg *made)
{
    doubt *held = doubt_new(worker->decider ? 0 : worker->of->number, state->now_ns);
    if (!held) {
        wire_msg_free(&made);
        return FAIL(ST_NO_MEMORY, "no memory to check a row");
    }
    snprintf(held->maker, sizeof held->maker, "worker %d on %.63s", (int)worker->pid, worker->host);
    held->must = must || worker->decider;
    held->made[held->n_made++] = made;
    if (worker->decider)
        held->by[held->n_by++] = worker->number;
    held->tag = leased->tag;
    leased->tag = NULL;
    leased->doubt = held;
    lease_unbegun(&state->book, leased);
    return ST_OK;
}

status row_made(dispatch *state, lease *leased, const worker_seat *worker, wire_msg *message)
{
    wire_msg *made = NULL;
    bool must;
    status st = wire_msg_new(&made);
    if (st == ST_OK)
        st = wire_msg_move(made, message);
    if (st != ST_OK) {
        wire_msg_free(&made);
        lease_book_return(&state->book, leased); /* the daemon ends, and frees the book */
        return st;
    }
    if (leased->doubt)
        return judge(state, leased, worker, made);
    if (!is_in_doubt(state, leased, worker, &must))
        return send_row(state, leased, made);
    st = begin_doubt(state, leased, worker, must, made);
    if (st != ST_OK)
        lease_book_return(&state->book, leased);
    return st;
}

/* Sends a row as it is, since no decider can start. Takes its lease, which is in the book. */
static void give_up(dispatch *state, lease *leased)
{
    doubt *held = leased->doubt;
    wire_msg *made = held->made[--held->n_made];
    free(leased->tag);
    leased->tag = held->tag;
    held->tag = NULL;
    leased->account = held->account;
    state->counts.unchecked++;
    lease_book_remove(&state->book, leased);
    if (send_row(state, leased, made) != ST_OK)
        dispatch_fail(state, status_last()->code);
}

/* Whether the row may leave unchecked: it was only drawn, and there is no decider; or it is that of
 * the one decider that there can be. */
static bool may_give_up(const dispatch *state, const lease *leased)
{
    const doubt *held = leased->doubt;
    if (!held->must)
        return !decider_is_here(state, 0);
    return held->account == 0 && held->n_by == 1 && !held->refuser &&
           !decider_can_take(state, leased) && !local_may_decide(state);
}

void doubts_poll(dispatch *state)
{
    for (lease *leased = state->book.lost; leased; leased = leased->next) {
        const doubt *held = leased->doubt;
        if (!held || held->n_made == 0 || state->now_ns - held->since_ns < UNCHECKED_NS ||
            !may_give_up(state, leased))
            continue;
        give_up(state, leased);
        return; /* the consumer may have gone, and its leases with it */
    }
}

int doubts_waiting(const dispatch *state)
{
    int count = 0;
    for (const lease *leased = state->book.lost; leased; leased = leased->next)
        count += leased->doubt != NULL;
    for (const worker_seat *worker = state->seats; worker; worker = worker->next)
        count += worker->work && worker->work->doubt;
    return count;
}

/* --- REFUSE --- */

status refusal_take(dispatch *state, consumer_seat *consumer, const json_value *said,
                    const char *name)
{
    int64_t row;
    const char *why;
    TRY(json_want_int(said, "row", name, &row));
    TRY(json_want_text(said, "message", name, &why));
    const made_row *found = sent_row_find(consumer, (uint64_t)row);
    if (!found)
        return FAIL_IN(ST_PROTOCOL, name,
                       "the consumer refuses row %lld, which was not sent to it lately",
                       (long long)row);
    const account *maker = account_of(&state->accounts, found->account);
    core_warn(state, "row refused row=%lld rank=%d of=%d key=\"%s\" maker=\"%s\" why=\"%s\"",
              (long long)row, consumer->rank, consumer->ranks, consumer->of->name,
              maker ? maker->name : "a worker of this machine", why);
    state->refusals[state->next_refusal++ % MAX_REFUSALS] =
        (refusal){.made = *found,
                  .section = consumer->src,
                  .kind = consumer->kind,
                  .rank = consumer->rank,
                  .ranks = consumer->ranks,
                  .account = consumer->of->number,
                  .told_ns = state->now_ns};
    consumer_close(state, consumer, "a row that was refused is made again");
    return ST_OK;
}

status refusal_apply(dispatch *state, const consumer_seat *consumer, lease *leased)
{
    for (int i = 0; i < MAX_REFUSALS; i++) {
        refusal *told = &state->refusals[i];
        if (!told->section || told->section != consumer->src || told->kind != consumer->kind ||
            told->rank != consumer->rank || told->ranks != consumer->ranks ||
            told->made.row != leased->row)
            continue;
        doubt *held = doubt_new(told->made.account, state->now_ns);
        if (!held)
            return FAIL(ST_NO_MEMORY, "no memory to make a refused row again");
        const account *maker = account_of(&state->accounts, told->made.account);
        snprintf(held->maker, sizeof held->maker, "a worker of key %s", maker ? maker->name : "-");
        held->refused = held->must = true;
        held->digest = told->made.digest;
        held->refuser = told->account;
        held->refused_ns = told->told_ns;
        if (!told->made.account)
            held->by[held->n_by++] = told->made.by;
        leased->doubt = held;
        leased->bad_mark = told->made.bad_mark;
        *told = (refusal){0};
        return ST_OK;
    }
    return ST_OK;
}

/* --- samples that cannot be decoded ---
 *
 * Whoever says so, a decider tries the sample alone, another process than the one that said it
 * where there is one. If it fails there too, the sample is bad. If it does not, and it was no
 * decider that said so, the key of that worker is excluded: no worker can take samples out of a
 * training by its word. */

status failure_note(lease *leased, int64_t item, const char *cause, const worker_seat *worker)
{
    failure **at = &leased->failures;
    while (*at && (*at)->item != item)
        at = &(*at)->next;
    if (*at)
        return ST_OK;
    failure *told = (failure *)calloc(1, sizeof *told);
    if (told)
        told->cause = strdup(cause);
    if (!told || !told->cause) {
        free(told);
        return FAIL(ST_NO_MEMORY, "no memory for the failure of a sample");
    }
    told->item = item;
    told->by = worker->number;
    /* What a worker says of files that the daemon did not send is the daemon's own word. */
    told->account = worker->decider || !leased->all_sent ? 0 : worker->of->number;
    *at = told;
    return ST_OK;
}

static bool is_tried(const lease *leased)
{
    return leased->failures && lease_solo_item(leased) == leased->failures->item;
}

bool failure_may_try(const dispatch *state, const worker_seat *worker, const lease *leased)
{
    return !is_tried(leased) || leased->failures->by != worker->number ||
           !decider_is_here(state, worker->number);
}

void failure_refute(dispatch *state, lease *leased, const worker_seat *worker)
{
    char why[128];
    if (!is_tried(leased))
        return;
    const failure *told = leased->failures;
    const int64_t id = lease_sample(told->item);
    const uint64_t number = told->account;
    if (number) {
        snprintf(why, sizeof why, "it said that sample %lld cannot be decoded (\"%.60s\")",
                 (long long)id, told->cause);
    } else {
        core_warn(state,
                  "sample %lld, which one of this machine's workers could not decode (\"%s\"), was "
                  "decoded by pid %d",
                  (long long)id, told->cause, (int)worker->pid);
    }
    lease_drop_failure(leased);
    leased->decide = true; /* whoever could not may not be able to again */
    if (number)
        key_contradicted(state, number, why);
}

/* Whether all that the item stands for is blank in the consumer's rows by now. Then no worker
 * decodes it, so a trial proves nothing. */
static bool is_blank(const lease *leased, int64_t item)
{
    const consumer_seat *consumer = leased->owner;
    int64_t id;
    for (int64_t place = 0; lease_next_hit(leased, item, &place, &id);)
        if (!blank_cause(consumer, id))
            return false;
    return true;
}

void failures_poll(dispatch *state)
{
    for (lease *leased = state->book.lost; leased; leased = leased->next) {
        while (leased->failures && is_blank(leased, leased->failures->item)) {
            if (is_tried(leased))
                lease_end_alone(leased);
            lease_drop_failure(leased);
        }
        if (leased->failures && !leased->solo)
            lease_try_alone(leased, leased->failures->item);
    }
}
