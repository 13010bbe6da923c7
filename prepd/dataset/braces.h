/* braces.h: names with braces, as shells expand them: {a,b} and {000..127} (the width of the first
 * bound), any number of them, not nested. */
#ifndef TESSERA_PREPD_DATASET_BRACES_H
#define TESSERA_PREPD_DATASET_BRACES_H

#include "common/base/status.h"

/* Calls each for every name in order; a pattern without braces is one name. ST_CONFIG for braces
 * that do not close or hold nothing, or beyond a million names. */
typedef status (*brace_each)(void *user, const char *name);
WARN_UNUSED status braces_expand(const char *pattern, brace_each each, void *user);

#endif
