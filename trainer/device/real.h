/* real.h: the number type of the CPU backend: float, or double in the gradient-check build
 * (-DTESSERA_REAL_F64), where the same sources meet central differences at 1e-6. */
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
