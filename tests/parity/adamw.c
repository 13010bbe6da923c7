/* SPDX-License-Identifier: Apache-2.0 */
/* adamw.c: cases of AdamW, with moments in acc and in codes of 8 bits, and with master weights in
 * acc and rounded to bf16.
 *
 * The formula is short: 16 eps. Codes are compared by what they stand for: the nearest of the map's
 * values, which is searched for here, or one that is nearest but for those 16 eps. A rounded weight
 * is one of the two bf16 numbers beside the expected value, and the one that the random numbers
 * choose, again but for 16 eps. */
#include <stdlib.h>

#include "common/base/philox.h"
#include "tests/parity/parity.h"

enum { CODES = 1, RANDOM = 2, NEAREST = 4, CUT = 8, SKIP = 16, LARGE = 32 };
enum { FIRST = 128, SECOND = 256 }; /* magnitudes of the two maps, with 0 */
static const double EPS = 16 * 1.2e-7;

optim_list parity_optim_list(parity *test, optim_tensor *tensors, int64_t n)
{
    optim_list list = {.n_tensors = n, .first_chunk = 3}; /* as part of a longer list */
    for (int64_t i = 0; i < n; i++) {
        tensors[i].first_chunk = list.first_chunk + list.n_chunks;
        list.n_chunks += (tensors[i].n + OPTIM_CHUNK - 1) / OPTIM_CHUNK;
    }
    for (int64_t i = 0; i < n; i++)
        list.coded |= tensors[i].m_scale || tensors[i].rounding != OPTIM_WHOLE;
    list.tensor = parity_bytes(test, tensors, (size_t)n * sizeof *tensors);
    return list;
}

/* The magnitudes that codes stand for, smallest first: 0, then eight in each octave up to 1. */
static void map_values(int count, double *out)
{
    for (int code = 0; code < count; code++) {
        const int below = count - 1 - code, octave = (below + 7) / 8;
        out[code] = code ? ldexp(1 + (octave * 8 - below) / 8.0, -octave) : 0;
    }
}

typedef struct updated {
    int64_t n;
    double decay, lr;
    tensor p, m, v, g, act;
    uint8_t *codes[2]; /* of the moments, on the device */
    float *scales[2];
    void *drawn[2], *drawn_scales[2]; /* what they held at first, on the host */
    optim_random random;
    double *wp, *wm, *wv; /* the expected values */
} updated;

static int64_t blocks_of(int64_t n)
{
    return (n + STATE_BLOCK - 1) / STATE_BLOCK;
}

/* Draws codes and scales, and puts what they stand for into `out` [n]. */
static void draw_codes(parity *test, updated *work, int which, double *out)
{
    double map[SECOND];
    uint8_t *codes = (uint8_t *)parity_zeros(test, work->n / 8 + 1);
    float *scales = (float *)parity_zeros(test, blocks_of(work->n) / 2 + 1);
    map_values(which ? SECOND : FIRST, map);
    for (int64_t i = 0; i < blocks_of(work->n); i++)
        scales[i] = (float)(i % 7 == 3 ? 0 : exp(parity_uniform(test, -12, 2)));
    for (int64_t i = 0; i < work->n; i++) {
        codes[i] = (uint8_t)parity_below(test, 256);
        double value = which ? map[codes[i]] : map[codes[i] & 127] * (codes[i] & 128 ? -1 : 1);
        out[i] = (double)(float)(value * (double)scales[i / STATE_BLOCK]);
    }
    work->drawn[which] = codes;
    work->drawn_scales[which] = scales;
    work->codes[which] = parity_bytes(test, codes, (size_t)work->n);
    work->scales[which] = parity_bytes(test, scales, (size_t)blocks_of(work->n) * sizeof *scales);
}

