/* hf_slices.h: weight files that several ranks write together: each puts what it stores where it
 * belongs, into files of the final size. Internal to checkpoint. */
#ifndef TESSERA_TRAINER_CHECKPOINT_HF_SLICES_H
#define TESSERA_TRAINER_CHECKPOINT_HF_SLICES_H

#include "trainer/checkpoint/hf_plan.h"

/* Writes this rank's slices of every tensor of the plan into folder, synced; with_headers: the
 * files' headers too, which one of the ranks writes. A file is not whole before all have.
 * *out_bytes (may be NULL): of values. Values of a device without storage are counted and left as
 * holes.
 */
WARN_UNUSED status hf_write_slices(const hf_plan *e, const char *folder, bool with_headers,
                                   stream *s, int64_t *out_bytes);

#endif
