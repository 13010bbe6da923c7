/* unit_names.h: the FSDP units (unit_order.h) in words, for messages and reports. */
#ifndef TESSERA_TRAINER_MODEL_UNIT_NAMES_H
#define TESSERA_TRAINER_MODEL_UNIT_NAMES_H

#include "trainer/model/dims.h"

enum { UNIT_NAME = 48, UNIT_RANGE = 2 * UNIT_NAME + 8 };

/* "layer 3", "vision block 0", "head". */
void unit_name(const model_dims *dims, int unit, char out[UNIT_NAME]);
/* The units from `first` down to `last`, as a backward pass has them: "head to layer 31", or one
 * name if they are one. */
void unit_range(const model_dims *dims, int first, int last, char out[UNIT_RANGE]);

#endif
