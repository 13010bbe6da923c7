/* SPDX-License-Identifier: Apache-2.0 */
/* open_source.h: opens one source, which is a whole data set or one part of a mixture. */
#ifndef TESSERA_PREPD_DATASET_ADAPTERS_OPEN_SOURCE_H
#define TESSERA_PREPD_DATASET_ADAPTERS_OPEN_SOURCE_H

#include "prepd/dataset/dataset.h"

/* Opens data.path with the given adapter, after checks that all formats share: data.path is set,
 * data.stage_weights can be read, and the folder's name is UTF-8. ST_CONFIG if one of them fails.
 */
WARN_UNUSED status dataset_open_by(const dataset_vtable *adapter, const conf *options,
                                   dataset **out);
/* The same with the adapter that data.format names; data.format must not be mixture. */
WARN_UNUSED status dataset_open_source(const conf *options, dataset **out);

#endif