/* Draws a parameter and takes one step on it, as a plain loop. */
static updated adamw_loop(parity *test, const step_scalars *step, const optim_tensor *entry,
                          int64_t flags)
{
    int64_t n = entry->n;
    double lr = step->lr * entry->lr_factor;
    updated work = {.n = n, .wm = parity_zeros(test, n), .wv = parity_zeros(test, n)};
    for (int64_t i = 0; i < n; i++) {
        work.wm[i] = parity_uniform(test, -0.1, 0.1);
        work.wv[i] = parity_uniform(test, 0, 0.1);
    }
    if (flags & CODES) {
        draw_codes(test, &work, 0, work.wm);
        draw_codes(test, &work, 1, work.wv);
    }
    work.p = flags & (RANDOM | NEAREST) ? parity_tensor(test, n, 1) : parity_tensor_acc(test, n, 1);
    work.m = parity_upload_acc(test, work.wm, n);
    work.v = parity_upload_acc(test, work.wv, n);
    work.g = parity_tensor_acc(test, n, flags & LARGE ? 1e21 : 8);
    work.act = parity_tensor(test, n, 1);
    memcpy(work.wm, work.m.ref, (size_t)n * sizeof *work.wm);
    memcpy(work.wv, work.v.ref, (size_t)n * sizeof *work.wv);
    work.wp = parity_copy(test, work.p.ref, n);
    for (int64_t i = 0; i < n && !(step->skip != 0); i++) {
        double g = work.g.ref[i] * step->grad_scale;
        work.wm[i] = step->beta1 * work.m.ref[i] + (1 - step->beta1) * g;
        work.wv[i] = step->beta2 * work.v.ref[i] + (1 - step->beta2) * g * g;
        double update = work.wm[i] / step->bias1 / (sqrt(work.wv[i] / step->bias2) + step->eps);
        work.wp[i] = work.p.ref[i] - lr * (update + entry->decay * work.p.ref[i]);
    }
    return work;
}

/* Compares the codes and scales of a moment with the expected values. */
static void expect_codes(parity *test, const updated *work, int which)
{
    const double *want = which ? work->wv : work->wm;
    uint8_t *codes = (uint8_t *)parity_zeros(test, work->n / 8 + 1);
    float *scales = (float *)parity_zeros(test, blocks_of(work->n) / 2 + 1);
    double map[SECOND];
    const int count = which ? SECOND : FIRST;
    map_values(count, map);
    parity_fetch_bytes(test, codes, work->codes[which], (size_t)work->n);
    parity_fetch_bytes(test, scales, work->scales[which],
                       (size_t)blocks_of(work->n) * sizeof *scales);
    for (int64_t i = 0; i < work->n && parity_compares(test); i++) {
        const int64_t first = i / STATE_BLOCK * STATE_BLOCK;
        double most = 0, nearest = HUGE_VAL;
        for (int64_t j = first; j < first + STATE_BLOCK && j < work->n; j++)
            most = fabs(want[j]) > most ? fabs(want[j]) : most;
        if (!(fabs((double)scales[i / STATE_BLOCK] - most) <= EPS * most))
            fail_msg("%s/%s: scale of element %lld is %g, wanted %g", test->op, test->name,
                     (long long)i, (double)scales[i / STATE_BLOCK], most);
        const double share = most > 0 ? fabs(want[i]) / most : 0;
        const int code = which ? codes[i] : codes[i] & 127;
        const bool negative = !which && codes[i] & 128;
        for (int j = which && share > 0; j < count; j++)
            nearest = fmin(nearest, fabs(share - map[j]));
        if (fabs(share - map[code]) > nearest + 2 * EPS * share ||
            (which && share > 0 && code == 0) || (code && negative != (want[i] < 0)))
            fail_msg("%s/%s: moment %d, element %lld has code %d for %g of the scale", test->op,
                     test->name, which + 1, (long long)i, codes[i], want[i] / most);
    }
}

