/* SPDX-License-Identifier: Apache-2.0 */
/* resample.c: plans and drives a resize, one axis at a time. The weights of an axis are computed
 * once, in doubles, and rounded to fixed point; the two passes are integer arithmetic, so every
 * machine gives the same bytes.
 *
 * A row of the width pass is made when the height pass first needs it, so that both find their
 * input in the nearest cache. */
#include "prepd/sample/resample.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf/conf.h"

enum {
    PILLOW_BITS = 22,        /* of the weights' fraction */
    TORCH_MAX_BITS = 22,     /* at most; fewer if a weight would reach .. */
    TORCH_LIMIT = 1 << 15,   /* .. this, so that each fits an int16 */
    MAX_SIDE = 1 << 24,      /* see fit.c */
    MAX_TAPS = 4 * MAX_SIDE, /* so that counts fit an int32 */
};

/* The cubic convolution kernel of Keys (1981) with a = -1/2. Letters: a the kernel's parameter. */
static double cubic(double distance)
{
    const double a = -0.5;
    distance = fabs(distance);
    if (distance < 1.0)
        return ((a + 2.0) * distance - (a + 3.0)) * distance * distance + 1.0;
    if (distance < 2.0)
        return ((a * distance - 5.0 * a) * distance + 8.0 * a) * distance - 4.0 * a;
    return 0.0;
}

/* Computes the real weights of output `index`, whose sum is 1; returns how many there are. The
 * input pixels within `support` of the output's centre are weighed; `shrink` is 1 over how much the
 * kernel is stretched. */
static int32_t weigh_taps(int32_t n_in, double scale, double support, double shrink, int32_t index,
                          double *weights, int32_t *out_first)
{
    const double centre = (index + 0.5) * scale;
    int64_t low = (int64_t)(centre - support + 0.5); /* truncates */
    int64_t high = (int64_t)(centre + support + 0.5);
    low = low > 0 ? low : 0;
    high = high < n_in ? high : n_in;
    double sum = 0.0;
    for (int64_t j = low; j < high; j++) {
        weights[j - low] = cubic(((double)j - centre + 0.5) * shrink);
        sum += weights[j - low];
    }
    for (int64_t j = low; j < high; j++)
        weights[j - low] /= sum;
    *out_first = (int32_t)low;
    return (int32_t)(high - low);
}

/* As many bits of fraction as the largest weight allows (PyTorch's rule). */
static int torch_bits(double largest)
{
    int bits = 0;
    while (bits < TORCH_MAX_BITS &&
           (int64_t)(0.5 + largest * (double)((int64_t)1 << (bits + 1))) < TORCH_LIMIT)
        bits++;
    return bits;
}

/* Computes the weights for n_in -> n_out. They stay in the arena until the caller releases it. */
static status axis_make(axis *across, int method, int32_t n_in, int32_t n_out, arena *scratch)
{
    const double scale = (double)n_in / n_out;
    const double stretch = scale > 1.0 ? scale : 1.0;
    const double support = 2.0 * stretch;
    const double max_taps = ceil(support) * 2 + 1;
    assert(max_taps <= MAX_TAPS);
    across->n_out = n_out;
    across->max_taps = (int32_t)max_taps;
    const size_t n_weights = (size_t)n_out * (size_t)across->max_taps;
    double *real;
    TRY(arena_calloc(scratch, (size_t)n_out, sizeof *across->first, (void **)&across->first));
    TRY(arena_calloc(scratch, (size_t)n_out, sizeof *across->taps, (void **)&across->taps));
    TRY(arena_calloc(scratch, n_weights, sizeof *across->weights, (void **)&across->weights));
    TRY(arena_calloc(scratch, n_weights, sizeof *real, (void **)&real));

    double largest = 0.0;
    int32_t most = 0;
    for (int32_t i = 0; i < n_out; i++) {
        double *weights = real + (size_t)i * (size_t)across->max_taps;
        across->taps[i] =
            weigh_taps(n_in, scale, support, 1.0 / stretch, i, weights, &across->first[i]);
        most = across->taps[i] > most ? across->taps[i] : most;
        for (int32_t k = 0; k < across->taps[i]; k++)
            largest = weights[k] > largest ? weights[k] : largest;
    }
    across->steps = (most + STEP_TAPS - 1) / STEP_TAPS;
    across->bits = method == RESAMPLER_TORCH ? torch_bits(largest) : PILLOW_BITS;
    const double one = (double)((int64_t)1 << across->bits);
    for (size_t k = 0; k < n_weights; k++)
        across->weights[k] = (int32_t)(real[k] * one + (real[k] < 0 ? -0.5 : 0.5));
    return ST_OK;
}

