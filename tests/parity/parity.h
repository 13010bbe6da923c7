/* SPDX-License-Identifier: Apache-2.0 */
/* parity.h: every op against its specification, which is a plain loop in double.
 *
 * A case builds inputs, runs the op through a stream and says what must come out. Inputs are drawn
 * at random and rounded to the device's number type first, so that the op and the loop see the same
 * numbers. Outputs start as random numbers too, so that what the op must not touch is compared as
 * well. A backward needs no second loop: it is compared with central differences of the forward's
 * loop.
 *
 * Tolerances are in units of the number type's epsilon (1.2e-7 for float, 2.2e-16 for double),
 * relative to the largest expected value of the array. A bf16 array is computed in float and
 * rounded once. Each of its elements may be off by that rounding and by the tolerance in float's
 * epsilon, and the root mean square of the errors may be at most 1.1 times that of rounding the
 * loop's numbers (parity_expect), or that of the order of roundings of the published model
 * (parity_expect_order). A run on bf16 ends with each op's largest ratio (errors.c). It fails where
 * the published model gives an op an order of roundings and no case compared it.
 *
 * A parity_target says where the cases run: on the CPU's variants with 1 and 3 threads (cpu.c), on
 * a GPU (cuda.c), or on the CUDA kernels in the harness under three schedules (../simt). All runs
 * of one variant must give the bits of its first run. --bench [OP] prints times instead. */
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
    stream *queue;
    rng_key key;    /* the case's own random numbers */
    uint64_t drawn; /* how many of them were drawn */
    const char *op, *name;
    uint64_t bits; /* a hash of all outputs so far */
    bool bench;
    bool bits_only; /* a repetition: its bits alone are compared, with those of the first run */
    bool once;      /* set by a case that is not repeated: large, of kernels that others repeat */
    double best_ns; /* --bench: the fastest call */
    void **held, **dev; /* this case's arrays on the host, and its device memory */
    int n_held, n_dev;
} parity;

typedef struct parity_case {
    const char *op, *name;
    void (*run)(parity *test, const int64_t *shape);
    int64_t shape[PARITY_SHAPE];
} parity_case;

/* Each family's list ends with op NULL. */
extern const parity_case parity_adamw[], parity_dequantise[], parity_dora[], parity_gemm[],
    parity_norm[], parity_norm_rope[], parity_rope[], parity_attention[], parity_pointwise[],
    parity_rows[], parity_route[], parity_loss[], parity_peers[];

/* What a target does with an index that is out of bounds: it refuses with BAD_INPUT; it stops with
 * BAD_DEVICE and then works on; or the process loses its GPU, so that no case may try. */
enum { PARITY_REFUSES, PARITY_STOPS, PARITY_DIES };

/* A place to run cases. */
typedef struct parity_target {
    int (*variants)(void);
    int runs;
    const char *other; /* what differs between the runs of a variant, for messages */
    /* Opens the device. run is -1 for --bench. *out_ops is the table to use. */
    void (*open)(int variant, int run, device **out, const ops_table **out_ops);
    int bad_index;                 /* PARITY_REFUSES .. */
    bool small;                    /* leave the cases named "real .." to --real and --bench */
    bool (*lacks)(const char *op); /* whether the target lacks this op; NULL: it has all */
    /* Returns false to skip all cases, with the reason in status_text. NULL: the target is always
     * there. */
    bool (*present)(void);
} parity_target;
extern const parity_target parity_here;

/* --portable: a GPU is to run the portable kernels alone. Read by the target's `open`. */
extern bool parity_portable;

/* n numbers on the device and, as doubles, on the host. */
typedef struct tensor {
    void *dev;
    double *ref; /* what was uploaded */
    int64_t n;
    st_dtype dtype;
} tensor;

/* Random numbers in (-scale, scale), uniform, in the device's type of activations or of
 * accumulation. Freed with the case. */
tensor parity_tensor(parity *test, int64_t n, double scale);
tensor parity_tensor_acc(parity *test, int64_t n, double scale);
/* The given numbers, rounded to the device's type. */
tensor parity_upload(parity *test, const double *values, int64_t n);
tensor parity_upload_acc(parity *test, const double *values, int64_t n);
int32_t *parity_ints(parity *test, const int32_t *values, int64_t n);
void *parity_bytes(parity *test, const void *values, size_t bytes);
/* Arrays on the host: a copy of init, or zeros. */
double *parity_copy(parity *test, const double *init, int64_t n);
double *parity_zeros(parity *test, int64_t n);
int32_t *parity_zero_ints(parity *test, int64_t n);
double parity_uniform(parity *test, double low, double high);
int64_t parity_below(parity *test, int64_t n); /* 0 .. n-1 */

/* The device's address of element index. */
void *parity_at(tensor array, int64_t index);

/* The numbers that the device holds now, as doubles. Freed with the case. */
double *parity_fetch(parity *test, tensor array);

/* x rounded to the device's type of activations, for writing down an order of roundings. */
double parity_round(const parity *test, double x);

void parity_expect(parity *test, const char *what, tensor array, const double *want,
                   double tolerance);
/* The same for differences of larger numbers, whose errors they have: the tolerance is relative to
 * `scale`, or to the largest expected value if that is larger. */
void parity_expect_difference(parity *test, const char *what, tensor array, const double *want,
                              double tolerance, double scale);
/* `order` holds the numbers that the published model's order of bf16 roundings gives, which may
 * round more than once; for an array in the type of accumulation, the bf16 numbers that the
 * published model has there. */
void parity_expect_order(parity *test, const char *what, tensor array, const double *want,
                         const double *order, double tolerance);
/* The same, where an implementation has the one order or the other: the whole array must hold to
 * one of them. second NULL: to `order`. */
void parity_expect_either(parity *test, const char *what, tensor array, const double *want,
                          const double *order, const double *second, double tolerance);
void parity_expect_ints(parity *test, const char *what, const int32_t *dev, const int32_t *want,
                        int64_t n);

/* Copies bytes from the device, for what is not a tensor; they count among the case's bits. */
void parity_fetch_bytes(parity *test, void *to, const void *dev, size_t bytes);

/* Numbers the chunks of a list as if it were part of a longer one, and uploads it. */
optim_list parity_optim_list(parity *test, optim_tensor *tensors, int64_t n);

/* Notes (in errors.c) that an output of p's op is off by `ours` where the published order of
 * roundings is off by `order`. */
void errors_note(const parity *test, const char *what, double ours, double order);
/* Whether the published model determines an order of roundings for the op. */
bool errors_wanted(const char *op);
int64_t errors_compared(const char *op); /* how many outputs of the op were compared */
void errors_print(void);

/* Checks that `array` is base + d loss / d x (base NULL: 0), for all elements of x or a sample of
 * them. `loss` reads x. */
typedef double (*parity_loss_fn)(const void *of);
void parity_gradient(parity *test, const char *what, tensor array, const double *base, double *x,
                     parity_loss_fn loss, const void *of, double tolerance);

/* Whether outputs are compared with what the case computes for it, which takes most of the time:
 * not under --bench, and not in a repetition. */
bool parity_compares(const parity *test);

void parity_done(parity *test); /* frees everything that a case made */

/* Runs an op that must succeed. Under --bench it runs the op repeatedly for some milliseconds. */
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
