/* SPDX-License-Identifier: Apache-2.0 */
/* rope.c: cases of the tables of angles and of the rotation. Tolerance of the tables: the frequency
 * is rounded as the published model rounds it, and the angle is one product in the number type; the
 * loop here repeats both, so 4 eps remain for the library's cosine. */
#include "tests/parity/parity.h"
#include "trainer/device/real.h"

/* theta^(-above / below) in float32: the exponent,
 * the power and the reciprocal are each rounded. */
static double rounded_angle(double position, double theta, int64_t above, int64_t below)
{
    float power = (float)pow(theta, (float)above / (float)below);
    return (double)((real)position * (real)(1 / power));
}

/* shape: tokens, head_dim, sections H, W, largest position */
static void text_case(parity *test, const int64_t *shape)
{
    int64_t n = shape[0], d = shape[1], half = d / 2;
    int32_t *positions = parity_zero_ints(test, 3 * n);
    for (int64_t i = 0; i < 3 * n; i++)
        positions[i] = (int32_t)parity_below(test, shape[4]);
    tensor c = parity_tensor_acc(test, n * half, 1), s = parity_tensor_acc(test, n * half, 1);
    double *wc = parity_zeros(test, c.n), *ws = parity_zeros(test, c.n);
    /* The tables of the published model, in bf16. */
    double *oc = parity_zeros(test, c.n), *os = parity_zeros(test, c.n);
    for (int64_t token = 0; token < n; token++)
        for (int64_t j = 0; j < half; j++) {
            int axis = j % 3 == 1 && j < 3 * shape[2] ? 1 : j % 3 == 2 && j < 3 * shape[3] ? 2 : 0;
            double angle = rounded_angle(positions[axis * n + token], 5e6, 2 * j, d);
            wc[token * half + j] = cos(angle);
            ws[token * half + j] = sin(angle);
            oc[token * half + j] = parity_round(test, wc[token * half + j]);
            os[token * half + j] = parity_round(test, ws[token * half + j]);
        }
    PARITY_RUN(test, op_rope_text(test->queue, &(rope_text_args){
                                                   .tokens = n,
                                                   .head_dim = d,
                                                   .theta = 5e6,
                                                   .section = {24, shape[2], shape[3]},
                                                   .positions = parity_ints(test, positions, 3 * n),
                                                   .cos = c.dev,
                                                   .sin = s.dev}));
    parity_expect_order(test, "cos", c, wc, oc, 4);
    parity_expect_order(test, "sin", s, ws, os, 4);
}

/* A table worked out by hand for position (5, 7, 9) and d = 128, with exact frequencies. Those of
 * the published model are rounded twice and differ by up to 1.2e-7 of their value, which is 7e-7 of
 * an angle (the golden numbers have their bits). */
static void text_golden(parity *test, const int64_t *shape)
{
    (void)shape;
    static const double want[][2] = {{0.2836622, -0.9589243}, {0.7092408, -0.7049663},
                                     {0.7482165, -0.6634546}, {-0.7549427, 0.6557908},
                                     {-0.8905696, 0.4548469}, {-0.9027980, 0.4300647}};
    static const double tail[][2] = {{57, 5.40380734e-06},
                                     {58, 5.94506309e-06},
                                     {59, 6.00661133e-06},
                                     {60, 2.6223197e-06},
                                     {63, 1.27253986e-06}};
    int32_t positions[] = {5, 7, 9};
    tensor c = parity_tensor_acc(test, 64, 1), s = parity_tensor_acc(test, 64, 1);
    PARITY_RUN(test, op_rope_text(test->queue,
                                  &(rope_text_args){.tokens = 1,
                                                    .head_dim = 128,
                                                    .theta = 5e6,
                                                    .section = {24, 20, 20},
                                                    .positions = parity_ints(test, positions, 3),
                                                    .cos = c.dev,
                                                    .sin = s.dev}));
    double *gc = parity_fetch(test, c), *gs = parity_fetch(test, s);
    for (int j = 0; j < 6; j++) {
        assert_true(fabs(gc[j] - want[j][0]) < 1e-6);
        assert_true(fabs(gs[j] - want[j][1]) < 1e-6);
    }
    for (int i = 0; i < 5; i++) /* the sine of a small angle is the angle */
        assert_true(fabs(gs[(int)tail[i][0]] - tail[i][1]) < 3e-7 * tail[i][1]);
}

