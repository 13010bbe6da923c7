/* batch_check.h: parts of row_check that reading a file needs on its own. Private to proto. */
#ifndef TESSERA_PROTO_BATCH_CHECK_H
#define TESSERA_PROTO_BATCH_CHECK_H

#include "proto/batch.h"

/* No count negative or over INT32_MAX. */
WARN_UNUSED status row_check_counts(const row *r, const char *source);
/* Every grid possible and their patches together countable; says nothing of pixels. */
WARN_UNUSED status row_check_grids(const row *r, const char *source);

#endif
