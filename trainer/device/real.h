/* SPDX-License-Identifier: Apache-2.0 */
/* real.h: the number type of the CPU backend. It is float; in the build for gradient checks
 * (-DTESSERA_REAL_F64) it is double, so that the same sources can be compared with central
 * differences to 1e-6. */
#ifndef TESSERA_TRAINER_DEVICE_REAL_H
#define TESSERA_TRAINER_DEVICE_REAL_H

#ifdef TESSERA_REAL_F64
typedef double real;
#define REAL_DTYPE DT_F64
#else
typedef float real;
#define REAL_DTYPE DT_F32
#endif

#endif
