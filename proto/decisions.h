/* decisions.h: quarantine decisions as a consumer hears of them: which samples are bad, why, and in
 * which row that was found.
 *
 * A daemon finds bad samples while it makes rows, and several daemons that serve ranks of one
 * stream find different ones. Each rank hears of its daemon's: a row's tag lists the bad samples of
 * that row, its cursor all that were known when the row was begun. Where ranks meet, at a
 * checkpoint, their lists become one, which all ranks hand to their daemons in HELLO when the run
 * goes on (wire.md, "Several daemons").
 *
 * Of two decisions about a sample, the one of the lower row stands, since that is the first that
 * the stream met. One whose row is not known (it is in a cursor, or older than this) comes after
 * all others, and of two with the same row the cause that is first in the order of bytes stands. So
 * a union does not depend on the order in which lists are added, nor on how often. */
#ifndef TESSERA_PROTO_DECISIONS_H
#define TESSERA_PROTO_DECISIONS_H

#include <stdint.h>

#include "common/base/status.h"

#define DECISION_ROW_UNKNOWN INT64_MAX

typedef struct decision {
    int64_t sample;
    int64_t row; /* the lowest row in which it was found bad, or DECISION_ROW_UNKNOWN */
    char *cause; /* owned */
} decision;

/* All zeros is an empty list. */
typedef struct decisions {
    decision *entry; /* [n_entries] by rising sample; owned */
    int64_t n_entries, capacity;
} decisions;

void decisions_done(decisions *list); /* frees the entries; the list is empty afterwards */

/* Adds a list as JSON, [{"id":N,"cause":"...","row":R}..]; "" is an empty one. `row` is the row of
 * those that do not name theirs. ST_BAD_INPUT names the source if the text is no such list; then
 * *inout is as before. */
WARN_UNUSED status decisions_read(decisions *inout, const char *text, int64_t row,
                                  const char *source);
/* Adds the list in a cursor, whose decisions have no rows; "" is an empty cursor. */
WARN_UNUSED status decisions_read_cursor(decisions *inout, const char *cursor, const char *source);

/* Writes the list as decisions_read reads it; the caller frees *out. */
WARN_UNUSED status decisions_write(const decisions *list, char **out);
/* Writes those of `heard` that would change `known` if they were added; *out is NULL if none would.
 */
WARN_UNUSED status decisions_write_news(const decisions *known, const decisions *heard, char **out);

/* Writes a cursor without its list, which is then empty. The caller frees *out. */
WARN_UNUSED status decisions_cut_cursor(const char *cursor, const char *source, char **out);

#endif