/* The random number of element i, from the definition in loss_ops.h. */
static uint32_t random_of(const optim_random *random, uint64_t step, int64_t index)
{
    uint32_t words[4];
    int64_t j = random->first + index;
    uint64_t place = (uint64_t)(random->base + j / random->run * random->stride + j % random->run);
    philox_draw(random->key[0], random->key[1], (uint32_t)(place / 8), (uint32_t)(place / 8 >> 32),
                (uint32_t)step, (uint32_t)(step >> 32), words);
    return words[place % 8 / 2] >> (place % 2 * 16) & 0xffff;
}

/* x rounded to one of the bf16 numbers beside it: the lower one if `random` of 65536 is below what
 * is left to the upper one. */
static double round_with(double x, double random)
{
    int exponent;
    frexp(x, &exponent);
    const double step = ldexp(1, exponent - 8), low = floor(fabs(x) / step);
    const double up = fabs(x) / step - low >= 1 - random / 65536;
    return copysign((low + up) * step, x);
}

static void expect_rounded(parity *test, const updated *work, const step_scalars *step,
                           int64_t flags)
{
    const double *got = parity_fetch(test, work->p);
    for (int64_t i = 0; i < work->n && parity_compares(test); i++) {
        double want[2];
        for (int j = 0; j < 2; j++) {
            const double most = fmax(fabs(work->wp[i]), fabs(work->p.ref[i]));
            const double x = work->wp[i] + (j ? EPS : -EPS) * most;
            if (step->skip != 0)
                want[j] = work->wp[i];
            else
                want[j] = round_with(x, flags & NEAREST
                                            ? 32768
                                            : random_of(&work->random, (uint64_t)step->number, i));
        }
        if (!(got[i] >= want[0] && got[i] <= want[1]))
            fail_msg("%s/%s: p[%lld] is %.9g, wanted %.9g rounded to %.9g", test->op, test->name,
                     (long long)i, got[i], work->wp[i], want[0]);
    }
}

/* What an update that changes nothing must leave: all bytes of the codes and scales. */
static void expect_kept(parity *test, const updated *work, int which)
{
    const size_t blocks = (size_t)blocks_of(work->n);
    void *codes = parity_zeros(test, work->n / 8 + 1), *scales = parity_zeros(test, work->n);
    parity_fetch_bytes(test, codes, work->codes[which], (size_t)work->n);
    parity_fetch_bytes(test, scales, work->scales[which], blocks * sizeof(float));
    assert_memory_equal(codes, work->drawn[which], (size_t)work->n);
    assert_memory_equal(scales, work->drawn_scales[which], blocks * sizeof(float));
}

/* Squares beyond float: the second moment is the largest number that a scale can hold, so that the
 * next update is 0 and not NaN. */
static void expect_finite(parity *test, const updated *work)
{
    float *scales = (float *)parity_zeros(test, work->n);
    const double *p = parity_fetch(test, work->p);
    parity_fetch_bytes(test, scales, work->scales[1], (size_t)blocks_of(work->n) * sizeof *scales);
    for (int64_t i = 0; i < blocks_of(work->n); i++)
        assert_true(scales[i] == 3.40282347e+38f);
    for (int64_t i = 0; i < work->n; i++)
        assert_true(isfinite(p[i]));
}

static void expect_all(parity *test, const updated *work, const step_scalars *step, bool copied,
                       int64_t flags)
{
    if (flags & LARGE) {
        expect_finite(test, work);
        return;
    }
    if (flags & (RANDOM | NEAREST))
        expect_rounded(test, work, step, flags);
    else
        parity_expect(test, "p", work->p, work->wp, 16);
    for (int j = 0; j < 2 && flags & CODES; j++)
        (flags & SKIP ? expect_kept : expect_codes)(test, work, j);
    if (!(flags & CODES)) {
        parity_expect(test, "m", work->m, work->wm, 16);
        parity_expect(test, "v", work->v, work->wv, 16);
    }
    if (copied)
        parity_expect(test, "p_act", work->act, step->skip != 0 ? work->act.ref : work->wp, 16);
}

