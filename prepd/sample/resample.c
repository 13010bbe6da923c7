/* One axis at a time. The weights of an axis are computed once, in double, then rounded to fixed
 * point; the passes are integer arithmetic, so every machine gives the same bytes.
 *
 * Both passes end in the same loop: a run of taps, each a weight times a vector of bytes that lie
 * side by side. For the height pass the vector is a whole row; for the width pass it is one pixel,
 * widened to four lanes. The compiler makes SIMD of either; on x86-64 a second copy is built for
 * AVX2 and picked at run time (integers: both give the same bytes). */
#include "prepd/sample/resample.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"

enum {
    LANES = 4,               /* channels of a widened pixel; channels <= LANES */
    PILLOW_BITS = 22,        /* of the weights' fraction */
    TORCH_MAX_BITS = 22,     /* no more than these, and */
    TORCH_LIMIT = 1 << 15,   /* no weight beyond int16 */
    STRIP = 1024,            /* int32 sums of the height pass kept in the nearest cache */
    MAX_SIDE = 1 << 24,      /* see fit.c */
    MAX_TAPS = 4 * MAX_SIDE, /* so that counts fit int32 */
};

typedef struct axis {
    int32_t n_out;
    int32_t max_taps; /* stride of weights */
    int32_t *first;   /* [n_out] first input sample */
    int32_t *taps;    /* [n_out] */
    int32_t *weights; /* [n_out, max_taps] fixed point; within int16 for torch */
    int bits;         /* of the fraction */
} axis;

/* Keys' cubic, a = -1/2. */
static double cubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    if (x < 2.0)
        return ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
    return 0.0;
}

/* Real weights of output i, summing to 1; returns how many. */
static int32_t weigh(int32_t n_in, double scale, double support, double shrink, int32_t i,
                     double *w, int32_t *out_first)
{
    const double centre = (i + 0.5) * scale;
    int64_t low = (int64_t)(centre - support + 0.5); /* truncates */
    int64_t high = (int64_t)(centre + support + 0.5);
    low = low > 0 ? low : 0;
    high = high < n_in ? high : n_in;
    double sum = 0.0;
    for (int64_t j = low; j < high; j++) {
        w[j - low] = cubic(((double)j - centre + 0.5) * shrink);
        sum += w[j - low];
    }
    for (int64_t j = low; j < high; j++)
        w[j - low] /= sum;
    *out_first = (int32_t)low;
    return (int32_t)(high - low);
}

static int torch_bits(double largest)
{
    int bits = 0;
    while (bits < TORCH_MAX_BITS &&
           (int64_t)(0.5 + largest * (double)((int64_t)1 << (bits + 1))) < TORCH_LIMIT)
        bits++;
    return bits;
}

/* Weights for n_in -> n_out. The arena keeps them until the caller's release. */
static status axis_make(axis *x, int method, int32_t n_in, int32_t n_out, arena *scratch)
{
    const double scale = (double)n_in / n_out;
    const double stretch = scale > 1.0 ? scale : 1.0;
    const double support = 2.0 * stretch;
    const double max_taps = ceil(support) * 2 + 1;
    assert(max_taps <= MAX_TAPS);
    x->n_out = n_out;
    x->max_taps = (int32_t)max_taps;
    const size_t n_weights = (size_t)n_out * (size_t)x->max_taps;
    double *real;
    TRY(arena_calloc(scratch, (size_t)n_out, sizeof *x->first, (void **)&x->first));
    TRY(arena_calloc(scratch, (size_t)n_out, sizeof *x->taps, (void **)&x->taps));
    TRY(arena_calloc(scratch, n_weights, sizeof *x->weights, (void **)&x->weights));
    TRY(arena_calloc(scratch, n_weights, sizeof *real, (void **)&real));

    double largest = 0.0;
    for (int32_t i = 0; i < n_out; i++) {
        double *w = real + (size_t)i * (size_t)x->max_taps;
        x->taps[i] = weigh(n_in, scale, support, 1.0 / stretch, i, w, &x->first[i]);
        for (int32_t k = 0; k < x->taps[i]; k++)
            largest = w[k] > largest ? w[k] : largest;
    }
    x->bits = method == RESAMPLER_PILLOW ? PILLOW_BITS : torch_bits(largest);
    const double one = (double)((int64_t)1 << x->bits);
    for (size_t k = 0; k < n_weights; k++)
        x->weights[k] = (int32_t)(real[k] * one + (real[k] < 0 ? -0.5 : 0.5));
    return ST_OK;
}

