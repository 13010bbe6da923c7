/* weight_codes.h: writes and reads the blocks of ops/weight_blocks.h on the host. */
#ifndef TESSERA_TRAINER_MODEL_WEIGHT_CODES_H
#define TESSERA_TRAINER_MODEL_WEIGHT_CODES_H

#include <stdbool.h>

#include "trainer/ops/weight_blocks.h"

/* Writes the block, of weight_block_bytes, of `count` numbers, at most WEIGHT_BLOCK. Each gets the
 * code whose value is nearest to it. False, with the block unchanged, if a number is not finite. */
bool weight_encode(weight_form form, const float *from, int64_t count, uint8_t *block);
/* The first `count` values of a block. */
void weight_decode(weight_form form, const uint8_t *block, int64_t count, float *to);

#endif
