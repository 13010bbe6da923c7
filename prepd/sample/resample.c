/* One axis at a time. The weights of an axis are computed once, in double, then rounded to fixed
 * point; the passes are integer arithmetic, so every machine gives the same bytes.
 *
 * Rows of the width pass are made when the height pass first needs them, so both find their input
 * in the nearest cache. */
#include "prepd/sample/resample.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf/conf.h"
#include "prepd/sample/resample_kernels.h"

enum {
    PILLOW_BITS = 22,        /* of the weights' fraction */
    TORCH_MAX_BITS = 22,     /* no more than these, and */
    TORCH_LIMIT = 1 << 15,   /* no weight beyond int16 */
    MAX_SIDE = 1 << 24,      /* see fit.c */
    MAX_TAPS = 4 * MAX_SIDE, /* so that counts fit int32 */
};

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
static int32_t weigh_taps(int32_t n_in, double scale, double support, double shrink, int32_t i,
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
    int32_t most = 0;
    for (int32_t i = 0; i < n_out; i++) {
        double *w = real + (size_t)i * (size_t)x->max_taps;
        x->taps[i] = weigh_taps(n_in, scale, support, 1.0 / stretch, i, w, &x->first[i]);
        most = x->taps[i] > most ? x->taps[i] : most;
        for (int32_t k = 0; k < x->taps[i]; k++)
            largest = w[k] > largest ? w[k] : largest;
    }
    x->steps = (most + STEP_TAPS - 1) / STEP_TAPS;
    x->bits = method == RESAMPLER_TORCH ? torch_bits(largest) : PILLOW_BITS;
    const double one = (double)((int64_t)1 << x->bits);
    for (size_t k = 0; k < n_weights; k++)
        x->weights[k] = (int32_t)(real[k] * one + (real[k] < 0 ? -0.5 : 0.5));
    return ST_OK;
}

static bool fit_pairs(const axis *x)
{
    const size_t n = (size_t)x->n_out * (size_t)x->max_taps;
    for (size_t i = 0; i < n; i++)
        if (x->weights[i] != (int16_t)x->weights[i])
            return false;
    return true;
}

/* Weights k and k + 1 of output i; zero behind its taps. */
static int32_t pair_at(const axis *x, int32_t i, int32_t k)
{
    const int32_t *w = x->weights + (size_t)i * (size_t)x->max_taps;
    const uint32_t low = k < x->max_taps ? (uint16_t)w[k] : 0;
    const uint32_t high = k + 1 < x->max_taps ? (uint16_t)w[k + 1] : 0;
    return (int32_t)(high << 16 | low);
}

static status height_pairs(axis *y, arena *a)
{
    const int32_t n = (y->max_taps + 1) / 2;
    TRY(arena_alloc(a, (size_t)y->n_out * (size_t)n * sizeof *y->pairs, (void **)&y->pairs));
    for (int32_t i = 0; i < y->n_out; i++)
        for (int32_t k = 0; k < n; k++)
            y->pairs[(size_t)i * (size_t)n + (size_t)k] = pair_at(y, i, 2 * k);
    return ST_OK;
}

static status width_pairs(axis *x, int32_t group, arena *a)
{
    const size_t each = (size_t)x->steps * STEP_PAIRS * MAX_CHANNELS;
    TRY(arena_alloc(a, ((size_t)x->n_out + (size_t)group) * each * sizeof *x->pairs,
                    (void **)&x->pairs));
    int32_t *to = x->pairs;
    for (int32_t i = 0; i + group <= x->n_out; i += group) {
        for (int32_t p = 0; p < x->steps * STEP_PAIRS; p++) {
            /* The third pair of a step has one tap; the next step begins behind it. */
            const int32_t k = p / STEP_PAIRS * STEP_TAPS + p % STEP_PAIRS * 2;
            const uint32_t mask = p % STEP_PAIRS == STEP_PAIRS - 1 ? UINT16_MAX : UINT32_MAX;
            for (int32_t j = 0; j < group; j++)
                for (int c = 0; c < MAX_CHANNELS; c++)
                    *to++ = (int32_t)((uint32_t)pair_at(x, i + j, k) & mask);
        }
    }
    return ST_OK;
}

struct resampler {
    const resample_kernels *kernels;
    const uint8_t *in; /* [in_height, in_width, channels] */
    int channels;
    int32_t in_height, in_width, out_height;
    size_t in_bytes, out_bytes; /* of a row */
    bool widths, heights;       /* which axes change */
    bool wide_x, wide_y;        /* with wide kernels */
    axis x, y;
    resample_pixel *pixels; /* [in_width] scratch of the plain width loop */
    uint8_t *columns;       /* [in_height, out_width, channels]: what the width pass has made */
    int32_t made;           /* of its rows */
};

static status prepare_axes(resampler *r, int method, int32_t out_width, arena *a)
{
    const resample_wide *wide = r->kernels->wide;
    if (r->widths) {
        TRY(axis_make(&r->x, method, r->in_width, out_width, a));
        TRY(arena_calloc(a, (size_t)r->in_width, sizeof *r->pixels, (void **)&r->pixels));
        r->wide_x = wide && r->channels == 3 && fit_pairs(&r->x);
        if (r->wide_x)
            TRY(width_pairs(&r->x, wide->group, a));
        if (r->heights)
            TRY(arena_alloc(a, (size_t)r->in_height * r->out_bytes, (void **)&r->columns));
    }
    if (r->heights) {
        TRY(axis_make(&r->y, method, r->in_height, r->out_height, a));
        r->wide_y = wide && fit_pairs(&r->y);
        if (r->wide_y)
            TRY(height_pairs(&r->y, a));
    }
    return ST_OK;
}

