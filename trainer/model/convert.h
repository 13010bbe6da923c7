/* convert.h: arrays of floating-point numbers of any stored dtype <-> double, on the host.
 * F64, F32, F16, BF16; rounding to nearest even; NaN stays NaN. */
#ifndef TESSERA_TRAINER_MODEL_CONVERT_H
#define TESSERA_TRAINER_MODEL_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/model_folder/safetensors.h"

bool convert_known(st_dtype d);
/* n numbers; the arrays may be unaligned and must not overlap. The dtype must be known. */
void convert_to_double(double *to, const void *from, st_dtype from_dtype, int64_t n);
void convert_from_double(void *to, st_dtype to_dtype, const double *from, int64_t n);

#endif
