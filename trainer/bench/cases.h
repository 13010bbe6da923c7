/* SPDX-License-Identifier: Apache-2.0 */
/* cases.h: cases of ops to time. A case is one call of an op at a real shape: its arguments, and
 * how many bytes and FLOPs its contract requires. trainer/bench has those whose rates trainer plan
 * reads; tests/bench/ops has one for every other op. */
#ifndef TESSERA_TRAINER_BENCH_CASES_H
#define TESSERA_TRAINER_BENCH_CASES_H

#include "trainer/bench/bench.h"

typedef enum bench_op {
#define OP(name) BENCH_##name,
#include "trainer/ops/ops.def"
    BENCH_OPS
} bench_op;

typedef union bench_args {
#define OP(name) name##_args name;
#include "trainer/ops/ops.def"
} bench_args;

enum { BENCH_ARRAYS = 16 };

typedef struct bench_case {
    stream *queue;
    const bench_sizes *sizes;
    bench_args args;
    double bytes, flops; /* with each input read once and each output written once */
    bool counted;        /* only bytes and FLOPs are wanted, so no arrays are made */
    void *held[BENCH_ARRAYS];
    int n_held;
    status st; /* the error of the first array that could not be made; later arrays are NULL */
} bench_case;

struct bench_row {
    bench_op op;
    const char *op_name, *shape;
    void (*make)(bench_case *bench);
};

/* A row of the tables below. */
/* clang-format off */
#define BENCH_ROW(op, shape, make) {BENCH_##op, #op, shape, make}
/* clang-format on */

/* Products and attention; the list ends with op_name NULL. */
extern const bench_row bench_products[];

/* Deals `slots` rows to experts so that the first has about `skew` times the mean and the others
 * fall off geometrically. offset [experts + 1]: expert e has rows offset[e] to offset[e + 1]. */
void bench_loads(int64_t experts, int64_t slots, double skew, int32_t *offset);

/* A grouped product over the experts' rows, the busiest of which has `skew` times the mean. mode:
 * GROUPED_FWD ..; wide: the product of gate and up, otherwise that of down. The gated one is that of
 * the model's forward pass, which applies SwiGLU to its result; its skew is 3. */
void bench_grouped(bench_case *bench, int mode, bool wide, double skew);
void bench_grouped_gated(bench_case *bench);

/* Device arrays of the case, `count` elements of the type of activations or of sums, filled with
 * random numbers. All arrays belong to the case; NULL after an error, which is in bench->st. */
void *bench_act(bench_case *bench, int64_t count);
void *bench_acc(bench_case *bench, int64_t count);
void *bench_raw(bench_case *bench, int64_t bytes); /* zeroed */
void *bench_upload(bench_case *bench, const void *host, size_t bytes);
/* count integers: value(sizes, index), or those of `host`. */
int32_t *bench_ints(bench_case *bench, int64_t count,
                    int32_t (*value)(const bench_sizes *sizes, int64_t index));
int32_t *bench_ints_of(bench_case *bench, const int32_t *host, int64_t count);

/* Bytes of one element of the type of activations, and of that of sums. */
double bench_act_bytes(const bench_case *bench);
double bench_acc_bytes(const bench_case *bench);
/* Bytes of so many elements of these types. */
double count_act_bytes(const bench_case *bench, double elements);
double count_acc_bytes(const bench_case *bench, double elements);

#endif
