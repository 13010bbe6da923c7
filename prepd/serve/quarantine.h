/* quarantine.h: samples that cost themselves only: who, why, decided when.
 *
 * A quarantined sample keeps its tokens and place in its row; its patches are zero and its labels
 * are ignored. The list travels as JSON, [{"id":N,"cause":"..."}], in rows, cursors and
 * checkpoints, and comes back with HELLO. */
#ifndef TESSERA_PREPD_SERVE_QUARANTINE_H
#define TESSERA_PREPD_SERVE_QUARANTINE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/json/json.h"
#include "common/base/status.h"

typedef struct quarantined {
    int64_t sample;
    char *cause;
} quarantined;

typedef struct quarantine {
    quarantined *entry; /* [n] by rising sample */
    int64_t n, capacity;
    char *json; /* the whole list, made when asked for; NULL after a change */
} quarantine;

void quarantine_init(quarantine *q);
void quarantine_done(quarantine *q);

enum { QUARANTINE_CAUSE_BYTES = 512 }; /* a longer one is cut where it is made */

/* False in *out_new if it was there already (the first cause stands). */
WARN_UNUSED status quarantine_add(quarantine *q, int64_t sample, const char *cause, bool *out_new);
/* Adds all of another list. */
WARN_UNUSED status quarantine_copy(quarantine *to, const quarantine *from);
/* The cause, or NULL. */
const char *quarantine_find(const quarantine *q, int64_t sample);
/* The list as JSON; borrowed until the next change. */
WARN_UNUSED status quarantine_json(quarantine *q, const char **out);
/* Adds the decisions of a cursor's list, or none: a list with a sample outside [0, n_samples), more
 * entries than samples, or a cause over QUARANTINE_CAUSE_BYTES is refused whole. */
WARN_UNUSED status quarantine_merge(quarantine *q, const json_value *list, int64_t n_samples,
                                    const char *source);

#endif