/* As Pillow 13 decides it. */
static bool height_first(int method, int32_t in_height, int32_t in_width, int32_t out_height,
                         int32_t out_width)
{
    return method == RESAMPLER_PILLOW13 && out_height < in_height && out_width != in_width &&
           (int64_t)in_height - out_height > 2 * ((int64_t)in_width - out_width);
}

/* The height pass alone, all of it at once; the width pass then goes over its rows. */
static status shrink_height(const resample_kernels *kernels, int method, int channels,
                            const uint8_t *in, int32_t in_height, int32_t width, int32_t out_height,
                            arena *a, uint8_t **out)
{
    resampler *r;
    uint8_t *rows;
    TRY(arena_alloc(a, (size_t)out_height * (size_t)width * (size_t)channels, (void **)&rows));
    TRY(resampler_with(kernels, method, channels, in, in_height, width, out_height, width, a, &r));
    resampler_rows(r, 0, out_height, rows);
    *out = rows;
    return ST_OK;
}

status resampler_with(const resample_kernels *kernels, int method, int channels, const uint8_t *in,
                      int32_t in_height, int32_t in_width, int32_t out_height, int32_t out_width,
                      arena *a, resampler **out)
{
    assert(method == RESAMPLER_TORCH || method == RESAMPLER_PILLOW || method == RESAMPLER_PILLOW13);
    assert(channels >= 1 && channels <= MAX_CHANNELS);
    assert(in_height > 0 && in_height <= MAX_SIDE && in_width > 0 && in_width <= MAX_SIDE);
    assert(out_height > 0 && out_height <= MAX_SIDE && out_width > 0 && out_width <= MAX_SIDE);
    if (height_first(method, in_height, in_width, out_height, out_width)) {
        uint8_t *rows;
        TRY(shrink_height(kernels, method, channels, in, in_height, in_width, out_height, a,
                          &rows));
        in = rows;
        in_height = out_height;
    }
    resampler *r;
    TRY(arena_calloc(a, 1, sizeof *r, (void **)&r));
    r->kernels = kernels;
    r->in = in;
    r->channels = channels;
    r->in_height = in_height;
    r->in_width = in_width;
    r->out_height = out_height;
    r->in_bytes = (size_t)in_width * (size_t)channels;
    r->out_bytes = (size_t)out_width * (size_t)channels;
    r->widths = in_width != out_width;
    r->heights = in_height != out_height;
    TRY(prepare_axes(r, method, out_width, a));
    *out = r;
    return ST_OK;
}

status resampler_new(int method, int channels, const uint8_t *in, int32_t in_height,
                     int32_t in_width, int32_t out_height, int32_t out_width, arena *a,
                     resampler **out)
{
    return resampler_with(resample_kernels_here(0), method, channels, in, in_height, in_width,
                          out_height, out_width, a, out);
}

static void width_row(resampler *r, int32_t row, uint8_t *out)
{
    const uint8_t *in = r->in + (size_t)row * r->in_bytes;
    const size_t behind = (size_t)(r->in_height - row - 1) * r->in_bytes;
    int32_t done = 0;
    if (r->wide_x && behind > (size_t)r->x.steps * STEP_TAPS * 3)
        done = r->kernels->wide->width(&r->x, in, out);
    if (done < r->x.n_out)
        r->kernels->loops->width(&r->x, r->channels, in, r->in_width, done, r->pixels, out);
}

static void height_row(const resampler *r, int32_t row, const uint8_t *columns, uint8_t *out)
{
    const axis *y = &r->y;
    const uint8_t *rows = columns + (size_t)y->first[row] * r->out_bytes;
    size_t done = 0;
    if (r->wide_y)
        done = r->kernels->wide->height(y->pairs + (size_t)row * (size_t)((y->max_taps + 1) / 2),
                                        y->taps[row], y->bits, rows, r->out_bytes, out);
    if (done < r->out_bytes)
        r->kernels->loops->height(y->weights + (size_t)row * (size_t)y->max_taps, y->taps[row],
                                  y->bits, rows, r->out_bytes, done, out);
}

void resampler_rows(resampler *r, int32_t from, int32_t n, uint8_t *out)
{
    assert(from >= 0 && n >= 0 && n <= r->out_height - from);
    if (!r->widths && !r->heights) {
        memcpy(out, r->in + (size_t)from * r->in_bytes, (size_t)n * r->in_bytes);
        return;
    }
    for (int32_t row = from; row < from + n; row++, out += r->out_bytes) {
        if (!r->heights) {
            width_row(r, row, out);
            continue;
        }
        for (const int32_t need = r->y.first[row] + r->y.taps[row]; r->widths && r->made < need;
             r->made++)
            width_row(r, r->made, r->columns + (size_t)r->made * r->out_bytes);
        height_row(r, row, r->widths ? r->columns : r->in, out);
    }
}

status resample_pixels(int method, int channels, const uint8_t *in, int32_t in_height,
                       int32_t in_width, uint8_t *out, int32_t out_height, int32_t out_width,
                       arena *scratch)
{
    resampler *r;
    const arena_mark mark = arena_save(scratch);
    const status st = resampler_new(method, channels, in, in_height, in_width, out_height,
                                    out_width, scratch, &r);
    if (st == ST_OK)
        resampler_rows(r, 0, out_height, out);
    arena_release(scratch, mark);
    return st;
}
