/* batch_check.h: the parts of row_check that must run before a row's pixels are known. Private to
 * proto. */
#ifndef TESSERA_PROTO_BATCH_CHECK_H
#define TESSERA_PROTO_BATCH_CHECK_H

#include "proto/batch.h"

/* Every count lies within [0, INT32_MAX], and so do all patches together. */
WARN_UNUSED status row_check_counts(const row *packed, const char *source);
/* Every grid is possible, with even height and width, and all patches together can be counted. The
 * pixels are not compared with them. */
WARN_UNUSED status row_check_grids(const row *packed, const char *source);

#endif
