/* SPDX-License-Identifier: Apache-2.0 */
/* rows.c: cases of rows by index. Tolerance: copies are exact; sums of up to 40 rows, 16 eps. */
#include "tests/parity/parity.h"

/* Draws indices into `rows`, a fifth of them -1. distinct: each row at most once (n <= rows). */
static int32_t *draw_index(parity *test, int64_t n, int64_t rows, bool distinct)
{
    int32_t *index = parity_zero_ints(test, n);
    rng_key key = rng_key_make((uint64_t)n, "parity/rows");
    for (int64_t i = 0; i < n; i++) {
        int64_t at = distinct ? (int64_t)rng_permute(key, (uint64_t)rows, (uint64_t)i)
                              : parity_below(test, rows);
        index[i] = parity_below(test, 5) == 0 ? -1 : (int32_t)at;
    }
    return index;
}

/* shape: n, width, rows of x, keep */
static void gather_case(parity *test, const int64_t *shape)
{
    int64_t n = shape[0], width = shape[1];
    int32_t *index = draw_index(test, n, shape[2], false);
    tensor x = parity_tensor(test, shape[2] * width, 1), y = parity_tensor(test, n * width, 1);
    double *want = parity_copy(test, y.ref, y.n);
    for (int64_t i = 0; i < n * width; i++)
        want[i] = index[i / width] >= 0 ? x.ref[index[i / width] * width + i % width]
                  : shape[3]            ? want[i]
                                        : 0;
    PARITY_RUN(
        test, op_rows_gather(test->queue, &(rows_gather_args){n, width, parity_ints(test, index, n),
                                                              x.dev, y.dev, shape[3]}));
    parity_expect(test, "y", y, want, 0);
}

/* Rows of x that are copied to several rows of y, whose places are given. The fifth part of them
 * goes nowhere, as slots beyond the last token do. shape: rows of x, copies, width */
static void places_case(parity *test, const int64_t *shape)
{
    const int64_t rows = shape[0], copies = shape[1], width = shape[2], n = rows * copies;
    int32_t *index = parity_zero_ints(test, n), *places = parity_zero_ints(test, n);
    const rng_key key = rng_key_make((uint64_t)n, "parity/places");
    for (int64_t i = 0; i < n; i++) {
        const int64_t to = (int64_t)rng_permute(key, (uint64_t)n, (uint64_t)i);
        const bool goes = parity_below(test, 5) != 0;
        places[i] = goes ? (int32_t)to : -1;
        index[to] = goes ? (int32_t)(i / copies) : -1;
    }
    tensor x = parity_tensor(test, rows * width, 1), y = parity_tensor(test, n * width, 1);
    double *want = parity_zeros(test, y.n);
    for (int64_t i = 0; i < n * width; i++)
        want[i] = index[i / width] >= 0 ? x.ref[index[i / width] * width + i % width] : 0;
    rows_gather_args args = {.n = n,
                             .width = width,
                             .index = parity_ints(test, index, n),
                             .x = x.dev,
                             .y = y.dev,
                             .copies = copies,
                             .places = parity_ints(test, places, n)};
    PARITY_RUN(test, op_rows_gather(test->queue, &args));
    parity_expect(test, "y", y, want, 0);
}

/* shape: n, width, rows of y, distinct, y in act */
static void scatter_case(parity *test, const int64_t *shape)
{
    int64_t n = shape[0], width = shape[1];
    int32_t *index = draw_index(test, n, shape[2], shape[3]);
    tensor x = parity_tensor(test, n * width, 1);
    tensor y = (shape[4] ? parity_tensor : parity_tensor_acc)(test, shape[2] * width, 1);
    double *want = parity_copy(test, y.ref, y.n);
    for (int64_t i = 0; i < n * width; i++)
        if (index[i / width] >= 0)
            want[index[i / width] * width + i % width] += x.ref[i];
    PARITY_RUN(test,
               op_rows_scatter(test->queue,
                               &(rows_scatter_args){n, width, shape[2], parity_ints(test, index, n),
                                                    x.dev, y.dev, !shape[4], shape[3]}));
    parity_expect(test, "y", y, want, 16);
}

static void expect_bad_index(status got, const char *words)
{
    if (parity_here.bad_index == PARITY_REFUSES)
        assert_fails(ST_BAD_INPUT, got, words);
    else
        assert_fails(ST_BAD_DEVICE, got, ".cu");
}

static void rows_refuse(parity *test, const int64_t *shape)
{
    (void)shape;
    if (parity_here.bad_index == PARITY_DIES)
        return;
    tensor x = parity_tensor(test, 64, 1), weight = parity_tensor_acc(test, 4, 1);
    tensor y = parity_tensor_acc(test, 64, 1);
    int32_t index[] = {0, 1, 2, 4}, *dev = parity_ints(test, index, 4);
    expect_bad_index(
        op_rows_scatter(test->queue, &(rows_scatter_args){4, 2, 4, dev, x.dev, y.dev, true, true}),
        "index 3 is 4, but there are only 4 rows");
    expect_bad_index(
        op_rows_scatter(test->queue, &(rows_scatter_args){4, 2, 4, dev, x.dev, y.dev, true, false}),
        "index 3 is 4, but there are only 4 rows");
    rows_weighted_args args = {1, 2, 4, dev, weight.dev, x.dev, x.dev};
    expect_bad_index(op_rows_weighted(test->queue, &args), "but there are only 4 rows");
    rows_weighted_bwd_args back = {1, 2, 4, dev, weight.dev, x.dev, y.dev};
    expect_bad_index(op_rows_weighted_bwd(test->queue, &back), "but there are only 4 rows");
    index[3] = -1;
    args.index = back.index = parity_ints(test, index, 4);
    expect_bad_index(op_rows_weighted(test->queue, &args), "index 3 is -1");
    expect_bad_index(op_rows_weighted_bwd(test->queue, &back), "index 3 is -1");
}

