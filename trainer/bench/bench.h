/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h: measures how fast ops and whole steps are, and compares them with the most that this
 * device can do, its ceilings. These are measured in the same run: the rate of a large copy, and
 * that of one large dense product (report/speed.h). */
#ifndef TESSERA_TRAINER_BENCH_H
#define TESSERA_TRAINER_BENCH_H

#include <stdbool.h>

#include "common/conf/conf.h"
#include "trainer/model/dims/dims.h"
#include "trainer/ops/table.h"
#include "trainer/plan/rates.h"

typedef struct bench_ceilings {
    double copy;    /* bytes/s, read and written both counted */
    double product; /* FLOP/s of a square product in the type of activations */
    int64_t bytes;  /* size of the copy's source */
    int64_t side;   /* side of the product's matrices */
} bench_ceilings;

WARN_UNUSED status bench_ceilings_measure(stream *stream, bench_ceilings *out);
void bench_ceilings_print(const bench_ceilings *ceilings, FILE *to);

/* The sizes of the model and the micro-batch that ops are called with. */
typedef struct bench_sizes {
    const model_dims *dims;
    int64_t tokens, row;    /* tokens of a micro-batch, and of one row in it */
    int64_t patches, frame; /* patches of the micro-batch, and of one image */
    int64_t document;       /* tokens of a packed document */
} bench_sizes;

/* Those of the options, whose micro-batch is full of pictures as rows of VQAv2 are. out_dims stays
 * in use by *out. ST_CONFIG for a model without a vision tower or experts. */
WARN_UNUSED status bench_sizes_of(const conf *options, model_dims *out_dims, bench_sizes *out);

/* What of the ops is timed, and how. */
typedef struct bench_how {
    const char *only;               /* op names separated by commas; NULL: every op of the lists */
    double seconds;                 /* spent on each shape */
    const bench_ceilings *ceilings; /* measured before; NULL: measure them now */
} bench_how;

/* Lists of cases (cases.h), the last one NULL. */
typedef struct bench_row bench_row;
/* Times each case of the lists on the device of the options, and prints a line for each: time,
 * rates, and the share of the ceiling that limits it. ST_USAGE if how->only names none of the ops.
 * *out receives the rates that trainer plan reads: FLOPs over time of the shapes of each kind. */
WARN_UNUSED status bench_ops(const conf *options, const bench_row *const *lists,
                             const bench_how *how, rates *out, FILE *to);

/* The line y = a + b x through points by least squares. Letters: a, b the line's; x, y a point's.
 * residual: the largest distance of a point from the line, as a share of its y. A single point
 * gives the line through it and 0. */
typedef struct bench_fit {
    double a, b, residual;
} bench_fit;
bench_fit bench_fit_line(const double *x, const double *y, int count);

/* Statistics of n times; slowest and fastest are the longest and the shortest. */
typedef struct bench_spread {
    double mean, median, deviation, slowest, fastest;
    double slow; /* share of the values whose rate is under 90 % of the median's */
} bench_spread;
/* Sorts `values` in place. */
bench_spread bench_spread_of(double *values, int64_t count);

enum { BENCH_DEPTHS = 8 }; /* the most at which steps are timed */

/* What was measured at one depth, and what a projection needs of it. */
typedef struct bench_depth {
    int64_t layers;
    bench_spread step;    /* ms */
    double optimizer;     /* ms of one update of all values */
    double tokens, flops; /* per step, averaged */
} bench_depth;

/* A step of the whole model, on the line through the depths. The errors say how far the step may be
 * from it: the larger of how far the line through two of the depths alone ends from it, and what
 * the standard deviation of the steps of each depth makes of it. The latter is not divided by the
 * root of their number, because the steps of a depth share a clock and a choice of experts. A
 * single depth has no line: its error is infinite, unless it is the whole model. */
typedef struct bench_projection {
    bench_fit work, update; /* ms without the optimiser, and of it, by layers */
    double share;           /* ms of the optimiser's part of a rank */
    double step, step_error;
    double tps;
    double mfu, mfu_error; /* percent of `peak` */
} bench_projection;
/* layers: of the whole model. ranks: how many share the optimiser's work. peak: FLOP/s. */
bench_projection bench_project(const bench_depth *measured, int count, int64_t layers,
                               int64_t ranks, double peak);
/* Prints the two lines of a projection. */
void bench_project_print(const bench_projection *what, int64_t layers, int64_t ranks, double peak,
                         FILE *to);

/* How steps are timed, and projected. */
typedef struct bench_depths {
    int64_t ranks;    /* of the projection, which share the optimiser's work */
    double load;      /* the busiest expert's load over the mean; 0: whatever the router gives */
    int64_t settle;   /* steps that may be spent on setting that load, at each depth */
    int64_t document; /* tokens of a document of the text that is made; 0: whole rows */
    bool live;        /* take the rows that prepd.endpoint serves, whatever they are */
} bench_depths;

/* Times training.steps steps at each of these depths (0: all layers) and projects them to the whole
 * model, first from two depths, so that a run that is cut short has printed a projection. */
WARN_UNUSED status bench_steps(const conf *options, const int64_t *layers, int n_layers,
                               const bench_depths *how, FILE *to);

/* Rows without pictures, so that a bench reads rows the way a run does (text_rows.c). Each row is
 * full: it has documents of `document` tokens end to end (0: one document), every token but the
 * first of a document is a target, and ids are drawn at random below the special ones. The stream
 * says that a row may have patch_budget patches. If that is 0, it describes its rows exactly, as a
 * shape bucket. */

/* Writes two steps of rows of training.seq_len tokens, in documents of `document` tokens (0: whole rows), to a
 * temporary file, for a bench that was given no recording. path receives its name; the caller
 * unlinks it. */
WARN_UNUSED status text_rows_own(const conf *options, const model_dims *dims, int64_t document,
                                 char path[STATUS_PATH_MAX]);
/* Writes `rows` rows of seq_len tokens to `path`. */
WARN_UNUSED status text_rows_record(const char *path, const model_dims *dims, int64_t rows,
                                    int64_t seq_len, int64_t document, int64_t patch_budget);

#endif
