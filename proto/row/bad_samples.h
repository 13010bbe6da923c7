/* SPDX-License-Identifier: Apache-2.0 */
/* bad_samples.h: a list of samples that were found bad: the quarantine of a daemon, or what a
 * consumer knows of it.
 *
 * A bad sample keeps its tokens and its place in its row; its patches are zero and its labels are
 * ignored: its document is blank. So the stream's shape does not depend on what was found bad. A
 * daemon keeps why it found a sample bad. A consumer keeps ids alone: those that the rows it
 * received listed (wire.md, "Bad samples"), which it names in HELLO and in checkpoints.
 *
 * Ids are written as a text of 64 printable characters, A-Z a-z 0-9 - and _, which count as 0 to
 * 63: the first id, then how far each is above the one before it. A number is written in digits of
 * 5 bits, lowest first; 32 is added to every digit but the last. A million ids are 1.0 to 2.9 MB,
 * if less than 10^10 samples lie between the first and the last. As JSON a list is
 *
 *   {"index":DIGEST,"count":N,"ids":TEXT}
 *
 * and so it is in HELLO, in checkpoints and in files. "index" is missing if it is not known of
 * which data the samples are. Those of earlier programs are still read: arrays
 * [{"id":N,"cause":"..."}..], which were in cursors too. */
#ifndef TESSERA_PROTO_ROW_BAD_SAMPLES_H
#define TESSERA_PROTO_ROW_BAD_SAMPLES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/hash.h"
#include "common/base/status.h"
#include "common/json/json.h"

enum {
    BAD_SAMPLES_MOST = 2000000, /* in any list; a HELLO with so many fits HELLO_BYTES */
    BAD_SAMPLES_WARN = 1600000, /* from here on the user is told that the list is nearly full */
    BAD_CAUSE_BYTES = 512,      /* a longer cause is cut, between two characters */
};
/* What a user can do about a list that is too long, or of other data. */
#define BAD_SAMPLES_MEND "repair the data and raise data.generation"

/* All zeros is an empty list. It takes 8 bytes an id, and another 8 where there are causes.
 * Letters: n how many ids. */
typedef struct bad_samples {
    int64_t *id;  /* [n] rising */
    char **cause; /* [n] owned texts, each NULL if it is not known; NULL: none is */
    int64_t n, capacity;
    char index[HASH_TEXT]; /* digest of the data's index; "" if it is not known */
} bad_samples;

void bad_samples_done(bad_samples *list); /* frees the entries; the list is empty afterwards */

/* Adds a sample. cause: NULL if it is not known. *out_new (may be NULL) is false if it was there
 * already; then its first cause stays. ST_BAD_INPUT: the list is full. */
WARN_UNUSED status bad_samples_add(bad_samples *list, int64_t id, const char *cause, bool *out_new);
/* Why the sample is in the list, "" if that is not known; NULL if it is not in the list. */
const char *bad_samples_find(const bad_samples *list, int64_t id);
/* How many ids of `from` are not in `list`. It reads both from end to end. */
int64_t bad_samples_count_new(const bad_samples *list, const bad_samples *from);
/* Adds the ids of another list, without causes, and takes its index where the list has none.
 * ST_BAD_INPUT: they are of different indexes, or would be too many; the list is as before. */
WARN_UNUSED status bad_samples_merge(bad_samples *list, const bad_samples *from);

/* Adds a list of either form, without causes; NULL is an empty one. ST_BAD_INPUT names the source
 * and what is wrong; the list is as before. */
WARN_UNUSED status bad_samples_read(bad_samples *list, const json_value *value, const char *source);
/* The same from its text; "" is an empty list. */
WARN_UNUSED status bad_samples_read_text(bad_samples *list, const char *text, const char *source);
/* Adds what an earlier program's cursor lists, which is of the cursor's index. */
WARN_UNUSED status bad_samples_read_cursor(bad_samples *list, const json_value *cursor,
                                           const char *source);
/* Writes a cursor without such a list; NULL is written as null. */
void bad_samples_put_cursor(const json_value *cursor, json_writer *writer);

/* Writes the list as JSON; the caller frees *out. An empty list is "". */
WARN_UNUSED status bad_samples_write(const bad_samples *list, char **out);

#endif
