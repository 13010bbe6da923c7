/* resample_plain.c: the loops that define the result, and the list of kernels that this processor
 * can run.
 *
 * Both passes are the same inner loop: over the taps, a weight is multiplied by a vector of bytes
 * that lie side by side. In the height pass the vector is a whole row; in the width pass it is one
 * pixel, widened to four lanes. The compiler makes SIMD of both. On x86-64 a second copy is
 * compiled for AVX2. */
#include "prepd/sample/resample_kernels.h"

enum {
    STRIP = 1024
}; /* sums of the height pass at a time, so that they stay in the nearest cache */

/* The two loops are inlined into each of the copies below. */
#define INLINE static inline __attribute__((always_inline))

/* The sums fit an int32: the weights of an output add up to one, and their absolute values to less
 * than 1.5 (255 * 1.5 << 22 < 2^31). */
INLINE void width_row(const axis *x, int channels, const uint8_t *in, int32_t n_in, int32_t from,
                      resample_pixel *wide, uint8_t *out)
{
    const resample_pixel zero = {0}, most = {255, 255, 255, 255};
    const resample_pixel half = zero + ((1 << x->bits) >> 1);
    for (int32_t i = 0; i < n_in; i++, in += channels)
        for (int c = 0; c < channels; c++)
            wide[i][c] = in[c];
    for (int32_t i = from; i < x->n_out; i++) {
        const int32_t *w = x->weights + (size_t)i * (size_t)x->max_taps;
        const resample_pixel *p = wide + x->first[i];
        resample_pixel sum = half;
        for (int32_t k = 0; k < x->taps[i]; k++)
            sum += w[k] * p[k];
        sum >>= x->bits;
        sum &= sum > zero; /* clamp to 0..255; a comparison gives all ones if it is true */
        sum = (sum & (sum < most)) | (most & (sum >= most));
        for (int c = 0; c < channels; c++)
            out[i * channels + c] = (uint8_t)sum[c];
    }
}

/* Goes strip by strip, so that the sums stay in the nearest cache. */
INLINE void height_row(const int32_t *w, int32_t taps, int bits, const uint8_t *rows, size_t n,
                       size_t from, uint8_t *out)
{
    int32_t sum[STRIP];
    for (size_t at = from; at < n; at += STRIP) {
        const size_t m = n - at < STRIP ? n - at : STRIP;
        for (size_t j = 0; j < m; j++)
            sum[j] = (1 << bits) >> 1;
        for (int32_t k = 0; k < taps; k++) {
            const uint8_t *row = rows + (size_t)k * n + at;
            const int32_t weight = w[k];
            for (size_t j = 0; j < m; j++)
                sum[j] += weight * row[j];
        }
        for (size_t j = 0; j < m; j++) {
            const int32_t v = sum[j] >> bits;
            out[at + j] = (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
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
                                       const uint8_t *rows, size_t n, size_t from, uint8_t *out)   \
    {                                                                                              \
        height_row(w, taps, bits, rows, n, from, out);                                             \
    }                                                                                              \
    static const resample_loops loops_##suffix = {width_##suffix, height_##suffix};

COPY(plain, )
static const resample_kernels plain = {"plain", &loops_plain, NULL};

#if defined(__x86_64__)
COPY(avx2, __attribute__((target("avx2"))))
static const resample_kernels avx2 = {"avx2", &loops_avx2, &resample_avx2};
static const resample_kernels avx512 = {"avx512", &loops_avx2, &resample_avx512};

const resample_kernels *resample_kernels_here(size_t i)
{
    const bool has_avx512 = __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512vnni") && resample_avx512.width;
    const bool has_avx2 = __builtin_cpu_supports("avx2") && resample_avx2.width;
    if (has_avx512 && i-- == 0)
        return &avx512;
    if (has_avx2 && i-- == 0)
        return &avx2;
    return i == 0 ? &plain : NULL;
}
#else
const resample_kernels *resample_kernels_here(size_t i)
{
    return i == 0 ? &plain : NULL;
}
#endif