/* shape: patches, head_dim, largest coordinate */
static void vision_case(parity *test, const int64_t *shape)
{
    int64_t n = shape[0], d = shape[1], half = d / 2, quarter = d / 4;
    int32_t *at = parity_zero_ints(test, 2 * n);
    for (int64_t i = 0; i < 2 * n; i++)
        at[i] = (int32_t)parity_below(test, shape[2]);
    tensor c = parity_tensor_acc(test, n * half, 1), s = parity_tensor_acc(test, n * half, 1);
    double *wc = parity_zeros(test, c.n), *ws = parity_zeros(test, c.n);
    for (int64_t token = 0; token < n; token++)
        for (int64_t j = 0; j < half; j++) {
            double angle =
                rounded_angle(at[2 * token + (j >= quarter)], 10000, 2 * (j % quarter), half);
            wc[token * half + j] = cos(angle);
            ws[token * half + j] = sin(angle);
        }
    PARITY_RUN(test, op_rope_vision(test->queue,
                                    &(rope_vision_args){n, d, 10000, parity_ints(test, at, 2 * n),
                                                        c.dev, s.dev}));
    parity_expect(test, "cos", c, wc, 4);
    parity_expect(test, "sin", s, ws, 4);
}

static void vision_golden(parity *test, const int64_t *shape)
{
    (void)shape;
    int32_t at[] = {1, 0};
    tensor c = parity_tensor_acc(test, 36, 1), s = parity_tensor_acc(test, 36, 1);
    PARITY_RUN(test, op_rope_vision(test->queue,
                                    &(rope_vision_args){1, 72, 10000, parity_ints(test, at, 2),
                                                        c.dev, s.dev}));
    double *got = parity_fetch(test, s);
    assert_true(fabs(got[1] - sin(0.59948425)) < 1e-7);
    assert_true(fabs(got[2] - sin(0.359381366)) < 1e-7);
    assert_true(fabs(got[17] - 0.000166810054) < 1e-10);
    assert_true(got[18] == 0); /* the half that belongs to the column */
}

/* shape: rows, heads, head_dim, spare elements in a row, inverse */
static void apply_case(parity *test, const int64_t *shape)
{
    int64_t rows = shape[0], heads = shape[1], d = shape[2], half = d / 2,
            stride = heads * d + shape[3];
    double sign = shape[4] ? -1 : 1;
    tensor x = parity_tensor(test, rows * stride, 2);
    tensor c = parity_tensor_acc(test, rows * half, 1), s = parity_tensor_acc(test, rows * half, 1);
    double *want = parity_copy(test, x.ref, x.n);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < heads; head++)
            for (int64_t j = 0; j < half; j++) {
                int64_t at = row * stride + head * d + j;
                double cj = c.ref[row * half + j], sj = sign * s.ref[row * half + j];
                want[at] = x.ref[at] * cj - x.ref[at + half] * sj;
                want[at + half] = x.ref[at + half] * cj + x.ref[at] * sj;
            }
    PARITY_RUN(test, op_rope_apply(test->queue, &(rope_apply_args){rows, heads, d, stride, c.dev,
                                                                   s.dev, x.dev, shape[4]}));
    parity_expect(test, "x", x, want, 4);
}

static void rope_refuses(parity *test, const int64_t *shape)
{
    (void)shape;
    tensor x = parity_tensor(test, 8, 1);
    rope_apply_args args = {1, 1, 3, 3, x.dev, x.dev, x.dev, false};
    assert_fails(ST_BAD_INPUT, op_rope_apply(test->queue, &args), "head_dim is 3");
}

const parity_case parity_rope[] = {
    {"rope_text", "empty", text_case, {0, 16, 2, 2, 10}},
    {"rope_text", "one", text_case, {1, 2, 0, 0, 10}},
    {"rope_text", "ragged", text_case, {5, 22, 3, 3, 100}},
    {"rope_text", "real", text_case, {2048, 32, 5, 5, 2048}},
    {"rope_text", "hostile far", text_case, {9, 128, 20, 20, 262144}},
    {"rope_text", "golden", text_golden, {0}},
    {"rope_vision", "empty", vision_case, {0, 16, 10}},
    {"rope_vision", "one", vision_case, {1, 4, 10}},
    {"rope_vision", "ragged", vision_case, {7, 72, 50}},
    {"rope_vision", "real", vision_case, {2000, 24, 64}},
    {"rope_vision", "golden", vision_golden, {0}},
    {"rope_apply", "empty", apply_case, {0, 2, 8, 0, 0}},
    {"rope_apply", "one", apply_case, {1, 1, 2, 0, 0}},
    {"rope_apply", "ragged", apply_case, {5, 3, 18, 7, 0}},
    {"rope_apply", "ragged inverse", apply_case, {5, 3, 18, 7, 1}},
    {"rope_apply", "text", apply_case, {5, 32, 128, 0, 0}},
    {"rope_apply", "vision", apply_case, {5, 16, 72, 2304, 1}},
    {"rope_apply", "real", apply_case, {2048, 8, 32, 128, 0}},
    {"rope_apply", "hostile", rope_refuses, {0}},
    {NULL},
};
