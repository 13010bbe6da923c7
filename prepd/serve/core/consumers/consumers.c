/* SPDX-License-Identifier: Apache-2.0 */
/* consumers.c: brings rows to consumers: in stream order, within their credit, and END after the
 * last.
 *
 * A row is leased only if the consumer's credit covers its planned bytes, which stay reserved until
 * it is sent, so that a late row can always finish. Rows that are made early wait in their slots.
 * One row is always allowed, however small the credit. A step's rows are given to the ranks of a
 * stream by their predicted time (proto/row/assign.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/rows/core_rows.h"
#include "prepd/serve/core/consumers/core_consumers.h"
#include "prepd/serve/core/state/hello.h"
#include "proto/row/assign.h"

enum {
    /* The planned bytes of a row: its tokens (six i32 or f32 each), its patches (768 bytes each)
     * with the heads of the image parts, and room for borders, ids and cursor. They are an upper
     * bound. What a row did not need is given back when it is sent. */
    TOKEN_BYTES = 32,
    PREFIX_BYTES = 4, /* for each document of a row with prefixes: its doc_prefix */
    TAG_BYTES = 64,   /* for each document: its numbers in the tag */
    PATCH_WIRE_BYTES = 772,
    ROW_BYTES = 16384,
    REFERENCE_BYTES = 1024, /* for each document: ten answers of a few words, with their types */
};

enum { NOBODY = -1 };              /* the rank of a row past the stream's end */
enum { QUARANTINE_JUDGED = 1000 }; /* samples to send before data.quarantine_limit is applied */

consumer_seat *consumer_find(dispatch *state, const wire_peer *peer)
{
    for (consumer_seat *consumer = state->consumer_seats; consumer; consumer = consumer->next)
        if (wire_peer_is(&consumer->peer, peer))
            return consumer;
    return NULL;
}

void consumer_free(consumer_seat *consumer)
{
    for (int i = 0; i < consumer->n_slots; i++)
        wire_msg_free(&consumer->slots[(consumer->first_slot + i) % SESSION_SLOTS].msg);
    planning_leave(consumer);
    if (consumer->of)
        consumer->of->uses--;
    known_leave(consumer);
    free(consumer->rank_of);
    free(consumer->made);
    free(consumer->cursor);
    free(consumer);
}

void consumer_close(dispatch *state, consumer_seat *consumer, const char *error)
{
    const status code = state->outcome != ST_OK ? state->outcome : ST_STOPPED;
    if (error)
        outside_send_error(&state->outside, DOOR_CONSUMERS, &consumer->peer,
                           FAIL(code, "%s", error));
    for (worker_seat *worker = state->seats; worker; worker = worker->next) {
        if (worker->work && worker->work->owner == consumer)
            worker->work->owner = NULL;
        if (worker->ahead && worker->ahead->owner == consumer)
            worker->ahead->owner = NULL;
    }
    lease_book_forget(&state->book, consumer);
    consumer_seat **at = &state->consumer_seats;
    while (*at && *at != consumer)
        at = &(*at)->next;
    if (*at) {
        *at = consumer->next;
        state->n_consumers--;
    }
    core_info(state, "consumer left stream=%s rank=%d of=%d rows=%llu", consumer->stream,
              consumer->rank, consumer->ranks, (unsigned long long)consumer->rows_sent);
    consumer_free(consumer);
}

static int64_t row_cost(const planned_row *placed)
{
    row_measure measure = {.tokens = placed->tokens, .patches = placed->patches};
    for (int64_t i = 0; i < placed->n_docs; i++)
        measure.squares += (int64_t)placed->docs[i].tokens *
                           (placed->docs[i].tokens + 2 * (int64_t)placed->docs[i].before);
    return assign_cost(&measure);
}

/* Assigns the rows of a step to the ranks: consumer->rank_of. The last step of a stream of single
 * samples may be short; no rank gets what lies past its end. END if the step has no row. */
