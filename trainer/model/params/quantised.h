/* SPDX-License-Identifier: Apache-2.0 */
/* quantised.h: frozen matrices that are stored as codes of 8 or 4 bits (QLoRA, Dettmers et al.
 * 2023, arXiv:2305.14314), and expanded before each product that reads them.
 *
 *   in the files   -> params_write: encoded on the host -> own_blocks on the device
 *   before a product: blocks (gathered with the unit) -> op_dequantise -> act, in params.expanded
 *
 * The codes and their blocks are those of ops/weight_blocks.h. A block lies within a row of the
 * matrix, which for an expert's [in, out] is a row of `out` elements; a row whose length is not a
 * multiple of the block ends in a shorter one. All matrices are expanded to the same place, since a
 * product is queued directly after its expansion, on the same stream; so what a rank needs besides
 * the codes is its largest matrix.
 *
 * Where ranks share a matrix, FSDP's pieces are whole blocks, and a cut of the columns by tensor
 * ranks must be too. So the codes do not depend on the layout. */
#ifndef TESSERA_TRAINER_MODEL_PARAMS_QUANTISED_H
#define TESSERA_TRAINER_MODEL_PARAMS_QUANTISED_H

#include <stdbool.h>

#include "trainer/model/params/params.h"
#include "trainer/ops/weight_blocks.h"

/* Gives the frozen matrices of the decoder's layers this form, but for routers and adapters: those
 * of attention, of MLPs and of experts. After rows are frozen, before params_cut. ST_CONFIG: there
 * are none. */
WARN_UNUSED status quantised_choose(params *registry, weight_form form);
/* ST_CONFIG: the layout cuts a row of this matrix within a block. After it was cut. */
WARN_UNUSED status quantised_check_cut(const param *weight, const layout *degrees);

/* How many blocks the local part of a matrix has, and the block that its local element `element`,
 * the first of one, begins. */
int64_t quantised_blocks(const param *weight);
int64_t quantised_block_of(const param *weight, int64_t element);
/* The first element of a block; all elements for the number of blocks. */
int64_t quantised_first(const param *weight, int64_t block);
/* How many elements may be written at once, at most `most`: a number of whole rows, so that runs of
 * so many from own_first on begin and end with blocks. For a matrix in plain values, `most`. */
int64_t quantised_run(const param *weight, int64_t most);

/* Encodes the local elements [first, first + count), which this rank stores and which are whole
 * blocks, and writes them. Waits. threads: may help; NULL: none. ST_BAD_INPUT: one of them is not
 * finite. */
WARN_UNUSED status quantised_write(const param *weight, stream *queue, int64_t first, int64_t count,
                                   const double *from, pool *threads);
/* Reads what the codes of elements [first, first + count) of what this rank stores stand for.
 * Waits. */
WARN_UNUSED status quantised_read(const param *weight, stream *queue, int64_t first, int64_t count,
                                  double *to);
/* Makes act ready for the product that is queued next. Does nothing for plain values. */
WARN_UNUSED status quantised_expand(stream *queue, const param *weight);

/* ---- the blocks of ops/weight_blocks.h on the host ---- */

/* Writes the block, of weight_block_bytes, of `count` numbers, at most WEIGHT_BLOCK. Each gets the
 * code whose value is nearest to it. False, with the block unchanged, if a number is not finite. */
bool weight_encode(weight_form form, const float *from, int64_t count, uint8_t *block);
/* The first `count` values of a block. */
void weight_decode(weight_form form, const uint8_t *block, int64_t count, float *to);

#endif
