/* cases.h: one call of an op at a real shape: its arguments, and what it must move and compute by
 * its contract. Inside trainer/bench. */
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
    stream *s;
    const bench_sizes *z;
    bench_args a;
    double bytes, flops; /* each input read once, each output written once */
    bool counted;        /* only these two are wanted: arrays are not made */
    void *held[BENCH_ARRAYS];
    int n_held;
    status st; /* of the first array that could not be made; those after it are NULL */
} bench_case;

typedef struct bench_row {
    bench_op op;
    const char *op_name, *shape;
    void (*make)(bench_case *c);
} bench_row;

/* Ends with op_name NULL. */
extern const bench_row bench_products[], bench_memory[], bench_routing[];

/* Device arrays of the case, filled with random numbers. */
void *bench_act(bench_case *c, int64_t n);
void *bench_acc(bench_case *c, int64_t n);
void *bench_raw(bench_case *c, int64_t bytes); /* zeroed */
void *bench_upload(bench_case *c, const void *host, size_t bytes);
/* value(i) of n */
int32_t *bench_ints(bench_case *c, int64_t n, int32_t (*value)(const bench_sizes *z, int64_t i));
int32_t *bench_ints_of(bench_case *c, const int32_t *host, int64_t n);

/* Bytes of one act and of one acc. */
double bench_act_bytes(const bench_case *c);
double bench_acc_bytes(const bench_case *c);

#endif
