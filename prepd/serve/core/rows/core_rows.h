/* SPDX-License-Identifier: Apache-2.0 */
/* core_rows.h: what the rows of a consumer and their leases say: blank documents, tags and
 * leases as JSON, and the index that they are planned by. */
#ifndef TESSERA_PREPD_SERVE_CORE_ROWS_CORE_ROWS_H
#define TESSERA_PREPD_SERVE_CORE_ROWS_CORE_ROWS_H

#include "prepd/serve/core/state/dispatch_state.h"

/* index_build.c */
/* The most items of an index lease, which keeps one of texts near 64 KiB of JSON. */
enum { INDEX_LEASE_ITEMS = 128 };
WARN_UNUSED status index_build_start(source *section);
/* The next lease of the index; *out is NULL if there is nothing to lease now. */
WARN_UNUSED status index_build_produce(dispatch *state, source *section, lease **out);
/* Records that an item of the lease is refused, because it kills its workers. */
WARN_UNUSED status index_build_poison(dispatch *state, lease *leased, int64_t item,
                                      const char *cause);
/* Whether a text that is to be tried alone must wait. It is compared with its predecessor's text,
 * which its worker encodes too; until that one is settled, a death could be either's. */
bool index_build_waits(const lease *leased);
/* Has the text tried first with which the next one is compared, if both are in this lease and its
 * record is not there yet: its worker encodes both, so a death could be either's. */
void index_build_order_trials(lease *leased);
/* Completes the index if no record is left to come. */
WARN_UNUSED status index_build_finish(source *section);

/* index_records.c */
/* Takes the records that a worker sent for a lease, or for its one solo item, which is then done
 * with. PROTOCOL is the worker's fault; any other failure is not. */
WARN_UNUSED status index_build_take(lease *leased, const json_value *records,
                                    const worker_seat *worker, const char *from);

/* known_lists.c */
/* Why the sample is blank in the consumer's rows; NULL if it is not. */
const char *blank_cause(const consumer_seat *consumer, int64_t id);
/* How many samples are blank in them. It reads both lists from end to end. */
int64_t known_count(const consumer_seat *consumer);
/* The longest list that any consumer of this section may come to know. */
int64_t known_most(const dispatch *state, const source *section);
/* Tells the user once if that is nearly as long as a list may be. */
void known_warn(dispatch *state, const source *section, bool *inout_warned);
/* Whether so many more bytes of HELLOs and lists may be kept: else UNAVAILABLE. */
WARN_UNUSED status known_may_keep(const dispatch *state, int64_t bytes, const char *name);
/* Takes the lists of a HELLO and of its cursor (NULL: none). PROTOCOL: they cannot be read. */
WARN_UNUSED status known_take(dispatch *state, consumer_seat *consumer, const json_value *said,
                              const json_value *cursor, const char *name);
/* Refuses a list of other data, now that the index is there. */
WARN_UNUSED status known_check(const consumer_seat *consumer, const char *name);
void known_leave(consumer_seat *consumer);

/* payload.c */
/* Writes a lease as JSON: *out [*out_size], on the heap. row: the documents of a LEASE_ROW. `ship`
 * receives the bytes of the lease's files; NULL if the worker finds them itself. What is needed
 * meanwhile is added to the scratch memory. */
WARN_UNUSED status payload_lease(dispatch *state, lease *leased, const planned_row *row, bool press,
                                 wire_msg *ship, char **out, size_t *out_size);

/* tags.c */
/* Makes the tag of a row that this worker is going to make: lease->tag. The row has these
 * documents. */
WARN_UNUSED status tag_make(dispatch *state, lease *leased, const planned_row *row,
                            const worker_seat *worker);
/* How many bytes of a tag the list of the row's blank documents is. */
WARN_UNUSED status tag_list_bytes(consumer_seat *consumer, const planned_row *row, arena *memory,
                                  int64_t *out);

#endif
