/* SPDX-License-Identifier: Apache-2.0 */
/* resample.h: resizes 8-bit pictures with an antialiased bicubic filter, one axis at a time, bit
 * for bit as the libraries do that transformers uses.
 *
 * The width comes first and its result is stored as bytes, then the height; an axis whose size does
 * not change is skipped. The methods (image.resampler) differ in how they round the weights:
 *
 *   RESAMPLER_TORCH     16-bit weights, with as many bits of fraction as the largest one allows
 *   RESAMPLER_PILLOW    32-bit weights with 22 bits of fraction
 *   RESAMPLER_PILLOW13  the same, with another rule for which axis comes first
 *
 * The first is PyTorch's interpolate on uint8 tensors (aten/native/cpu/UpSampleKernel.cpp), the
 * second Pillow's resize (libImaging/Resample.c). Since Pillow 13 the height comes first if it
 * shrinks by more than twice as many pixels as the width does, which may also grow. */
#ifndef TESSERA_PREPD_SAMPLE_RESAMPLE_H
#define TESSERA_PREPD_SAMPLE_RESAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/status.h"

/* A picture that is made row by row, so that its user finds the rows in the nearest cache. */
typedef struct resampler resampler;

/* Prepares to resize `in` [in_height, in_width, channels], which is borrowed until the last row was
 * made. `method` is one of the three above; channels are 1 to 4. The resampler and what it needs
 * lie in `memory`. ST_NO_MEMORY is the only error. */
WARN_UNUSED status resampler_new(int method, int channels, const uint8_t *in, int32_t in_height,
                                 int32_t in_width, int32_t out_height, int32_t out_width,
                                 arena *memory, resampler **out);
/* Makes rows [from, from + count) of the result [out_height, out_width, channels] and writes them
 * to `out`. `from` must not fall from one call to the next. */
void resampler_rows(resampler *maker, int32_t from, int32_t count, uint8_t *out);

/* Resizes a whole picture. What it needs is taken from `scratch` and released. */
WARN_UNUSED status resample_pixels(int method, int channels, const uint8_t *in, int32_t in_height,
                                   int32_t in_width, uint8_t *out, int32_t out_height,
                                   int32_t out_width, arena *scratch);

/* The loops of the resampler, for several instruction sets. Private to
 * resample*.c and their test.
 *
 * All arithmetic is on integers, so every instruction set gives the same bytes. The plain loops
 * define the result; they take any number of channels and are the only ones for 22-bit weights
 * (Pillow's). The wide ones take three channels and multiply pairs of 16-bit weights (PyTorch's).
 */

enum {
    STEP_TAPS = 5,  /* input pixels that a wide width kernel takes at once, 15 bytes of a lane */
    STEP_PAIRS = 3, /* the same in pairs of weights, the last of which is half empty */
};

/* How one axis is weighed: output i is the sum of weights[i][k] * input[first[i] + k] over k <
 * taps[i], shifted right by `bits`. */
typedef struct axis {
    int32_t n_out;
    int32_t max_taps; /* the most taps of any output: the stride of weights */
    int32_t *first;   /* [n_out] */
    int32_t *taps;    /* [n_out] */
    int32_t *weights; /* [n_out, max_taps] fixed point; zero after the taps of an output */
    int bits;         /* bits of the weights' fraction */
    int32_t steps;    /* how many times STEP_TAPS the output with the most taps needs */
    /* For the wide kernels: weights two by two as 16-bit numbers, the first in the low half. */
    /* height: [n_out, (max_taps + 1) / 2]; width: [n_out / group, steps, STEP_PAIRS, group, 4], of
     * which the last four are equal. */
    int32_t *pairs;
} axis;

/* The channels of a pixel side by side (vectors of GNU C, which gcc and clang have for any
 * machine). */
enum { MAX_CHANNELS = 4 };
typedef int32_t resample_pixel __attribute__((vector_size(MAX_CHANNELS * sizeof(int32_t))));

/* The plain loops, for any number of channels and any weights. */
typedef struct resample_loops {
    /* Makes outputs [from, n_out) of a row from `in` [n_in, channels]; `wide` [n_in] is scratch. */
    void (*width)(const axis *weights, int channels, const uint8_t *in, int32_t n_in, int32_t from,
                  resample_pixel *wide, uint8_t *out);
    /* Makes bytes [from, count) of one row from rows [taps, count]. */
    void (*height)(const int32_t *weights, int32_t taps, int bits, const uint8_t *rows,
                   size_t count, size_t from, uint8_t *out);
} resample_loops;

/* The wide loops, for three channels and weights in pairs. The functions are NULL if the compiler
 * lacks the instruction set. */
typedef struct resample_wide {
    int group; /* how many pixels `width` makes at once */
    /* Makes the first n_out / group * group pixels of a row from `in` [n_in, 3]; returns how many.
     * Reads up to steps * 15 + 1 bytes past the end of the row. */
    int32_t (*width)(const axis *weights, const uint8_t *in, uint8_t *out);
    /* Makes the first bytes of one row of `count` bytes from rows [taps, count]; returns how many.
     */
    size_t (*height)(const int32_t *pairs, int32_t taps, int bits, const uint8_t *rows,
                     size_t count, uint8_t *out);
} resample_wide;

extern const resample_wide resample_avx2, resample_avx512;

typedef struct resample_kernels {
    const char *name;
    const resample_loops *loops;
    const resample_wide *wide; /* NULL: there are none */
} resample_kernels;

/* The i-th fastest kernels that this processor can run; NULL after the last, which are the plain
 * ones. */
const resample_kernels *resample_kernels_here(size_t index);

/* resampler_new with these kernels, which the processor must be able to run. */
WARN_UNUSED status resampler_with(const resample_kernels *kernels, int method, int channels,
                                  const uint8_t *in, int32_t in_height, int32_t in_width,
                                  int32_t out_height, int32_t out_width, arena *memory,
                                  resampler **out);

#endif
