/* picture.h: joins the patches of a row's picture again and encodes it as a PNG in a data URI, for
 * pages that open without a network. Only picture.c includes libpng. */
#ifndef TESSERA_TRAINER_EVAL_PICTURE_H
#define TESSERA_TRAINER_EVAL_PICTURE_H

#include "proto/batch.h"

/* *out = "data:image/png;base64,.." for visual item `item` of `packed`, a still picture whose
 * patches begin at first_patch. The caller frees it. */
WARN_UNUSED status picture_data_uri(const row *packed, int64_t item, int64_t first_patch,
                                    char **out);

#endif
