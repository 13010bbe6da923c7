/* SPDX-License-Identifier: Apache-2.0 */
/* core_decisions.h: who does which lease, what workers answer, and who is believed. */
#ifndef TESSERA_PREPD_SERVE_CORE_DECISIONS_CORE_DECISIONS_H
#define TESSERA_PREPD_SERVE_CORE_DECISIONS_CORE_DECISIONS_H

#include "prepd/serve/core/state/dispatch_state.h"

/* leasing.c */
void seats_check_time(dispatch *state, int64_t now); /* finds workers that hang or have gone */
void seats_schedule(dispatch *state);                /* gives work to idle workers */

/* Whether the images of the next row are to be filtered and compressed, if the options say auto.
 * Pure rules: no sockets, no clock. The choice never enters the stream, since
 * a receiver takes either form.
 *
 * Compressing costs a worker's core time and roughly halves what is sent. Time is lost if the
 * workers are the slower part, and gained if a link is. Two links may be the slower part: the one
 * to the consumer, which shows in how much of the credit is under way; and the one to a remote
 * worker, which shows in how long its rows take to arrive. On ipc there is no link, only memory. */
/* The choice for a consumer that is not on ipc. was: the choice before. unreturned: bytes sent and
 * not given back. credit: bytes that may still be reserved. row: bytes of a row. Between the two
 * thresholds the choice stays as it was. */
bool compress_for_consumer(bool was, int64_t unreturned, int64_t credit, int64_t row);
/* Notes that a row of this many bytes arrived `ns` later than the time that making it took. */
void compression_link_note(compression_link *link, int64_t bytes, int64_t ns);
bool compress_for_link(const compression_link *link);

/* doubts.c */
/* The worker says that an item of its row lease cannot be decoded. A decider tries it alone. */
WARN_UNUSED status failure_note(lease *leased, int64_t item, const char *cause,
                                const worker_seat *worker);
/* The decider has decoded the item that it was to try alone. Who said otherwise is excluded, and
 * all its seats go. */
void failure_refute(dispatch *state, lease *leased, const worker_seat *worker);
/* Whether this decider may try the item of which another has said that it cannot be decoded. */
bool failure_may_try(const dispatch *state, const worker_seat *worker, const lease *leased);
void failures_poll(dispatch *state); /* has what was told tried alone */
/* A worker has made the row of this lease: its consumer gets it, or a decider makes it first. Takes
 * the lease and the message's parts, unless it fails. */
WARN_UNUSED status row_made(dispatch *state, lease *leased, const worker_seat *worker,
                            wire_msg *message);
/* Whether the worker has not made this row before. */
bool doubt_may_take(const worker_seat *worker, const lease *leased);
/* How many deciders at least must be here for this lease. */
int doubt_deciders(const dispatch *state, const lease *leased);
void doubts_poll(dispatch *state); /* sends drawn rows that no decider can check */
int doubts_waiting(const dispatch *state);
bool decider_is_here(const dispatch *state, uint64_t except); /* but for that seat's number */
bool decider_can_take(const dispatch *state, const lease *leased);
/* A decider has found the word of this account's workers to be false: excludes it. Its seats go. */
void key_contradicted(dispatch *state, uint64_t number, const char *why);
/* Handles REFUSE of a consumer, whose session ends. */
WARN_UNUSED status refusal_take(dispatch *state, consumer_seat *consumer, const json_value *said,
                                const char *name);
/* If the row of this new lease was refused before, a decider makes it and says who is wrong. */
WARN_UNUSED status refusal_apply(dispatch *state, const consumer_seat *consumer, lease *leased);

/* worker_answers.c */
/* Each of these three ends what the worker has in work, unless the answer is late. PROTOCOL if it
 * does not answer the lease. */
WARN_UNUSED status answer_row(dispatch *state, worker_seat *worker, const frame *head,
                              wire_msg *message, const char *name);
WARN_UNUSED status answer_records(dispatch *state, worker_seat *worker, const frame *head,
                                  const json_value *said, const char *name);
WARN_UNUSED status answer_failed(dispatch *state, worker_seat *worker, const frame *head,
                                 const json_value *said, const char *name);
/* Handles ON: the worker is at another item, or tells where its time went. */
WARN_UNUSED status answer_on(dispatch *state, worker_seat *worker, const frame *head,
                             const json_value *said, const char *name);

/* Writes [{"file":F,"warning":W}...], at most `most` entries from number `from` on. Returns the
 * number of the next one. */
int64_t damage_put(const source *section, int64_t from, int64_t most, json_writer *out);

#endif
