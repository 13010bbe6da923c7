/* braces.h: expands names with braces as shells do: {a,b} gives two names, and {000..127} gives 128
 * names whose numbers are as wide as the first bound if that begins with a 0. A name may have up to
 * eight pairs of braces; they cannot be nested. */
#ifndef TESSERA_PREPD_DATASET_BRACES_H
#define TESSERA_PREPD_DATASET_BRACES_H

#include "common/base/status.h"

/* Receives one name, which is borrowed during the call. Any status but ST_OK ends the expansion. */
typedef status (*brace_each)(void *user, const char *name);
/* Calls `each` for every name, in order; a pattern without braces is one name. Returns what `each`
 * returned, or ST_CONFIG for braces that are empty, nested or do not close, for a range that falls,
 * and for more than a million names. */
WARN_UNUSED status braces_expand(const char *pattern, brace_each each, void *user);

#endif
