/* picture.h: an image of a row as people see it: patches joined to a picture, as a PNG in a data
 * URI, for pages that open without network. The one door to libpng. */
#ifndef TESSERA_TRAINER_EVAL_PICTURE_H
#define TESSERA_TRAINER_EVAL_PICTURE_H

#include "proto/batch.h"

/* Image `item` of r, whose patches begin at first_patch. Heap text "data:image/png;base64,..". Not
 * of a video. */
WARN_UNUSED status picture_data_uri(const row *r, int64_t item, int64_t first_patch, char **out);

#endif
