/* rank_ranges.h: ranks as an option names them: "0-7", or "0-7,16,24-31".
 *
 * A range is a rank, or the first and the last one with "-" between them. A list is ranges with
 * commas between them, and spaces around them. The empty list means all ranks. */
#ifndef TESSERA_COMMON_CONF_RANK_RANGES_H
#define TESSERA_COMMON_CONF_RANK_RANGES_H

#include <stdbool.h>

#include "common/base/status.h"

enum { MAX_RANKS = 65536 }; /* of a training job */

typedef struct rank_range {
    int first, last;
} rank_range;

/* Reads a range, and the spaces around it, at *inout_at, which then points after it. False if there
 * is none there, or it has no rank below MAX_RANKS, or none at all ("3-2"). */
bool rank_range_read(const char **inout_at, rank_range *out);

/* Whether the text is such a list. CONFIG names the option, `key`, and where it was set (`place`,
 * NULL: nowhere). */
WARN_UNUSED status rank_ranges_check(const char *text, const char *key, const char *place);

/* Whether a list that rank_ranges_check has passed has this rank in it. */
bool rank_ranges_have(const char *text, int rank);

#endif