static inline uint8_t clamp_byte(int32_t v)
{
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

/* The two loops, inlined into each copy below. */
#define INLINE static inline __attribute__((always_inline))

/* A pixel's channels side by side (GNU C vectors: gcc and clang, any machine). */
typedef int32_t lanes __attribute__((vector_size(LANES * sizeof(int32_t))));

/* One row: in [n_in, channels] -> out [n_out, channels] by way of wide [n_in]. Sums fit int32: the
 * weights of one output add up to one, and with their negative lobes to less than 1.5
 * (255 * 1.5 << 22 < 2^31). */
INLINE void width_row(const axis *x, int channels, const uint8_t *in, int32_t n_in, lanes *wide,
                      uint8_t *out)
{
    const lanes zero = {0}, most = {255, 255, 255, 255};
    const lanes half = zero + ((1 << x->bits) >> 1);
    for (int32_t i = 0; i < n_in; i++, in += channels)
        for (int c = 0; c < channels; c++)
            wide[i][c] = in[c];
    for (int32_t i = 0; i < x->n_out; i++, out += channels) {
        const int32_t *w = x->weights + (size_t)i * (size_t)x->max_taps;
        const lanes *p = wide + x->first[i];
        lanes sum = half;
        for (int32_t k = 0; k < x->taps[i]; k++)
            sum += w[k] * p[k];
        sum >>= x->bits;
        sum &= sum > zero; /* clamped to 0..255: comparisons give all ones where true */
        sum = (sum & (sum < most)) | (most & (sum >= most));
        for (int c = 0; c < channels; c++)
            out[c] = (uint8_t)sum[c];
    }
}

/* One output row from `taps` input rows of n bytes each, strip by strip. */
INLINE void height_row(const int32_t *w, int32_t taps, int bits, const uint8_t *rows, size_t n,
                       uint8_t *out)
{
    int32_t sum[STRIP];
    for (size_t at = 0; at < n; at += STRIP) {
        const size_t m = n - at < STRIP ? n - at : STRIP;
        for (size_t j = 0; j < m; j++)
            sum[j] = (1 << bits) >> 1;
        for (int32_t k = 0; k < taps; k++) {
            const uint8_t *row = rows + (size_t)k * n + at;
            const int32_t weight = w[k];
            for (size_t j = 0; j < m; j++)
                sum[j] += weight * row[j];
        }
        for (size_t j = 0; j < m; j++)
            out[at + j] = clamp_byte(sum[j] >> bits);
    }
}

typedef struct kernels {
    void (*width)(const axis *x, int channels, const uint8_t *in, int32_t n_in, lanes *wide,
                  uint8_t *out);
    void (*height)(const int32_t *w, int32_t taps, int bits, const uint8_t *rows, size_t n,
                   uint8_t *out);
} kernels;

/* Three channels are compiled as such, the rest for any number. */
#define COPY(suffix, target)                                                                       \
    target static void width_##suffix(const axis *x, int channels, const uint8_t *in,              \
                                      int32_t n_in, lanes *wide, uint8_t *out)                     \
    {                                                                                              \
        if (channels == 3)                                                                         \
            width_row(x, 3, in, n_in, wide, out);                                                  \
        else                                                                                       \
            width_row(x, channels, in, n_in, wide, out);                                           \
    }                                                                                              \
    target static void height_##suffix(const int32_t *w, int32_t taps, int bits,                   \
                                       const uint8_t *rows, size_t n, uint8_t *out)                \
    {                                                                                              \
        height_row(w, taps, bits, rows, n, out);                                                   \
    }

COPY(plain, )
#if defined(__x86_64__)
COPY(avx2, __attribute__((target("avx2"))))
#endif

static kernels kernels_pick(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return (kernels){width_avx2, height_avx2};
#endif
    return (kernels){width_plain, height_plain};
}

static status width_pass(const kernels *k, int method, int channels, const uint8_t *in,
                         int32_t height, int32_t in_width, uint8_t *out, int32_t out_width,
                         arena *scratch)
{
    axis x;
    lanes *wide;
    TRY(axis_make(&x, method, in_width, out_width, scratch));
    TRY(arena_calloc(scratch, (size_t)in_width, sizeof *wide, (void **)&wide));
    for (int32_t y = 0; y < height; y++)
        k->width(&x, channels, in + (size_t)y * (size_t)in_width * (size_t)channels, in_width, wide,
                 out + (size_t)y * (size_t)out_width * (size_t)channels);
    return ST_OK;
}

static status height_pass(const kernels *k, int method, const uint8_t *in, int32_t in_height,
                          uint8_t *out, int32_t out_height, size_t row_bytes, arena *scratch)
{
    axis x;
    TRY(axis_make(&x, method, in_height, out_height, scratch));
    for (int32_t y = 0; y < out_height; y++)
        k->height(x.weights + (size_t)y * (size_t)x.max_taps, x.taps[y], x.bits,
                  in + (size_t)x.first[y] * row_bytes, row_bytes, out + (size_t)y * row_bytes);
    return ST_OK;
}

status resample(int method, int channels, const uint8_t *in, int32_t in_height, int32_t in_width,
                uint8_t *out, int32_t out_height, int32_t out_width, arena *scratch)
{
    assert(method == RESAMPLER_TORCH || method == RESAMPLER_PILLOW);
    assert(channels >= 1 && channels <= LANES);
    assert(in_height > 0 && in_height <= MAX_SIDE && in_width > 0 && in_width <= MAX_SIDE);
    assert(out_height > 0 && out_height <= MAX_SIDE && out_width > 0 && out_width <= MAX_SIDE);
    const bool widths = in_width != out_width, heights = in_height != out_height;
    const size_t row_bytes = (size_t)out_width * (size_t)channels;
    const kernels k = kernels_pick();
    const arena_mark mark = arena_save(scratch);
    status st = ST_OK;
    if (!widths && !heights)
        memcpy(out, in, (size_t)out_height * row_bytes);
    const uint8_t *columns = in; /* what the height pass reads */
    if (widths) {
        uint8_t *to = out;
        if (heights)
            TRY_OR(done, arena_alloc(scratch, (size_t)in_height * row_bytes, (void **)&to));
        TRY_OR(done,
               width_pass(&k, method, channels, in, in_height, in_width, to, out_width, scratch));
        columns = to;
    }
    if (heights)
        TRY_OR(done,
               height_pass(&k, method, columns, in_height, out, out_height, row_bytes, scratch));
done:
    arena_release(scratch, mark);
    return st;
}
