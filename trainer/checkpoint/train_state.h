/* train_state.h: a rank's master values and moments in one safetensors file, in the precision they
 * are computed in, so that a run goes on bit for bit. The Hugging Face files beside it may be
 * rounded (BF16) and are for everybody else.
 *
 * rank-RRRRR-of-WWWWW.safetensors; per parameter "value/NAME", and where it is trained
 * "moment1/NAME" and "moment2/NAME", flat [count]. With several ranks a tensor holds the rank's
 * slice and the metadata "first/NAME" its first element; without that entry the whole. */
#ifndef TESSERA_CHECKPOINT_TRAIN_STATE_H
#define TESSERA_CHECKPOINT_TRAIN_STATE_H

#include "trainer/model/params.h"

/* Reads p's arrays through s; synced. */
WARN_UNUSED status train_state_write(const params *p, stream *s, const char *folder);
/* Every parameter's values and moments, and the compute copies; BAD_INPUT by file and tensor. */
WARN_UNUSED status train_state_load(params *p, stream *s, const char *folder);

#endif