static status assign_step(dispatch *state, consumer_seat *consumer, uint64_t step)
{
    const int64_t batch = consumer->src->options.training_global_batch_size;
    int64_t *cost = calloc((size_t)batch, sizeof(*cost));
    status st = ST_OK;
    if (!cost)
        return FAIL(ST_NO_MEMORY, "no memory for a step of %lld rows", (long long)batch);
    int64_t count = 0;
    for (; count < batch; count++) {
        planned_row placed;
        arena_reset(&state->scratch);
        st = plan_row(consumer->plan, consumer->from, step * (uint64_t)batch + (uint64_t)count,
                      &state->scratch, &placed);
        if (st == ST_END && count > 0)
            break;
        TRY_OR(done, st);
        cost[count] = row_cost(&placed);
    }
    TRY_OR(done, assign_rows(cost, count, consumer->ranks, consumer->rank_of));
    for (int64_t k = count; k < batch; k++)
        consumer->rank_of[k] = NOBODY;
    consumer->step = step;
done:
    free(cost);
    return st;
}

/* The last row that next_owed will ask the plan for. */
static uint64_t last_looked_at(const consumer_seat *consumer)
{
    const uint64_t batch = (uint64_t)consumer->src->options.training_global_batch_size;
    return consumer->ranks > 1 ? (consumer->next_row / batch + 1) * batch - 1 : consumer->next_row;
}

/* Finds the first row from next_row on that this rank is owed. rank_of then describes its step. */
static status next_owed(dispatch *state, consumer_seat *consumer, uint64_t *out)
{
    const uint64_t batch = (uint64_t)consumer->src->options.training_global_batch_size;
    for (; consumer->ranks > 1; consumer->next_row++) {
        if (consumer->step != consumer->next_row / batch)
            TRY(assign_step(state, consumer, consumer->next_row / batch));
        if (consumer->rank_of[consumer->next_row % batch] == consumer->rank)
            break;
    }
    *out = consumer->next_row;
    return ST_OK;
}

/* The row with which this consumer continues after `row`, which is in the step of rank_of. With
 * several ranks it is in the same step as long as the step owes this rank a row; otherwise it is
 * the first row of the next step, where all ranks agree. */
static uint64_t row_after(const consumer_seat *consumer, uint64_t row)
{
    const uint64_t batch = (uint64_t)consumer->src->options.training_global_batch_size;
    if (consumer->ranks == 1)
        return row + 1;
    for (uint64_t k = row + 1; k % batch != 0; k++)
        if (consumer->rank_of[k % batch] == consumer->rank)
            return k;
    return (row / batch + 1) * batch;
}

stream_place consumer_place(const consumer_seat *consumer)
{
    const uint64_t rows = plan_epoch_rows(consumer->plan);
    const uint64_t in_epoch = rows ? consumer->next_row % rows : 0;
    return (stream_place){
        .epoch = rows ? (int64_t)(consumer->next_row / rows) : 0,
        .share = rows ? (double)in_epoch / (double)rows : 1.0,
        .seconds_left =
            consumer->rows_per_s > 0 ? (double)(rows - in_epoch) / consumer->rows_per_s : -1.0,
    };
}

static void end_if_done(dispatch *state, consumer_seat *consumer)
{
    if (!consumer->ended || consumer->n_slots > 0 || consumer->end_sent)
        return;
    char json[64];
    int length =
        snprintf(json, sizeof(json), "{\"rows\":%llu}", (unsigned long long)consumer->rows_sent);
    const status st = outside_send_json(&state->outside, DOOR_CONSUMERS, &consumer->peer, KIND_END,
                                        consumer->next_row, json, (size_t)length);
    consumer->end_sent = st != ST_TIMEOUT; /* after a timeout consumers_deliver tries again */
    if (st != ST_OK && consumer->end_sent)
        core_debug(state, "consumer could not be told of the end: %s", status_text());
}

/* Whether the next row fits the consumer's credit and its share of the daemon's buffer. A consumer
 * may grant any credit; if it then does not read, it only fills its own share. */
static bool may_reserve(const dispatch *state, const consumer_seat *consumer)
{
    const int64_t share = state->options->prepd_buffer_bytes / state->n_consumers;
    return (consumer->need <= consumer->credit &&
            consumer->reserved + consumer->unreturned + consumer->need <= share) ||
           (consumer->n_slots == 0 && consumer->unreturned <= 0);
}

int64_t consumer_row_bytes(const conf *options)
{
    return options->training_seq_len * TOKEN_BYTES + plan_patches_of(options) * PATCH_WIRE_BYTES +
           ROW_BYTES;
}

