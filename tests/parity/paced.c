/* paced.c: cases of copies and sums that run at the pace of a link (only the results;
 * tests/simt/test_paced.c tests the pace). Copies are exact; a sum of P pieces is off by P
 * roundings. */
#include "tests/parity/parity.h"

enum { WAIT_NS = 3000, SPAN_NS = 20000, BLOCKS = 3 };

/* shape: elements of run 0, which is copied onto itself; of run 1; of run 1's source (0: zeros are
 * written); acc */
static void copy_case(parity *test, const int64_t *shape)
{
    tensor (*make)(parity *, int64_t, double) = shape[3] ? parity_tensor_acc : parity_tensor;
    tensor kept = make(test, shape[0], 1), y = make(test, shape[1], 1), x = make(test, shape[2], 1);
    const int64_t size = (int64_t)st_dtype_size(y.dtype);
    double *want = parity_zeros(test, shape[1]);
    for (int64_t i = 0; i < shape[1]; i++)
        want[i] = shape[2] > 0 ? x.ref[i % shape[2]] : 0;
    const paced_copy_args args = {
        .pace = {WAIT_NS, SPAN_NS, BLOCKS},
        .n = 2,
        .run = {{kept.dev, kept.dev, shape[0] * size, shape[0] * size},
                {y.dev, shape[2] > 0 ? x.dev : NULL, shape[1] * size, shape[2] * size}}};
    PARITY_RUN(test, op_paced_copy(test->queue, &args));
    parity_expect(test, "y", y, want, 0);
    parity_expect(test, "kept", kept, kept.ref, 0);
}

/* As many runs as a call can take, of different lengths, each to a place of its own. */
static void runs_case(parity *test, const int64_t *shape)
{
    const int64_t n = shape[0] * PACED_RUNS * (PACED_RUNS + 1) / 2;
    tensor x = parity_tensor(test, n, 1), y = parity_tensor(test, n + PACED_RUNS, 1);
    const int64_t size = (int64_t)st_dtype_size(y.dtype);
    double *want = parity_copy(test, y.ref, y.n); /* one element between two runs stays */
    paced_copy_args args = {.pace = {0, SPAN_NS, BLOCKS}, .n = PACED_RUNS};
    for (int64_t turn = 0, from = 0, to = 0; turn < PACED_RUNS; turn++) {
        const int64_t length = (turn + 1) * shape[0];
        args.run[turn] =
            (paced_run){parity_at(y, to), parity_at(x, from), length * size, length * size};
        for (int64_t i = 0; i < length; i++)
            want[to + i] = x.ref[from + i];
        from += length;
        to += length + 1;
    }
    PARITY_RUN(test, op_paced_copy(test->queue, &args));
    parity_expect(test, "y", y, want, 0);
}

/* shape: elements, pieces, acc, which piece y itself is (-1: none) */
static void sum_case(parity *test, const int64_t *shape)
{
    const int64_t n = shape[0], pieces = shape[1];
    tensor (*make)(parity *, int64_t, double) = shape[2] ? parity_tensor_acc : parity_tensor;
    tensor x = make(test, n * pieces, 1), y = make(test, n, 1);
    double *want = shape[3] < 0 ? parity_zeros(test, n) : parity_copy(test, x.ref, x.n);
    double *out = shape[3] < 0 ? want : want + shape[3] * n;
    for (int64_t i = 0; i < n; i++) {
        out[i] = 0;
        for (int64_t piece = 0; piece < pieces; piece++)
            out[i] += x.ref[piece * n + i];
    }
    const paced_sum_args args = {.pace = {WAIT_NS, SPAN_NS, BLOCKS},
                                 .n = n,
                                 .pieces = (int32_t)pieces,
                                 .acc = shape[2],
                                 .x = x.dev,
                                 .y = shape[3] < 0 ? y.dev : parity_at(x, shape[3] * n)};
    PARITY_RUN(test, op_paced_sum(test->queue, &args));
    if (!test->bench) /* a timed op runs repeatedly and keeps adding */
        parity_expect(test, "y", shape[3] < 0 ? y : x, want, (double)pieces);
}

const parity_case parity_paced[] = {
    {"paced_copy", "empty", copy_case, {0, 0, 0}},
    {"paced_copy", "one", copy_case, {1, 1, 1}},
    {"paced_copy", "zeros", copy_case, {16, 4096, 0}},
    {"paced_copy", "around and around", copy_case, {1024, 80000, 264, 1}},
    {"paced_copy", "by fours", copy_case, {129, 903, 129, 1}},
    {"paced_copy", "ragged", copy_case, {7, 70001, 333}},
    {"paced_copy", "chunks", copy_case, {70000, 200000, 65536 + 8}},
    {"paced_copy", "longer source", copy_case, {8, 4096, 8192}},
    {"paced_copy", "runs", runs_case, {64}},
    {"paced_copy", "ragged runs", runs_case, {37}},
    {"paced_copy", "real", copy_case, {8, 5242880, 786432}},
    {"paced_sum", "empty", sum_case, {0, 8, 1, -1}},
    {"paced_sum", "one", sum_case, {1, 1, 1, -1}},
    {"paced_sum", "ragged", sum_case, {4099, 3, 1, -1}},
    {"paced_sum", "in place", sum_case, {36864, 8, 1, 2}},
    {"paced_sum", "act", sum_case, {8192, 4, 0, -1}},
    {"paced_sum", "act, ragged, in place", sum_case, {1001, 5, 0, 4}},
    {"paced_sum", "real", sum_case, {786432, 8, 1, -1}},
    {NULL},
};
