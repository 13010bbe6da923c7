/* SPDX-License-Identifier: Apache-2.0 */
/* train_state.h: a rank's values and moments in one safetensors file, in the types in which it
 * stores them, so that a run continues bit for bit. The Hugging Face files of the same
 * checkpoint may be rounded (BF16) and are for other tools.
 *
 * The file is rank-RRRRR-of-WWWWW.safetensors. For each trained parameter NAME it has the flat
 * tensors "value/NAME", "moment1/NAME" and "moment2/NAME". Moments in 8 bits (optimizer.states) are
 * codes in U8, and "scale1/NAME" and "scale2/NAME" have a float32 for each 256 of a rank's elements
 * (ops/state_codes.h). The metadata says "master" if matrices have master values in BF16
 * (training.master). Of frozen ones it has "value/NAME" where
 * model.path has another value (param.kept), and early trainers wrote it for all. Of
 * several ranks each file has what its rank stores, and the metadata entry "slice/TENSOR" says what
 * that is, as 13 numbers: the sizes, firsts and counts of the four axes of the rank's local tensor
 * (parallel/slice.h), then the local element with which the file's tensor begins. Without that
 * entry the tensor is whole. So any number of ranks can read what any number of ranks wrote. */
#ifndef TESSERA_TRAINER_CHECKPOINT_STATE_TRAIN_STATE_H
#define TESSERA_TRAINER_CHECKPOINT_STATE_TRAIN_STATE_H

#include "trainer/model/params/params.h"

/* Which one of the ranks that write, and how many of them there are. */
typedef struct state_writer {
    int rank, ranks;
} state_writer;
/* out: the name of its file. */
void train_state_name(state_writer writer, char out[64]);

/* Writes the file, synced. The registry's arrays are read on `queue`. */
WARN_UNUSED status train_state_write(const params *registry, stream *queue, state_writer writer,
                                     const char *folder);
/* Reads from the files of all writers what this rank stores, and makes the compute copies from it.
 * Frozen parameters must have been loaded from model.path before (base.h); what the files have of
 * them replaces that, and those that it changes are marked as kept.
 * ST_CONFIG: moments or values are of another kind, and params.convert_states is not set.
 * ST_BAD_INPUT names the file and the tensor that is missing or does not fit. */
WARN_UNUSED status train_state_load(params *registry, stream *queue, const char *folder);
/* *out: whether the files have a value of any frozen parameter. */
WARN_UNUSED status train_state_has_frozen(const params *registry, const char *folder, bool *out);

#endif
