/* SPDX-License-Identifier: Apache-2.0 */
/* convert.h: converts arrays of floating-point numbers between double and the dtypes of files, on
 * the host: F64, F32, F16, BF16. Rounding is to nearest, ties to even; NaN stays NaN. */
#ifndef TESSERA_TRAINER_MODEL_DIMS_CONVERT_H
#define TESSERA_TRAINER_MODEL_DIMS_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/model_folder/safetensors.h"

bool convert_known(st_dtype dtype); /* true for the four dtypes above */
/* Convert `count` numbers. The arrays may be unaligned and must not overlap. The dtype must be one
 * of the four. */
void convert_to_double(double *to, const void *from, st_dtype from_dtype, int64_t count);
void convert_from_double(void *to, st_dtype to_dtype, const double *from, int64_t count);

#endif
