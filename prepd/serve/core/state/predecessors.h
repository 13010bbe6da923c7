/* SPDX-License-Identifier: Apache-2.0 */
/* predecessors.h: with which earlier sample each sample is compared when the index is built, so
 * that samples that begin alike are found (data.group shared_prefix).
 *
 * The predecessor of a sample with images is the last sample before it, in the same source of a
 * mixture and the same piece of a file, that shows the same images and has the same turns up to the
 * last of them: roles, texts and places of images. That of a conversation without images is the
 * sample before it, if this one has no images either. A plain text has none. Samples that the
 * dispatcher refuses count as absent. */
#ifndef TESSERA_PREPD_SERVE_CORE_STATE_PREDECESSORS_H
#define TESSERA_PREPD_SERVE_CORE_STATE_PREDECESSORS_H

#include "prepd/dataset/dataset.h"

typedef struct predecessors predecessors;

/* Borrows the data set. */
WARN_UNUSED status predecessors_new(const dataset *data, predecessors **out);
void predecessors_free(predecessors **all);
/* Takes the next sample: samples are given in their order, each once, those that are refused left
 * out. */
WARN_UNUSED status predecessors_add(predecessors *all, int64_t number, const sample *next);
/* How many samples before an added sample its predecessor is; 0 if it has none. */
int64_t predecessors_back(const predecessors *all, int64_t number);

#endif