/* The bytes that a row reserves. What is found bad only after it was leased is not among them. */
static status planned_bytes(dispatch *state, consumer_seat *consumer, const planned_row *placed,
                            int64_t *out)
{
    bool prefixes = false;
    int64_t list;
    TRY(tag_list_bytes(consumer, placed, &state->scratch, &list));
    for (int64_t i = 0; i < placed->n_docs; i++)
        prefixes |= placed->docs[i].prefix > 0;
    *out = placed->tokens * TOKEN_BYTES + placed->n_docs * TAG_BYTES +
           (placed->patches + placed->pairs_patches) * PATCH_WIRE_BYTES + ROW_BYTES + list +
           (prefixes ? placed->n_docs * PREFIX_BYTES : 0) +
           (consumer->src->options.is_held_out ? placed->n_docs * REFERENCE_BYTES : 0);
    return ST_OK;
}

/* Makes the lease of a row. Its items are its documents in order; a prefix is one too. *out_samples
 * are the documents that are samples. */
static status lease_row(dispatch *state, consumer_seat *consumer, const planned_row *placed,
                        lease **out, int64_t *out_samples)
{
    int64_t *item = NULL, samples = placed->n_docs;
    lease *leased = NULL;
    status st = ST_OK;
    TRY(arena_alloc(&state->scratch, ((size_t)placed->n_docs + 1) * sizeof(*item), (void **)&item));
    for (int64_t i = 0; i < placed->n_docs; i++)
        item[i] = placed->docs[i].prefix ? ~placed->docs[i].sample : placed->docs[i].sample;
    TRY(lease_new(&state->book, LEASE_ROW, consumer, placed->number, item, placed->n_docs,
                  &leased));
    for (int64_t i = 0; i < placed->n_docs; i++) {
        if (placed->docs[i].prefix == 0)
            continue;
        TRY_OR(failed, lease_set_branches(leased, i, placed->docs[i].prefix));
        samples--;
    }
    *out = leased;
    *out_samples = samples;
    return ST_OK;
failed:
    lease_free(&leased);
    return st;
}

status consumer_produce(dispatch *state, consumer_seat *consumer, lease **out, planned_row *out_row)
{
    uint64_t number;
    planned_row placed;
    status st;
    if (!consumer->welcomed || consumer->ended || consumer->n_slots == SESSION_SLOTS ||
        (consumer->need && !may_reserve(state, consumer)))
        return ST_OK;
    bool ready;
    TRY(planning_row(state, consumer, last_looked_at(consumer), &ready));
    if (!ready)
        return ST_OK;
    st = next_owed(state, consumer, &number);
    arena_reset(&state->scratch);
    if (st == ST_OK)
        st = plan_row(consumer->plan, consumer->from, number, &state->scratch, &placed);
    if (st == ST_END) {
        consumer->ended = true;
        end_if_done(state, consumer);
        return ST_OK;
    }
    if (st != ST_OK)
        return st;
    TRY(planned_bytes(state, consumer, &placed, &consumer->need));
    if (!may_reserve(state, consumer))
        return ST_OK;
    int64_t samples;
    TRY(lease_row(state, consumer, &placed, out, &samples));
    consumer->slots[(consumer->first_slot + consumer->n_slots++) % SESSION_SLOTS] =
        (slot){.row = number, .reserved = consumer->need, .n_samples = samples};
    consumer->credit -= consumer->need;
    consumer->reserved += consumer->need;
    consumer->need = 0;
    *out_row = placed;
    consumer->next_row = (*out)->after = row_after(consumer, number);
    return ST_OK;
}

/* --- rows that were sent ---
 *
 * Who made the rows that a consumer got: all that it has not given the credit of back,
 * and some before them, since it may look at a row after that. */

enum { ROWS_KEPT = SESSION_SLOTS }; /* at least, if so many were sent */

hash128 made_digest(const wire_msg *made)
{
    frame head = {0};
    if (frame_decode(wire_msg_part(made, 0), "row", &head) != ST_OK)
        head.digest = (hash128){{0}};
    return head.digest;
}

/* How many of the last rows have to be kept. */
static int64_t rows_needed(const consumer_seat *consumer)
{
    int64_t count = 0, bytes = 0;
    while (count < consumer->n_made && (count < ROWS_KEPT || bytes < consumer->unreturned))
        bytes += consumer->made[consumer->n_made - ++count].bytes;
    return count;
}

