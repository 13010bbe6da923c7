/* quarantine.h: the list of samples that were found bad while they were made into rows, and why.
 *
 * A quarantined sample keeps its tokens and its place in its row; its patches are zero and its
 * labels are ignored, so the stream's shape does not depend on what was found bad. The list travels
 * as JSON,
 * [{"id":N,"cause":"..."}], in rows, cursors and checkpoints, and comes back with HELLO. */
#ifndef TESSERA_PREPD_SERVE_CORE_QUARANTINE_H
#define TESSERA_PREPD_SERVE_CORE_QUARANTINE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/json/json.h"
#include "common/base/status.h"

typedef struct quarantined {
    int64_t sample;
    char *cause; /* owned */
} quarantined;

/* All zeros is an empty list. */
typedef struct quarantine {
    quarantined *entry; /* [n_entries] by rising sample */
    int64_t n_entries, capacity;
    char *json;           /* the whole list, made when it is asked for; NULL after a change */
    int64_t quoted_bytes; /* that json takes as a text inside other JSON */
} quarantine;

void quarantine_init(quarantine *list);
void quarantine_done(quarantine *list);

enum { QUARANTINE_CAUSE_BYTES = 512 }; /* a longer cause is cut, between two characters */

/* Adds a sample. *out_new is false if it was there already; then its first cause stays. */
WARN_UNUSED status quarantine_add(quarantine *list, int64_t sample, const char *cause,
                                  bool *out_new);
/* Adds everything of another list. */
WARN_UNUSED status quarantine_copy(quarantine *to, const quarantine *from);
/* Why the sample is in the list; NULL if it is not. */
const char *quarantine_find(const quarantine *list, int64_t sample);
/* The list as JSON; borrowed until the next change. */
WARN_UNUSED status quarantine_json(quarantine *list, const char **out);
/* How many bytes it takes where it is part of a text inside other JSON, as in a tag's cursor. */
WARN_UNUSED status quarantine_quoted_bytes(quarantine *list, int64_t *out);
/* Adds the entries of a cursor's list, all of them or none. PROTOCOL for a list that is not an
 * array of {id, cause}, has a sample outside [0, n_samples), more entries than samples, or a cause
 * longer than QUARANTINE_CAUSE_BYTES. `source` names the list in errors. */
WARN_UNUSED status quarantine_merge(quarantine *list, const json_value *added, int64_t n_samples,
                                    const char *source);

#endif
