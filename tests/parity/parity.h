/* parity.h: every op against its specification, a plain loop in double.
 *
 * A case builds inputs, runs the op through a stream and says what must have come out. Inputs are
 * drawn at random and rounded to the device's number type first, so that op and loop see the same
 * numbers. Outputs start from random numbers as well: what the op must not touch is compared too.
 * A backward has no second loop: it is compared with central differences of the forward's loop.
 *
 * Tolerances are given in units of the number type's epsilon (1.2e-7 float, 2.2e-16 double),
 * relative to the largest expected value of the array.
 *
 * The runner repeats each case on each compiled variant of the ops and with 1 and 3 threads; the
 * bits of one variant must not depend on the threads. --bench [OP] prints times instead. */
#ifndef TESSERA_TESTS_PARITY_H
#define TESSERA_TESTS_PARITY_H

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "common/clock.h"
#include "common/rng.h"
#include "tests/harness.h"
#include "trainer/ops/table.h"

enum { PARITY_SHAPE = 8 };

typedef struct parity {
    stream *s;
    rng_key key;    /* the case's own random numbers */
    uint64_t drawn; /* how many of them */
    const char *op, *name;
    uint64_t bits; /* of all outputs so far */
    bool bench;
    bool bits_only; /* a repetition: leave out the differences, whose work is long */
    double best_ns; /* bench: fastest call */
    void **held;    /* device memory and host arrays of this case */
    int n_held;
} parity;

typedef struct parity_case {
    const char *op, *name;
    void (*run)(parity *p, const int64_t *shape);
    int64_t shape[PARITY_SHAPE];
} parity_case;

/* Each family's list ends with op NULL. */
extern const parity_case parity_gemm[], parity_norm[], parity_rope[], parity_attention[],
    parity_pointwise[], parity_rows[], parity_route[], parity_loss[];

/* n numbers on the device and, as doubles, here. */
typedef struct tensor {
    void *dev;
    double *ref; /* what was uploaded */
    int64_t n;
} tensor;

/* Uniform in (-scale, scale). Freed with the case. */
tensor parity_tensor(parity *p, int64_t n, double scale);
/* The given numbers. */
tensor parity_upload(parity *p, const double *values, int64_t n);
int32_t *parity_ints(parity *p, const int32_t *values, int64_t n);
void *parity_bytes(parity *p, const void *values, size_t bytes);
/* Host arrays: a copy of init, or zeros. */
double *parity_copy(parity *p, const double *init, int64_t n);
double *parity_zeros(parity *p, int64_t n);
int32_t *parity_zero_ints(parity *p, int64_t n);
double parity_uniform(parity *p, double low, double high);
int64_t parity_below(parity *p, int64_t n); /* 0 .. n-1 */

/* The device's address of element i. */
void *parity_at(tensor t, int64_t i);

/* What the device holds now, as doubles. */
double *parity_fetch(parity *p, tensor t);

void parity_expect(parity *p, const char *what, tensor t, const double *want, double tolerance);
void parity_expect_ints(parity *p, const char *what, const int32_t *dev, const int32_t *want,
                        int64_t n);
/* t must be base + d loss / d x (base NULL: 0), for all of x or a sample of it. loss reads x. */
typedef double (*parity_loss_fn)(const void *of);
void parity_gradient(parity *p, const char *what, tensor t, const double *base, double *x,
                     parity_loss_fn loss, const void *of, double tolerance);

/* Runs an op that must succeed; under --bench again and again for some milliseconds. */
#define PARITY_RUN(p, call)                                                                        \
    do {                                                                                           \
        assert_ok(call);                                                                           \
        int64_t end_ = clock_ns() + 30000000;                                                      \
        for (int n_ = 0; (p)->bench && (n_ < 12 || clock_ns() < end_); n_++) {                     \
            int64_t start_ = clock_ns();                                                           \
            assert_ok(call);                                                                       \
            double ns_ = (double)(clock_ns() - start_);                                            \
            (p)->best_ns = (p)->best_ns == 0 || ns_ < (p)->best_ns ? ns_ : (p)->best_ns;           \
        }                                                                                          \
    } while (0)

#endif
