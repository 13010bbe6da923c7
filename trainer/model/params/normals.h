/* SPDX-License-Identifier: Apache-2.0 */
/* normals.h: many standard normal values at once, the same bits as rng_normal (common/base/rng.h)
 * gives one by one. Where the processor has AVX2, the generator works on 16 counters at a time,
 * which takes two thirds of the time; most of the rest goes to log and cos. */
#ifndef TESSERA_TRAINER_MODEL_PARAMS_NORMALS_H
#define TESSERA_TRAINER_MODEL_PARAMS_NORMALS_H

#include "common/base/rng.h"

/* out [count]: out[i] is rng_normal(key, first + i). */
void normals_draw(rng_key key, uint64_t first, int64_t count, double *out);

enum { NORMALS_BATCH = 256 };

/* Writes the two uniform values that each of the normals at counters first to
 * first + NORMALS_BATCH - 1 is made of: u in (0, 1], for the radius, and v in [0, 1), the turn. u
 * and v are [NORMALS_BATCH]. NULL: this build has no such code. */
typedef void normals_uniform(rng_key key, uint64_t first, double *u, double *v);
extern normals_uniform *const normals_uniform_avx2;

#endif