/* Makes room for one more: forgets old rows if that gives much, or takes more memory. */
static status make_room(consumer_seat *consumer)
{
    if (consumer->n_made < consumer->made_capacity)
        return ST_OK;
    const int64_t needed = rows_needed(consumer), old = consumer->n_made - needed;
    if (2 * old > consumer->n_made) {
        memmove(consumer->made, consumer->made + old, (size_t)needed * sizeof(*consumer->made));
        consumer->n_made = needed;
        return ST_OK;
    }
    const int64_t capacity = consumer->made_capacity ? 2 * consumer->made_capacity : ROWS_KEPT;
    made_row *made = (made_row *)realloc(consumer->made, (size_t)capacity * sizeof(*made));
    if (!made)
        return FAIL(ST_NO_MEMORY, "no memory to remember who made %lld rows", (long long)capacity);
    consumer->made = made;
    consumer->made_capacity = capacity;
    return ST_OK;
}

status sent_row_add(consumer_seat *consumer, const made_row *sent)
{
    TRY(make_room(consumer));
    consumer->made[consumer->n_made++] = *sent;
    return ST_OK;
}

const made_row *sent_row_find(const consumer_seat *consumer, uint64_t row)
{
    for (int64_t i = consumer->n_made - 1; i >= 0; i--)
        if (consumer->made[i].row == row)
            return &consumer->made[i];
    return NULL;
}

/* Ends the run if too many samples are quarantined. Samples count when they are sent, since by then
 * it is known whether each is good; workers are rows ahead of the consumer, and even more while one
 * row waits for a sample that hangs. Samples that a HELLO named do not count, since they
 * are not this run's doing, and what the index refuses never gets here. */
static void judge_quarantine(dispatch *state)
{
    const serve_counts *counts = &state->counts;
    const double share =
        counts->samples ? 100.0 * (double)counts->blank / (double)counts->samples : 0.0;
    if (counts->samples < QUARANTINE_JUDGED || share <= state->options->data_quarantine_limit ||
        state->stopping)
        return;
    const source *section = state->train.bad.n ? &state->train : &state->eval;
    const bad_samples *bad = &section->bad;
    dispatch_fail(state,
                  FAIL(ST_BAD_INPUT,
                       "%.1f %% of %llu samples are quarantined, which is more than "
                       "data.quarantine_limit allows (%.1f %%); one of them is sample %lld: %s; "
                       "prepd check lists them all. Raise the limit to continue from the "
                       "checkpoint, or repair the samples and start again",
                       share, (unsigned long long)counts->samples,
                       state->options->data_quarantine_limit, bad->n ? (long long)bad->id[0] : -1,
                       bad->n ? bad->cause[0] : "-"));
}

/* Sends the rows that are ready, in order, as far as the consumer takes them. */
static void deliver(dispatch *state, consumer_seat *consumer)
{
    status st;
    while (!consumer->away_ns && consumer->n_slots > 0 &&
           consumer->slots[consumer->first_slot].msg) {
        slot *first = &consumer->slots[consumer->first_slot];
        int64_t bytes = (int64_t)wire_msg_bytes(first->msg);
        st = state->outside.send(state->outside.shell, DOOR_CONSUMERS, &consumer->peer, first->msg);
        if (st == ST_TIMEOUT)
            return; /* consumers_deliver tries again */
        if (st != ST_OK) {
            consumer->away_ns = state->now_ns;
            return;
        }
        wire_msg_free(&first->msg);
        first->made.bytes = bytes;
        if (sent_row_add(consumer, &first->made) != ST_OK)
            dispatch_fail(state, status_last()->code);
        consumer->credit += first->reserved - bytes;
        consumer->reserved -= first->reserved;
        consumer->unreturned += bytes;
        consumer->said_ns = state->now_ns;
        consumer->rows_sent++;
        state->counts.rows++;
        state->counts.stream_rows[find_stream(consumer->stream)]++;
        state->counts.bytes += (uint64_t)bytes;
        state->counts.samples += (uint64_t)first->n_samples;
        state->counts.blank += (uint64_t)first->n_blank;
        consumer->first_slot = (consumer->first_slot + 1) % SESSION_SLOTS;
        consumer->n_slots--;
    }
    judge_quarantine(state);
    end_if_done(state, consumer);
}

