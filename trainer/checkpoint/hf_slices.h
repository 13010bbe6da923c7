/* hf_slices.h: weight files that several ranks write together: the files have their final size from
 * the start, and each rank writes what it stores at the place where it belongs. Internal to
 * checkpoint. */
#ifndef TESSERA_TRAINER_CHECKPOINT_HF_SLICES_H
#define TESSERA_TRAINER_CHECKPOINT_HF_SLICES_H

#include "trainer/checkpoint/hf_plan.h"

/* Writes this rank's part of every tensor of the plan into `folder`, synced. with_headers: also
 * writes the headers of the files, which one of the ranks does. A file is whole only after all
 * ranks have written. *out_bytes (may be NULL): bytes of values that were written. Values of a
 * device without storage are counted and left as holes in the files. */
WARN_UNUSED status hf_write_slices(const hf_plan *plan, const char *folder, bool with_headers,
                                   stream *queue, int64_t *out_bytes);

#endif