/* shape: elements of two parameters, flags */
static void adamw_case(parity *test, const int64_t *shape)
{
    const int64_t flags = shape[2];
    step_scalars step = {.lr = 1e-2,
                         .beta1 = 0.9,
                         .beta2 = 0.95,
                         .eps = 1e-8,
                         .bias1 = 1 - pow(0.9, 3),
                         .bias2 = 1 - pow(0.95, 3),
                         .grad_scale = 0.125,
                         .skip = flags & SKIP ? 1 : 0,
                         .number = 4294967298}; /* beyond 32 bits */
    optim_tensor tensors[] = {{.n = shape[0], .lr_factor = 0.5, .decay = 0.1},
                              {.n = shape[1], .lr_factor = 1}};
    updated work[2];
    for (int i = 0; i < 2; i++) {
        optim_tensor *entry = &tensors[i];
        work[i] = adamw_loop(test, &step, entry, flags);
        work[i].random = (optim_random){{7, 9 + (uint32_t)i}, 512, INT64_MAX, 0, 1024};
        if (flags &
            CUT) /* columns of a cut matrix, which share no group of 8 with their neighbours */
            work[i].random = (optim_random){{7, 9}, 256, 13, 35, INT64_C(34359738368) + 5};
        entry->p = work[i].p.dev, entry->m = work[i].m.dev, entry->v = work[i].v.dev,
        entry->g = work[i].g.dev, entry->random = work[i].random;
        entry->rounding = flags & RANDOM    ? OPTIM_RANDOM
                          : flags & NEAREST ? OPTIM_NEAREST
                                            : OPTIM_WHOLE;
        if (flags & CODES) {
            entry->m = work[i].codes[0], entry->m_scale = work[i].scales[0];
            entry->v = work[i].codes[1], entry->v_scale = work[i].scales[1];
        }
        if (entry->rounding == OPTIM_WHOLE && work[i].act.dtype != work[i].p.dtype)
            entry->p_act = work[i].act.dev;
    }
    optim_list list = parity_optim_list(test, tensors, 2);
    PARITY_RUN(test,
               op_adamw(test->queue, &(adamw_args){list, parity_bytes(test, &step, sizeof step)}));
    for (int i = 0; i < 2 && !test->bench; i++)
        expect_all(test, &work[i], &step, tensors[i].p_act != NULL, flags);
}

const parity_case parity_adamw[] = {
    {"adamw", "empty", adamw_case, {0, 0, 0}},
    {"adamw", "empty codes", adamw_case, {0, 0, CODES | RANDOM}},
    {"adamw", "one", adamw_case, {1, 0, 0}},
    {"adamw", "one code", adamw_case, {1, 0, CODES | RANDOM}},
    {"adamw", "ragged", adamw_case, {1001, 16390, 0}},
    {"adamw", "ragged skip", adamw_case, {1001, 7, SKIP}},
    {"adamw", "ragged codes", adamw_case, {1003, 16643, CODES}},
    {"adamw", "ragged codes skip", adamw_case, {1003, 256, CODES | SKIP}},
    {"adamw", "ragged bf16", adamw_case, {1003, 2051, RANDOM}},
    {"adamw", "ragged bf16 nearest", adamw_case, {1003, 2051, NEAREST}},
    {"adamw", "ragged bf16 codes", adamw_case, {1003, 16643, CODES | RANDOM}},
    {"adamw", "ragged bf16 columns", adamw_case, {1003, 2051, CODES | RANDOM | CUT}},
    {"adamw", "hostile squares", adamw_case, {300, 7, CODES | LARGE}},
    {"adamw", "real", adamw_case, {1000000, 2048, 0}},
    {"adamw", "real codes", adamw_case, {1000000, 2048, CODES}},
    {"adamw", "real bf16 codes", adamw_case, {1000000, 2048, CODES | RANDOM}},
    {NULL},
};