void consumers_deliver(dispatch *state)
{
    for (consumer_seat *consumer = state->consumer_seats, *next; consumer; consumer = next) {
        next = consumer->next;
        if (consumer->n_slots > 0 && consumer->slots[consumer->first_slot].msg)
            deliver(state, consumer);
        else
            end_if_done(state, consumer);
    }
}

/* Tells consumers that have heard nothing for a while that the daemon is there, and closes those
 * that have gone without BYE, which shows only when sending to them fails. */
void consumers_drop_dead(dispatch *state, int64_t now)
{
    for (consumer_seat *consumer = state->consumer_seats, *next; consumer; consumer = next) {
        next = consumer->next;
        if (!consumer_is_lost(&state->outside, &consumer->peer, now, &consumer->said_ns,
                              &consumer->away_ns))
            continue;
        core_info(state, "consumer gone: %s", status_text());
        consumer_close(state, consumer, NULL);
    }
}

void consumer_take_row(dispatch *state, consumer_seat *consumer, lease *leased, wire_msg *made)
{
    for (int i = 0; i < consumer->n_slots; i++) {
        slot *at = &consumer->slots[(consumer->first_slot + i) % SESSION_SLOTS];
        if (at->row != leased->row || at->msg)
            continue;
        for (int64_t k = 0; k < leased->n_items && consumer->src->bad.n; k++)
            at->n_blank += bad_samples_find(&consumer->src->bad, leased->item[k]) != NULL;
        at->made = (made_row){.row = leased->row,
                              .by = leased->by,
                              .account = leased->account,
                              .bad_mark = leased->bad_mark,
                              .digest = made_digest(made)};
        at->msg = made;
        made = NULL;
        break;
    }
    wire_msg_free(&made);
    lease_free(&leased);
    deliver(state, consumer);
}

/* --- twins ---
 *
 * Two consumers that say that they are the same rank of the same run. Both would get the
 * same rows, and the run would train on them twice.
 *
 * The second is refused while the first is there. A connection that was cut can look alive here for
 * some seconds, though; so a consumer that comes back under its own name takes the place of its
 * former connection, and goes on with the cursor that it brings. */

static consumer_seat *find_twin(const dispatch *state, const consumer_seat *newcomer)
{
    consumer_seat *other = newcomer->run[0] ? state->consumer_seats : NULL;
    while (other && (other->rank != newcomer->rank || strcmp(other->run, newcomer->run) != 0 ||
                     strcmp(other->stream, newcomer->stream) != 0))
        other = other->next;
    return other;
}

/* Says farewell to the former connection of a consumer, which hears it only if someone else uses
 * its name. That one must not come back in its turn, so it is not told that the daemon stops. */
static void tell_former(const dispatch *state, const consumer_seat *former)
{
    const status st = FAIL(ST_CONFIG,
                           "another connection in the name of this consumer (\"%s\" of run \"%s\") "
                           "has taken its place: every consumer needs a name of its own",
                           former->self, former->run);
    outside_send_error(&state->outside, DOOR_CONSUMERS, &former->peer, st);
}

status twin_make_room(dispatch *state, const consumer_seat *newcomer, const char *name)
{
    consumer_seat *twin = find_twin(state, newcomer);
    if (!twin)
        return ST_OK;
    const bool is_same = newcomer->self[0] && strcmp(twin->self, newcomer->self) == 0;
    if (!is_same && consumer_is_there(&state->outside, &twin->peer))
        return FAIL_IN(ST_CONFIG, name,
                       "another consumer reads stream %s as rank %d of run \"%s\", since %lld s: "
                       "two of them would get the same rows. End that one (if its machine has "
                       "died, try again in 15 s), connect this one as another rank, or give it a "
                       "run id of its own, with which it reads the stream by itself",
                       twin->stream, twin->rank, twin->run,
                       (long long)((state->now_ns - twin->started_ns) / 1000000000));
    if (is_same)
        tell_former(state, twin);
    core_info(state, "consumer gone: %s",
              is_same ? "it has come back on another connection" : "another takes its place");
    consumer_close(state, twin, NULL);
    return ST_OK;
}
