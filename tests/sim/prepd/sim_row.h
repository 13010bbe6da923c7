/* SPDX-License-Identifier: Apache-2.0 */
/* sim_row.h: the block of a simulated row, which stands where tokens and pixels would: 64-bit words
 *
 *   began, lied, n_docs, then for each document: sample, content (row_content.h), bad
 *
 * `began` is when its worker read its files, at the earliest. The digest is without the first two.
 * `lied` says that the worker changed the contents on purpose, so that the consumer can tell lies
 * that nothing can find from rows that are wrong. What else a row has is in its tag, which the
 * dispatcher adds (proto/row/tag.h). */
#ifndef TESSERA_TESTS_SIM_PREPD_SIM_ROW_H
#define TESSERA_TESTS_SIM_PREPD_SIM_ROW_H

#include "common/json/json.h"
#include "proto/wire/wire.h"
#include "tests/sim/prepd/sim_data.h"

enum { ROW_WORDS = 3, ROW_HEAD_WORDS = 3, MOST_DOCS = 256 };

typedef struct sim_row_doc {
    int64_t sample;
    uint64_t content;
    bool bad;
} sim_row_doc;

typedef struct sim_row {
    int64_t began_ns;
    bool lied;
    bool kills;    /* it ends whoever decodes it */
    bool is_whole; /* its content is that of its digest */
    int64_t n_docs;
    sim_row_doc doc[MOST_DOCS];
    json_value *tag; /* owned; freed by sim_row_done */
} sim_row;

/* How a worker changes a row that it makes. */
typedef enum row_lie {
    ROW_TRUE,
    ROW_LIES_CONTENT,
    ROW_LIES_DIGEST, /* the same, under the digest of the true content */
    ROW_LIES_IDS,
    ROW_KILLS, /* the same as ROW_LIES_CONTENT, and it ends whoever decodes it */
    ROW_FLIPS  /* bad memory: another content each time */
} row_lie;

/* Makes what all rows share, which stays for the life of the process. */
void sim_row_init(void);
/* What a lease says of each document of its row; no tag. Ends the process if there are too many. */
void sim_row_of_lease(const json_value *lease, sim_row *out);
/* Makes the message of a row from its lease, as a worker sends it. */
wire_msg *sim_row_make(const json_value *lease, row_lie lie, int64_t began_ns);
/* Reads it again, as it reaches a consumer. False for a message that no worker has made. */
bool sim_row_read(const wire_msg *message, const frame *head, sim_row *out);
void sim_row_done(sim_row *row);
/* Whether two messages, the second one in parts [at, at + 2) of another, hold the same row,
 * whatever their headers say. */
bool sim_row_same(const wire_msg *made, const wire_msg *other, size_t at);
/* Whether decoding the second one ends its decoder. */
bool sim_row_kills(const wire_msg *other, size_t at);
/* Whether the documents are those that the tag says, as a receiver sees it. */
bool sim_row_fits_tag(const sim_row *row);

#endif