/* Whether every weight fits 16 bits, as the wide kernels need. */
static bool fit_pairs(const axis *across)
{
    const size_t count = (size_t)across->n_out * (size_t)across->max_taps;
    for (size_t i = 0; i < count; i++)
        if (across->weights[i] != (int16_t)across->weights[i])
            return false;
    return true;
}

/* Weights `at` and at + 1 of output `index` in one number; zero after its taps. */
static int32_t pair_at(const axis *across, int32_t index, int32_t at)
{
    const int32_t *weights = across->weights + (size_t)index * (size_t)across->max_taps;
    const uint32_t low = at < across->max_taps ? (uint16_t)weights[at] : 0;
    const uint32_t high = at + 1 < across->max_taps ? (uint16_t)weights[at + 1] : 0;
    return (int32_t)(high << 16 | low);
}

static status height_pairs(axis *down, arena *memory)
{
    const int32_t count = (down->max_taps + 1) / 2;
    TRY(arena_alloc(memory, (size_t)down->n_out * (size_t)count * sizeof *down->pairs,
                    (void **)&down->pairs));
    for (int32_t i = 0; i < down->n_out; i++)
        for (int32_t k = 0; k < count; k++)
            down->pairs[(size_t)i * (size_t)count + (size_t)k] = pair_at(down, i, 2 * k);
    return ST_OK;
}

