/* plan.h: the stream as a pure function: row number -> the documents in it.
 *
 * Nothing here decodes or knows of workers. An epoch's samples are permuted by a keyed permutation,
 * cut into windows of data.window, packed window by window by two budgets (tokens, patches), and
 * the rows of a window permuted again. A prefix sum of rows per window finds any row by bisection.
 * Samples the index refuses never appear. PLAN_SAMPLES: data-set order, a sample per row, refused
 * samples as empty rows, so that row number = sample position. */
#ifndef TESSERA_PREPD_PLAN_H
#define TESSERA_PREPD_PLAN_H

#include <stdio.h>

#include "common/conf/conf.h"
#include "prepd/dataset/dataset.h"
#include "prepd/plan/index.h"
#include "prepd/sample/fit.h"

typedef enum plan_kind { PLAN_PACKED, PLAN_SAMPLES } plan_kind;

/* Of how samples become rows and steps: order, packing, which rank gets what. Raised where the same
 * data, options and seed give other rows than before: a cursor of those would repeat some samples
 * and lose others. 2: rows are completed from average documents, a window's rows levelled. */
enum { PLAN_VERSION = 2 };

typedef struct planned_doc {
    int64_t sample;
    int32_t part;   /* of a split sample, else 0 */
    int32_t tokens; /* of this part, pads included */
    int32_t from;   /* the part's first token in the sample */
    int32_t whole;  /* tokens of the sample */
    int32_t patches;
    int32_t frames, frame; /* segments of the vision tower, and the patches of the largest */
    int32_t targets;       /* supervised tokens of the sample */
    const int32_t *images; /* [n_images] in the data set's image list */
    fit_grid *grids;       /* [n_images] */
    int32_t n_images;
    bool shared; /* its images are those of the document before it, sent and encoded once */
} planned_doc;

typedef struct planned_row {
    uint64_t number;
    uint64_t epoch, window; /* of the row, for the cursor and people */
    planned_doc *docs;      /* in the arena */
    int64_t n_docs;         /* 0: an empty row that completes the last step */
    int64_t tokens, patches;
    int64_t pairs_patches; /* of them, those of clips: twice the bytes */
} planned_row;

typedef struct plan plan;
typedef struct row_range row_range;

/* Borrows all; they must outlive the plan. Nothing can be asked of it before plan_prepare said that
 * it is ready. */
WARN_UNUSED status plan_begin(const conf *c, const dataset *d, const data_index *x, plan_kind kind,
                              plan **out);
/* The stream from the first row of an epoch on: for who remembers, as a cursor does, which row that
 * is; the epochs before it are then not planned again. What is remembered is believed: a false
 * number gives its walker a stream of his own and nobody else. Shared by all who remember the same;
 * given back by plan_leave. PROTOCOL: no epoch of this stream. Everywhere below NULL is the stream
 * from its beginning. */
WARN_UNUSED status plan_from(plan *p, uint64_t epoch, uint64_t row, row_range **out);
void plan_leave(plan *p, row_range **s);
uint64_t plan_first_row(const row_range *s);
/* Goes on planning until the row can be asked for, or until clock_ns() is until_ns, in pieces of a
 * few thousand samples or a window. *out_ready: epoch 0 is planned, and the row is found by
 * bisection or beyond the end. Again for a row further on; PLAN_ALL: the whole stream, of one
 * without end epoch 0. */
#define PLAN_ALL UINT64_MAX
WARN_UNUSED status plan_prepare(plan *p, row_range *s, uint64_t row, int64_t until_ns,
                                bool *out_ready);
/* Begun, and all of it ready. */
WARN_UNUSED status plan_new(const conf *c, const dataset *d, const data_index *x, plan_kind kind,
                            plan **out);
/* How many walk over its rows: it keeps two windows for each. One if nobody said. */
void plan_walkers(plan *p, int n);
void plan_free(plan **p);

/* ST_END past the last row. Prepares the row where nobody did. No row before the range. */
WARN_UNUSED status plan_row(plan *p, row_range *s, uint64_t number, arena *a, planned_row *out);
/* The epoch of a row that was asked for, and that epoch's first row. */
uint64_t plan_epoch_of(const plan *p, const row_range *s, uint64_t row, uint64_t *out_first);
bool plan_endless(const plan *p); /* training.epochs is 0 */
/* Of the whole stream; UINT64_MAX if it has no end, or while not all of it is planned. */
uint64_t plan_rows(const plan *p, const row_range *s);
uint64_t plan_epoch_rows(const plan *p); /* of epoch 0 */
int64_t plan_token_budget(const plan *p);
int64_t plan_patch_budget(const plan *p);
int64_t plan_patches_of(const conf *c); /* that budget, of a plan with these options */
/* Why sample i is not in the stream: the adapter's, the index's or the plan's cause; NULL if it is.
 */
const char *plan_cause(const plan *p, int64_t i);
int64_t plan_refused(const plan *p);

/* A shape bucket: capacities of a captured graph (design section 3); at most 8, ascending: each
 * holds what the one before it holds. */
typedef struct shape_bucket {
    int64_t tokens, patches, targets;
    int64_t documents, longest;    /* segments of text, tokens of the longest */
    int64_t images, frames, frame; /* frames: segments of vision; frame: patches of the largest */
    int64_t rows;                  /* of epoch 0 that it is the smallest fit for */
    int64_t row_tokens, row_patches, row_targets; /* in those rows */
} shape_bucket;
enum { MAX_BUCKETS = 8 };
/* The last holds any row of any epoch. None for PLAN_SAMPLES. */
const shape_bucket *plan_buckets(const plan *p, int *out_n);

/* For people: rows, fill beside that of greedy packing, resolution classes, buckets, refused
 * samples and the balance of a step over ranks, of epoch 0. Nothing for PLAN_SAMPLES but its
 * counts. */
WARN_UNUSED status plan_report(plan *p, FILE *to);

#endif
