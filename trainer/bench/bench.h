/* bench.h: how fast ops and whole steps are here, beside what this device can do at all.
 *
 * Ceilings are measured in the same run: a large copy, and one large dense product (speed.h). */
#ifndef TESSERA_TRAINER_BENCH_H
#define TESSERA_TRAINER_BENCH_H

#include "common/conf/conf.h"
#include "trainer/model/dims.h"
#include "trainer/ops/table.h"
#include "trainer/plan/rates.h"

typedef struct bench_ceilings {
    double copy;    /* bytes/s, read and written both counted */
    double product; /* FLOP/s of a square product in act */
    int64_t bytes;  /* of the copy's source */
    int64_t side;   /* of the product */
} bench_ceilings;

WARN_UNUSED status bench_ceilings_measure(stream *s, bench_ceilings *out);
void bench_ceilings_print(const bench_ceilings *c, FILE *to);

/* Rows per expert, `slots` in all, heaviest first, so that the largest is about `skew` times the
 * mean: loads fall off geometrically. offset [experts + 1]. */
void bench_loads(int64_t experts, int64_t slots, double skew, int32_t *offset);

/* What the ops are called with. */
typedef struct bench_sizes {
    const model_dims *d;
    int64_t tokens, row;    /* of a micro-batch, of one row in it */
    int64_t patches, frame; /* patches in all, and of one image */
    int64_t document;       /* tokens of a packed document */
} bench_sizes;

/* Prints a line per op and shape; only: one op, or NULL. ST_USAGE for an unknown one. out: what
 * trainer plan takes of it, FLOPs over time of the shapes of a kind. */
WARN_UNUSED status bench_ops(stream *s, const bench_sizes *z, const bench_ceilings *c,
                             const char *only, double limit_s, rates *out, FILE *to);

/* The same lines without a device, in bf16: GB, TFLOP, which ceiling, the least ms that it allows.
 */
WARN_UNUSED status bench_ops_counted(const bench_sizes *z, const bench_ceilings *c, FILE *to);

/* y = a + b x by least squares; residual: the largest distance of a point from the line, as a share
 * of its y. One point: the line through it and 0. */
typedef struct bench_fit {
    double a, b, residual;
} bench_fit;
bench_fit bench_fit_line(const double *x, const double *y, int n);

typedef struct bench_spread {
    double mean, median, deviation, slowest, fastest;
    double slow; /* share of the values whose rate is under 90 % of the median's */
} bench_spread;
/* Sorts values. */
bench_spread bench_spread_of(double *values, int64_t n);

/* Steps at each of these depths (0: the model's own), and the projection to the whole model. load:
 * the busiest expert's over the mean; 0: as the router comes. live: rows of prepd.endpoint,
 * whatever they are. */
WARN_UNUSED status bench_steps(const conf *c, const int64_t *layers, int n_layers, int64_t ranks,
                               double load, bool live, FILE *to);

/* What a run takes of its device's memory, each part beside its plan (plan/memory.h,
 * plan/memory_gpu.h): training.steps steps at this depth. Fails for nothing that it finds. */
WARN_UNUSED status bench_device_memory(const conf *c, int64_t layers, FILE *to);

#endif