static status width_pairs(axis *across, int32_t group, arena *memory)
{
    const size_t each = (size_t)across->steps * STEP_PAIRS * MAX_CHANNELS;
    TRY(arena_alloc(memory, ((size_t)across->n_out + (size_t)group) * each * sizeof *across->pairs,
                    (void **)&across->pairs));
    int32_t *to = across->pairs;
    for (int32_t i = 0; i + group <= across->n_out; i += group) {
        for (int32_t step = 0; step < across->steps * STEP_PAIRS; step++) {
            /* The third pair of a step has only one tap; the next step begins after it. */
            const int32_t k = step / STEP_PAIRS * STEP_TAPS + step % STEP_PAIRS * 2;
            const uint32_t mask = step % STEP_PAIRS == STEP_PAIRS - 1 ? UINT16_MAX : UINT32_MAX;
            for (int32_t j = 0; j < group; j++)
                for (int channel = 0; channel < MAX_CHANNELS; channel++)
                    *to++ = (int32_t)((uint32_t)pair_at(across, i + j, k) & mask);
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
    bool widths, heights;       /* whether the axis changes its size */
    bool wide_x, wide_y;        /* whether it uses wide kernels */
    axis across, down;
    resample_pixel *pixels; /* [in_width] scratch for the plain width loop */
    uint8_t *columns;       /* [in_height, out_width, channels] the result of the width pass */
    int32_t made;           /* how many of its rows are there */
};

static status prepare_axes(resampler *maker, int method, int32_t out_width, arena *memory)
{
    const resample_wide *wide = maker->kernels->wide;
    if (maker->widths) {
        TRY(axis_make(&maker->across, method, maker->in_width, out_width, memory));
        TRY(arena_calloc(memory, (size_t)maker->in_width, sizeof *maker->pixels,
                         (void **)&maker->pixels));
        maker->wide_x = wide && maker->channels == 3 && fit_pairs(&maker->across);
        if (maker->wide_x)
            TRY(width_pairs(&maker->across, wide->group, memory));
        if (maker->heights)
            TRY(arena_alloc(memory, (size_t)maker->in_height * maker->out_bytes,
                            (void **)&maker->columns));
    }
    if (maker->heights) {
        TRY(axis_make(&maker->down, method, maker->in_height, maker->out_height, memory));
        maker->wide_y = wide && fit_pairs(&maker->down);
        if (maker->wide_y)
            TRY(height_pairs(&maker->down, memory));
    }
    return ST_OK;
}

/* Whether the height comes first, by the rule of Pillow 13. */
static bool height_first(int method, int32_t in_height, int32_t in_width, int32_t out_height,
                         int32_t out_width)
{
    return method == RESAMPLER_PILLOW13 && out_height < in_height && out_width != in_width &&
           (int64_t)in_height - out_height > 2 * ((int64_t)in_width - out_width);
}

/* Makes the whole height pass at once, as input for the width pass. */
static status shrink_height(const resample_kernels *kernels, int method, int channels,
                            const uint8_t *in, int32_t in_height, int32_t width, int32_t out_height,
                            arena *memory, uint8_t **out)
{
    resampler *maker;
    uint8_t *rows;
    TRY(arena_alloc(memory, (size_t)out_height * (size_t)width * (size_t)channels, (void **)&rows));
    TRY(resampler_with(kernels, method, channels, in, in_height, width, out_height, width, memory,
                       &maker));
    resampler_rows(maker, 0, out_height, rows);
    *out = rows;
    return ST_OK;
}

status resampler_with(const resample_kernels *kernels, int method, int channels, const uint8_t *in,
                      int32_t in_height, int32_t in_width, int32_t out_height, int32_t out_width,
                      arena *memory, resampler **out)
{
    assert(method == RESAMPLER_TORCH || method == RESAMPLER_PILLOW || method == RESAMPLER_PILLOW13);
    assert(channels >= 1 && channels <= MAX_CHANNELS);
    assert(in_height > 0 && in_height <= MAX_SIDE && in_width > 0 && in_width <= MAX_SIDE);
    assert(out_height > 0 && out_height <= MAX_SIDE && out_width > 0 && out_width <= MAX_SIDE);
    if (height_first(method, in_height, in_width, out_height, out_width)) {
        uint8_t *rows;
        TRY(shrink_height(kernels, method, channels, in, in_height, in_width, out_height, memory,
                          &rows));
        in = rows;
        in_height = out_height;
    }
    resampler *maker;
    TRY(arena_calloc(memory, 1, sizeof *maker, (void **)&maker));
    maker->kernels = kernels;
    maker->in = in;
    maker->channels = channels;
    maker->in_height = in_height;
    maker->in_width = in_width;
    maker->out_height = out_height;
    maker->in_bytes = (size_t)in_width * (size_t)channels;
    maker->out_bytes = (size_t)out_width * (size_t)channels;
    maker->widths = in_width != out_width;
    maker->heights = in_height != out_height;
    TRY(prepare_axes(maker, method, out_width, memory));
    *out = maker;
    return ST_OK;
}

status resampler_new(int method, int channels, const uint8_t *in, int32_t in_height,
                     int32_t in_width, int32_t out_height, int32_t out_width, arena *memory,
                     resampler **out)
{
    return resampler_with(resample_kernels_here(0), method, channels, in, in_height, in_width,
                          out_height, out_width, memory, out);
}

static void width_row(resampler *maker, int32_t row, uint8_t *out)
{
    const uint8_t *in = maker->in + (size_t)row * maker->in_bytes;
    const size_t after = (size_t)(maker->in_height - row - 1) * maker->in_bytes;
    int32_t done = 0;
    if (maker->wide_x && after > (size_t)maker->across.steps * STEP_TAPS * 3)
        done = maker->kernels->wide->width(&maker->across, in, out);
    if (done < maker->across.n_out)
        maker->kernels->loops->width(&maker->across, maker->channels, in, maker->in_width, done,
                                     maker->pixels, out);
}

static void height_row(const resampler *maker, int32_t row, const uint8_t *columns, uint8_t *out)
{
    const axis *down = &maker->down;
    const uint8_t *rows = columns + (size_t)down->first[row] * maker->out_bytes;
    size_t done = 0;
    if (maker->wide_y)
        done = maker->kernels->wide->height(
            down->pairs + (size_t)row * (size_t)((down->max_taps + 1) / 2), down->taps[row],
            down->bits, rows, maker->out_bytes, out);
    if (done < maker->out_bytes)
        maker->kernels->loops->height(down->weights + (size_t)row * (size_t)down->max_taps,
                                      down->taps[row], down->bits, rows, maker->out_bytes, done,
                                      out);
}

void resampler_rows(resampler *maker, int32_t from, int32_t count, uint8_t *out)
{
    assert(from >= 0 && count >= 0 && count <= maker->out_height - from);
    if (!maker->widths && !maker->heights) {
        memcpy(out, maker->in + (size_t)from * maker->in_bytes, (size_t)count * maker->in_bytes);
        return;
    }
    for (int32_t row = from; row < from + count; row++, out += maker->out_bytes) {
        if (!maker->heights) {
            width_row(maker, row, out);
            continue;
        }
        for (const int32_t need = maker->down.first[row] + maker->down.taps[row];
             maker->widths && maker->made < need; maker->made++)
            width_row(maker, maker->made, maker->columns + (size_t)maker->made * maker->out_bytes);
        height_row(maker, row, maker->widths ? maker->columns : maker->in, out);
    }
}

status resample_pixels(int method, int channels, const uint8_t *in, int32_t in_height,
                       int32_t in_width, uint8_t *out, int32_t out_height, int32_t out_width,
                       arena *scratch)
{
    resampler *maker;
    const arena_mark mark = arena_save(scratch);
    const status st = resampler_new(method, channels, in, in_height, in_width, out_height,
                                    out_width, scratch, &maker);
    if (st == ST_OK)
        resampler_rows(maker, 0, out_height, out);
    arena_release(scratch, mark);
    return st;
}
