/* SPDX-License-Identifier: Apache-2.0 */
/* resample_plain.c: the loops that define the result, and the list of kernels that this processor
 * can run.
 *
 * Both passes are the same inner loop: over the taps, a weight is multiplied by a vector of bytes
 * that lie side by side. In the height pass the vector is a whole row; in the width pass it is one
 * pixel, widened to four lanes. The compiler makes SIMD of both. On x86-64 a second copy is
 * compiled for AVX2. */
#include "prepd/sample/resample.h"

enum {
    STRIP = 1024
}; /* sums of the height pass at a time, so that they stay in the nearest cache */

/* The two loops are inlined into each of the copies below. */
#define INLINE static inline __attribute__((always_inline))

/* The sums fit an int32: the weights of an output add up to one, and their absolute values to less
 * than 1.5 (255 * 1.5 << 22 < 2^31). */
INLINE void width_row(const axis *across, int channels, const uint8_t *in, int32_t n_in,
                      int32_t from, resample_pixel *wide, uint8_t *out)
{
    const resample_pixel zero = {0}, most = {255, 255, 255, 255};
    const resample_pixel half = zero + ((1 << across->bits) >> 1);
    for (int32_t i = 0; i < n_in; i++, in += channels)
        for (int channel = 0; channel < channels; channel++)
            wide[i][channel] = in[channel];
    for (int32_t i = from; i < across->n_out; i++) {
        const int32_t *weights = across->weights + (size_t)i * (size_t)across->max_taps;
        const resample_pixel *pixel = wide + across->first[i];
        resample_pixel sum = half;
        for (int32_t k = 0; k < across->taps[i]; k++)
            sum += weights[k] * pixel[k];
        sum >>= across->bits;
        sum &= sum > zero; /* clamp to 0..255; a comparison gives all ones if it is true */
        sum = (sum & (sum < most)) | (most & (sum >= most));
        for (int channel = 0; channel < channels; channel++)
            out[i * channels + channel] = (uint8_t)sum[channel];
    }
}

/* Goes strip by strip, so that the sums stay in the nearest cache. */
INLINE void height_row(const int32_t *maker, int32_t taps, int bits, const uint8_t *rows,
                       size_t bytes, size_t from, uint8_t *out)
{
    int32_t sum[STRIP];
    for (size_t at = from; at < bytes; at += STRIP) {
        const size_t strip = bytes - at < STRIP ? bytes - at : STRIP;
        for (size_t j = 0; j < strip; j++)
            sum[j] = (1 << bits) >> 1;
        for (int32_t k = 0; k < taps; k++) {
            const uint8_t *row = rows + (size_t)k * bytes + at;
            const int32_t weight = maker[k];
            for (size_t j = 0; j < strip; j++)
                sum[j] += weight * row[j];
        }
        for (size_t j = 0; j < strip; j++) {
            const int32_t shifted = sum[j] >> bits;
            out[at + j] = (uint8_t)(shifted < 0 ? 0 : shifted > 255 ? 255 : shifted);
        }
    }
}

/* Three channels are compiled with that number as a constant, any other number with a variable. */
#define COPY(suffix, target)                                                                       \
    target static void width_##suffix(const axis *x, int channels, const uint8_t *in,              \
                                      int32_t n_in, int32_t from, resample_pixel *wide,            \
                                      uint8_t *out)                                                \
    {                                                                                              \
        if (channels == 3)                                                                         \
            width_row(x, 3, in, n_in, from, wide, out);                                            \
        else                                                                                       \
            width_row(x, channels, in, n_in, from, wide, out);                                     \
    }                                                                                              \
    target static void height_##suffix(const int32_t *w, int32_t taps, int bits,                   \
                                       const uint8_t *rows, size_t count, size_t from,             \
                                       uint8_t *out)                                               \
    {                                                                                              \
        height_row(w, taps, bits, rows, count, from, out);                                         \
    }                                                                                              \
    static const resample_loops loops_##suffix = {width_##suffix, height_##suffix};

COPY(plain, )
static const resample_kernels plain = {"plain", &loops_plain, NULL};

#if defined(__x86_64__)
COPY(avx2, __attribute__((target("avx2"))))
static const resample_kernels avx2 = {"avx2", &loops_avx2, &resample_avx2};
static const resample_kernels avx512 = {"avx512", &loops_avx2, &resample_avx512};

const resample_kernels *resample_kernels_here(size_t index)
{
    const bool has_avx512 = __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512vnni") && resample_avx512.width;
    const bool has_avx2 = __builtin_cpu_supports("avx2") && resample_avx2.width;
    if (has_avx512 && index-- == 0)
        return &avx512;
    if (has_avx2 && index-- == 0)
        return &avx2;
    return index == 0 ? &plain : NULL;
}
#else
const resample_kernels *resample_kernels_here(size_t index)
{
    return index == 0 ? &plain : NULL;
}
#endif
