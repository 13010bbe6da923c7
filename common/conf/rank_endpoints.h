/* rank_endpoints.h: at which daemon each rank gets its rows, where several of them serve a stream:
 * "0-7=tcp://data0:5555,8-15=tcp://data1:5555". The empty list names none. */
#ifndef TESSERA_COMMON_CONF_RANK_ENDPOINTS_H
#define TESSERA_COMMON_CONF_RANK_ENDPOINTS_H

#include <stddef.h>

#include "common/base/status.h"

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
