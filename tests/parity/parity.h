/* parity.h: every op against its specification, a plain loop in double.
 *
 * A case builds inputs, runs the op through a stream and says what must have come out. Inputs are
 * drawn at random and rounded to the device's number type first, so that op and loop see the same
 * numbers. Outputs start from random numbers as well: what the op must not touch is compared too.
 * A backward has no second loop: it is compared with central differences of the forward's loop.
 *
 * Tolerances are given in units of the number type's epsilon (1.2e-7 float, 2.2e-16 double),
 * relative to the largest expected value of the array. A bf16 array is computed in float and
 * rounded once: each element may be off by that rounding and the tolerance in float's epsilon, and
 * the root mean square of the errors is at most 1.1 times that of rounding the loop's numbers
 * (parity_expect), or of the order of roundings that the published model has (parity_expect_order).
 * A run on bf16 ends with the largest share of each op (errors.c), and fails where an op that the
 * specification has an order for (section 4.7) was held against none.
 *
 * Where the cases run is a parity_target: the CPU's variants with 1 and 3 threads (cpu.c), or the
 * CUDA kernels in the harness under three schedules (../simt). The bits of one variant must be
 * those of its first run in all its runs. --bench [OP] prints times instead. */
#ifndef TESSERA_TESTS_PARITY_H
#define TESSERA_TESTS_PARITY_H

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
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
    bool bits_only;     /* a repetition: leave out the differences, whose work is long */
    double best_ns;     /* bench: fastest call */
    void **held, **dev; /* host arrays and device memory of this case */
    int n_held, n_dev;
} parity;

typedef struct parity_case {
    const char *op, *name;
    void (*run)(parity *p, const int64_t *shape);
    int64_t shape[PARITY_SHAPE];
} parity_case;

/* Each family's list ends with op NULL. */
extern const parity_case parity_gemm[], parity_norm[], parity_norm_rope[], parity_rope[],
    parity_attention[], parity_pointwise[], parity_rows[], parity_route[], parity_loss[],
    parity_paced[], parity_peers[];

/* What an op answers to an index that is out of bounds: BAD_INPUT; BAD_DEVICE, and all goes on; or
 * the GPU is lost to the process, so that no case may try. */
enum { PARITY_REFUSES, PARITY_STOPS, PARITY_DIES };

/* A place to run cases. */
typedef struct parity_target {
    int (*variants)(void);
    int runs;
    const char *other; /* what differs between the runs of a variant, for the message */
    /* run -1: for --bench. out_ops: the table to use. */
    void (*open)(int variant, int run, device **out, const ops_table **out_ops);
    int bad_index; /* PARITY_REFUSES .. */
    bool small;    /* leave out the cases named "real ..", whose sizes are for times */
    bool (*lacks)(const char *op); /* ops that this target has not, by name; NULL: none */
    bool (*present)(void);         /* false: skipped, status_text says why; NULL: always there */
} parity_target;
extern const parity_target parity_here;

/* n numbers on the device and, as doubles, here. */
typedef struct tensor {
    void *dev;
    double *ref; /* what was uploaded */
    int64_t n;
    st_dtype dtype;
} tensor;

/* Uniform in (-scale, scale), in the device's act or acc. Freed with the case. */
tensor parity_tensor(parity *p, int64_t n, double scale);
tensor parity_tensor_acc(parity *p, int64_t n, double scale);
/* The given numbers. */
tensor parity_upload(parity *p, const double *values, int64_t n);
tensor parity_upload_acc(parity *p, const double *values, int64_t n);
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

/* x in the device's act; to write down an order of roundings. */
double parity_round(const parity *p, double x);

void parity_expect(parity *p, const char *what, tensor t, const double *want, double tolerance);
/* order: the numbers of the published model's bf16 order, which may round more than once; of an
 * array in acc, what the published model has in bf16 there. */
void parity_expect_order(parity *p, const char *what, tensor t, const double *want,
                         const double *order, double tolerance);
void parity_expect_ints(parity *p, const char *what, const int32_t *dev, const int32_t *want,
                        int64_t n);

/* errors.c: an output of p's op is off by `ours` where the order of roundings is by `order`. */
void errors_note(const parity *p, const char *what, double ours, double order);
bool errors_wanted(const char *op);      /* the specification's table has a row for it */
int64_t errors_compared(const char *op); /* how many outputs were compared */
void errors_print(void);

/* t must be base + d loss / d x (base NULL: 0), for all of x or a sample of it. loss reads x. */
typedef double (*parity_loss_fn)(const void *of);
void parity_gradient(parity *p, const char *what, tensor t, const double *base, double *x,
                     parity_loss_fn loss, const void *of, double tolerance);

void parity_done(parity *p); /* frees all of a case */

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
