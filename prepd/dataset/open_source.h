/* open_source.h: inside of dataset_open: one source, as a data set of its own or as a part of a
 * mixture. */
#ifndef TESSERA_PREPD_DATASET_OPEN_SOURCE_H
#define TESSERA_PREPD_DATASET_OPEN_SOURCE_H

#include "prepd/dataset/dataset.h"

/* By this adapter; what every data set must have is checked here. */
WARN_UNUSED status dataset_open_by(const dataset_vtable *v, const conf *c, dataset **out);
/* By the adapter that data.format names, which must not be mixture. */
WARN_UNUSED status dataset_open_source(const conf *c, dataset **out);

#endif
