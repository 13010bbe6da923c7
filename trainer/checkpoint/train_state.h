/* train_state.h: a rank's master values and moments in one safetensors file, in the precision they
 * are computed in, so that a run goes on bit for bit. The Hugging Face files beside it may be
 * rounded (BF16) and are for everybody else.
 *
 * rank-RRRRR-of-WWWWW.safetensors; per parameter "value/NAME", and where it is trained
 * "moment1/NAME" and "moment2/NAME", flat [count]. With several ranks a tensor holds what the
 * rank stores of it, and the metadata "slice/TENSOR" says what that is: 13 numbers, the sizes,
 * first and count of the axes of its local tensor (parallel/slice.h) and the first element of that;
 * without that entry the whole. Any number of ranks reads what any number wrote. */
#ifndef TESSERA_TRAINER_CHECKPOINT_TRAIN_STATE_H
#define TESSERA_TRAINER_CHECKPOINT_TRAIN_STATE_H

#include "trainer/model/params.h"

/* Which of the ranks that store something. */
typedef struct state_writer {
    int rank, ranks;
} state_writer;
/* Its file. */
void train_state_name(state_writer w, char out[64]);

/* Reads p's arrays through s; synced. */
WARN_UNUSED status train_state_write(const params *p, stream *s, state_writer w,
                                     const char *folder);
/* What p stores of values and moments, and the compute copies, from the files of all ranks;
 * BAD_INPUT by file and tensor. */
WARN_UNUSED status train_state_load(params *p, stream *s, const char *folder);

#endif
