/* SPDX-License-Identifier: Apache-2.0 */
/* rank_lists.h: lists of ranks, as options write them. */
#ifndef TESSERA_COMMON_CONF_RANK_LISTS_H
#define TESSERA_COMMON_CONF_RANK_LISTS_H

#include <stdbool.h>
#include <stddef.h>

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

/* At which daemon each rank gets its rows, where several of them serve a stream:
 * "0-7=tcp://data0:5555,8-15=tcp://data1:5555". The empty list names none. */

/* Whether the text is such a list: ranges of ranks (rank_ranges.h), each with an endpoint, and no
 * rank twice. A path of ipc must be absolute. CONFIG names the option, `key`, and where it was set
 * (`place`, NULL: nowhere). */
WARN_UNUSED status rank_endpoints_check(const char *text, const char *key, const char *place);

/* The endpoint of a rank in a list that rank_endpoints_check has passed: [*out_size] bytes of it,
 * without a NUL after them. NULL if the list has none. */
const char *rank_endpoints_find(const char *text, int rank, size_t *out_size);

/* The first of the ranks 0 to `ranks` - 1 that has no endpoint in such a list; `ranks` if all have
 * one. */
int rank_endpoints_missing(const char *text, int ranks);

#endif
