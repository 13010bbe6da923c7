/* resample_kernels.h: the loops of the resampler, for several instruction sets. Private to
 * resample*.c and its test.
 *
 * Integers throughout: whatever the set, the same bytes. The plain one is the reference, takes any
 * number of channels, and is the only one for 22-bit weights (Pillow's); the wide ones take three
 * channels and multiply pairs of int16 (the reference's tensor path). */
#ifndef TESSERA_PREPD_SAMPLE_RESAMPLE_KERNELS_H
#define TESSERA_PREPD_SAMPLE_RESAMPLE_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "prepd/sample/resample.h"

enum {
    STEP_TAPS = 5,  /* that a wide width kernel takes at once: 15 bytes of a 16-byte lane */
    STEP_PAIRS = 3, /* what that is in pairs, the last one half empty */
};

/* How one axis of n_out outputs is weighed. */
typedef struct axis {
    int32_t n_out;
    int32_t max_taps; /* stride of weights */
    int32_t *first;   /* [n_out] first input sample */
    int32_t *taps;    /* [n_out] */
    int32_t *weights; /* [n_out, max_taps] fixed point; zero behind the taps of an output */
    int bits;         /* of the fraction */
    int32_t steps;    /* of STEP_TAPS: what the taps of the widest output take */
    /* For wide kernels: weights two by two as int16, the first in the low half. */
    int32_t *pairs; /* height: [n_out, (max_taps + 1) / 2]
                     * width: [n_out / group, steps, STEP_PAIRS, group, 4], equal in each four */
} axis;

/* A pixel's channels side by side (GNU C vectors: gcc and clang, any machine). */
enum { MAX_CHANNELS = 4 };
typedef int32_t resample_pixel __attribute__((vector_size(MAX_CHANNELS * sizeof(int32_t))));

/* Plain loops, for any number of channels and any weights; of a row in [n_in, channels] the outputs
 * [from, n_out) are made, by way of wide [n_in]; of one row from rows [taps, n] the bytes [from,
 * n). */
typedef struct resample_loops {
    void (*width)(const axis *x, int channels, const uint8_t *in, int32_t n_in, int32_t from,
                  resample_pixel *wide, uint8_t *out);
    void (*height)(const int32_t *weights, int32_t taps, int bits, const uint8_t *rows, size_t n,
                   size_t from, uint8_t *out);
} resample_loops;

/* Wide ones, for three channels and weights that are pairs. NULL where the compiler has none. */
typedef struct resample_wide {
    int group; /* pixels that width makes at once */
    /* A row [n_in, 3] -> the first n_out / group * group pixels of out; returns how many. Reads up
     * to steps * 15 + 1 bytes past the row. */
    int32_t (*width)(const axis *x, const uint8_t *in, uint8_t *out);
    /* One row of n bytes from rows [taps, n]: its first bytes; returns how many. */
    size_t (*height)(const int32_t *pairs, int32_t taps, int bits, const uint8_t *rows, size_t n,
                     uint8_t *out);
} resample_wide;

extern const resample_wide resample_avx2, resample_avx512;

typedef struct resample_kernels {
    const char *name;
    const resample_loops *loops;
    const resample_wide *wide; /* NULL: none */
} resample_kernels;

/* The i-th best of what this processor has; NULL behind the last, which is the plain one. */
const resample_kernels *resample_kernels_here(size_t i);

/* resampler_new with these; they must be of this processor. */
WARN_UNUSED status resampler_with(const resample_kernels *kernels, int method, int channels,
                                  const uint8_t *in, int32_t in_height, int32_t in_width,
                                  int32_t out_height, int32_t out_width, arena *a, resampler **out);

#endif