/* shape: n, width, rows of the table */
static void weighted_case(parity *test, const int64_t *shape)
{
    int64_t n = shape[0], width = shape[1], rows = shape[2];
    bool bwd = strcmp(test->op, "rows_weighted_bwd") == 0;
    int32_t *index = parity_zero_ints(test, 4 * n);
    for (int64_t i = 0; i < 4 * n; i++) /* at a border some corners coincide */
        index[i] = i % 8 == 1 ? index[i - 1] : (int32_t)parity_below(test, rows);
    tensor weight = parity_tensor_acc(test, 4 * n, 1);
    tensor table = (bwd ? parity_tensor_acc : parity_tensor)(test, rows * width, 1);
    tensor y = parity_tensor(test, n * width, 1);
    double *wy = parity_copy(test, y.ref, y.n), *wtable = parity_copy(test, table.ref, table.n);
    double *order = parity_zeros(test, y.n); /* the sum of four is rounded, then its sum with y */
    for (int64_t column = 0; column < 4 * n; column++)
        for (int64_t j = 0; j < width; j++) {
            if (bwd)
                wtable[index[column] * width + j] +=
                    weight.ref[column] * y.ref[column / 4 * width + j];
            else
                wy[column / 4 * width + j] +=
                    weight.ref[column] * table.ref[index[column] * width + j];
        }
    int32_t *at = parity_ints(test, index, 4 * n);
    if (bwd)
        PARITY_RUN(test, op_rows_weighted_bwd(
                             test->queue, &(rows_weighted_bwd_args){n, width, rows, at, weight.dev,
                                                                    y.dev, table.dev}));
    else
        PARITY_RUN(test, op_rows_weighted(test->queue,
                                          &(rows_weighted_args){n, width, rows, at, weight.dev,
                                                                table.dev, y.dev}));
    for (int64_t i = 0; i < y.n; i++)
        order[i] = parity_round(test, y.ref[i] + parity_round(test, wy[i] - y.ref[i]));
    parity_expect_order(test, "y", y, wy, bwd ? NULL : order, 16);
    parity_expect(test, "table", table, wtable, 16);
}

const parity_case parity_rows[] = {
    {"rows_gather", "empty", gather_case, {0, 3, 4, 0}},
    {"rows_gather", "one", gather_case, {1, 1, 1, 0}},
    {"rows_gather", "ragged", gather_case, {13, 7, 5, 0}},
    {"rows_gather", "ragged keep", gather_case, {13, 7, 5, 1}},
    {"rows_gather", "hidden keep", gather_case, {13, 2048, 5, 1}},
    {"rows_gather", "places empty", places_case, {0, 8, 16}},
    {"rows_gather", "places ragged", places_case, {13, 3, 7}},
    {"rows_gather", "places hidden", places_case, {5, 8, 2048}},
    {"rows_gather", "real", gather_case, {4096, 128, 2048, 0}},
    {"rows_scatter", "empty", scatter_case, {0, 3, 4, 0}},
    {"rows_scatter", "one", scatter_case, {1, 1, 1, 0}},
    {"rows_scatter", "ragged", scatter_case, {13, 7, 5, 0}},
    {"rows_scatter", "ragged distinct", scatter_case, {13, 7, 29, 1}},
    {"rows_scatter", "real", scatter_case, {2048, 128, 600, 0}},
    {"rows_scatter", "real distinct", scatter_case, {1000, 128, 2048, 1}},
    {"rows_scatter", "hidden", scatter_case, {60, 2048, 29, 0}},
    {"rows_scatter", "hidden distinct act", scatter_case, {13, 2048, 29, 1, 1}},
    {"rows_scatter", "ragged act", scatter_case, {40, 8, 5, 0, 1}},
    {"rows_scatter", "hostile one row", scatter_case, {3000, 8, 1, 0}},
    {"rows_scatter", "hostile", rows_refuse, {0}},
    {"rows_weighted", "empty", weighted_case, {0, 3, 4}},
    {"rows_weighted", "one", weighted_case, {1, 1, 1}},
    {"rows_weighted", "ragged", weighted_case, {13, 7, 5}},
    {"rows_weighted", "real", weighted_case, {2000, 96, 256}},
    {"rows_weighted", "hostile", rows_refuse, {0}},
    {"rows_weighted", "patch", weighted_case, {11, 1152, 9}},
    {"rows_weighted_bwd", "patch", weighted_case, {90, 1152, 9}},
    {"rows_weighted_bwd", "hostile", rows_refuse, {0}},
    {"rows_weighted_bwd", "empty", weighted_case, {0, 3, 4}},
    {"rows_weighted_bwd", "one", weighted_case, {1, 1, 1}},
    {"rows_weighted_bwd", "ragged", weighted_case, {13, 7, 5}},
    {"rows_weighted_bwd", "real", weighted_case, {2000, 96, 256}},
    {NULL},
};
