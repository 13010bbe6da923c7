/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h: the stream as a pure function from a row's number to the documents in that row.
 *
 * A plan decodes nothing and knows nothing of workers; its input is the index (index.h), which says
 * of each sample how many tokens and patches it has. The units of an epoch (documents, or all
 * questions on one picture) are permuted by a keyed permutation and cut into windows of
 * data.window units. Each window is packed under two budgets, tokens and patches per row, and the
 * rows of a window are permuted again. A prefix sum of the rows per window finds any row by
 * bisection. Samples that the index refuses never appear.
 *
 * How to use it: plan_begin, then plan_prepare until it says that the plan is ready (or plan_new
 * for both at once), then plan_row for one row after the other. Planning happens in one thread and
 * in slices, so that a daemon can answer its peers in between. plan_free releases everything. */
#ifndef TESSERA_PREPD_PLAN_H
#define TESSERA_PREPD_PLAN_H

#include <stdio.h>

#include "common/conf/conf.h"
#include "prepd/dataset/dataset.h"
#include "prepd/plan/index.h"
#include "prepd/sample/fit.h"

/* PLAN_PACKED is the stream of training and evaluation. PLAN_SAMPLES has one sample per row, in the
 * order of the data set, with refused samples as empty rows, so that a row's number is a sample's.
 */
typedef enum plan_kind { PLAN_PACKED, PLAN_SAMPLES, PLAN_KINDS } plan_kind;

/* The version of the rules by which samples become rows and steps: order, packing, and which rank
 * gets which row. Raise it whenever the same data, options and seed would give other rows than
 * before: a cursor from an older version would then repeat some samples and lose others, so it is
 * refused.
 *
 * Version 2 completes rows from average documents and levels the rows of a window by their tokens.
 * Version 3 is for streams that join samples to units (data.group shared_image and shared_prefix):
 * it splits large units and makes the rows of a window alike in predicted cost. Other streams
 * still have version 2. */
enum { PLAN_ALONE_VERSION = 2, PLAN_VERSION = 3 };

/* The version that a plan with these options has. */
int plan_version(const conf *options);

/* One document of a row. Pointers are into the arena given to plan_row or into the data set.
 *
 * Samples that share their beginning (data.group shared_prefix) are a prefix and its branches,
 * which follow it directly. The prefix is no sample: it has the images, grids and patches, no
 * targets, part -1, and `sample` and `whole` of its first branch. A branch has no images here; its
 * tokens begin at `from` of its sample, which is where the prefix ends. */
typedef struct planned_doc {
    int64_t sample;
    int32_t part;   /* which part of a text that was split, from 0; 0 for a whole sample; -1 for a
                     * prefix */
    int32_t tokens; /* of this part, image pads included */
    int32_t from;   /* the part's first token, counted in the sample */
    int32_t whole;  /* tokens of the whole sample */
    int32_t patches;
    int32_t frames, frame; /* segments of the vision tower; patches of the largest of them */
    int32_t targets;       /* supervised tokens of the whole sample */
    const int32_t *images; /* [n_images] positions in the data set's list of images */
    fit_grid *grids;       /* [n_images] what each image becomes */
    int32_t n_images;
    bool shared; /* shows the images of the document before it, which are sent and encoded once */
    int32_t prefix; /* of a prefix: how many branches follow it, two or more; otherwise 0 */
    int32_t before; /* of a branch: tokens of the prefix before it; otherwise 0 */
} planned_doc;

typedef struct planned_row {
    uint64_t number;
    uint64_t epoch, window; /* where the row lies; for the cursor and for messages */
    planned_doc *docs;      /* [n_docs] in the arena */
    int64_t n_docs;         /* 0: an empty row, which completes the last step of the stream */
    int64_t tokens, patches;
    int64_t pairs_patches; /* how many of the patches are from clips, which take twice the bytes */
} planned_row;

typedef struct plan plan;
typedef struct row_range row_range;

/* Starts a plan. It borrows the options, the data set and the index, which must outlive it and must
 * describe the same samples (BAD_INPUT otherwise). Nothing else may be called before plan_prepare
 * has said that the plan is ready. */
WARN_UNUSED status plan_begin(const conf *options, const dataset *data, const data_index *index,
                              plan_kind kind, plan **out);

/* The stream from the first row of `epoch` on, for a consumer that remembers, as a cursor does,
 * that this row has the number `row`: the epochs before it then need not be planned again. The
 * number is believed. A wrong one gives its own consumer a shifted stream and harms no other.
 * Consumers that remember the same share one range; each gives it back with plan_leave. Fails with
 * PROTOCOL if the stream cannot have such an epoch. Every function below takes NULL for the stream
 * from its start. */
WARN_UNUSED status plan_from(plan *plan, uint64_t epoch, uint64_t row, row_range **out);
void plan_leave(plan *plan, row_range **range);
uint64_t plan_first_row(const row_range *range);

/* Continues planning until `row` can be asked for, by at most *inout_pieces pieces of work, each a
 * few thousand samples or one window, and takes those that it did from the number. *out_ready is
 * true once epoch 0 is planned (its shape buckets and row count are wanted first) and `row` either
 * has a known place or lies beyond the end. Call it again for a row further on. PLAN_ALL asks for
 * the whole stream, and for epoch 0 of a stream without end. */
#define PLAN_ALL UINT64_MAX
WARN_UNUSED status plan_prepare(plan *plan, row_range *range, uint64_t row, int64_t *inout_pieces,
                                bool *out_ready);
/* plan_begin and then plan_prepare of the whole stream. */
WARN_UNUSED status plan_new(const conf *options, const dataset *data, const data_index *index,
                            plan_kind kind, plan **out);
/* Says how many consumers walk over the rows of this plan; the plan caches two windows for each.
 * It is one until this is called. */
void plan_walkers(plan *plan, int n_walkers);
void plan_free(plan **plan);

/* Fills *out with row `number`, whose documents live in `memory`; plans as far as needed first.
 * Fails with ST_END past the last row. The row must not lie before the range. */
WARN_UNUSED status plan_row(plan *plan, row_range *range, uint64_t number, arena *memory,
                            planned_row *out);
/* The epoch of a row that was asked for before; *out_first is the first row of that epoch. */
uint64_t plan_epoch_of(const plan *plan, const row_range *range, uint64_t row, uint64_t *out_first);
bool plan_endless(const plan *plan); /* training.epochs is 0 */
/* Rows of the whole stream, empty ones included;
 * UINT64_MAX if it has no end or is not all planned. */
uint64_t plan_rows(const plan *plan, const row_range *range);
uint64_t plan_epoch_rows(const plan *plan); /* of epoch 0 */
/* The most tokens and patches that a row may have. */
int64_t plan_token_budget(const plan *plan);
int64_t plan_patch_budget(const plan *plan);
int64_t
plan_patches_of(const conf *options); /* the patch budget that a plan with these options has */
/* Why sample i is not in the stream, in the words of the adapter, the index or the plan; NULL if
 * the sample is in the stream. The text lives as long as the plan. */
const char *plan_cause(const plan *plan, int64_t sample);
int64_t plan_refused(const plan *plan); /* how many samples have such a cause */

/* A shape bucket: the capacities that a captured graph of the trainer is made for. Rows are padded
 * up to the smallest bucket that holds them, so a few graphs serve all rows. There are at most
 * MAX_BUCKETS, in rising order: each holds everything that the one before it holds. */
typedef struct shape_bucket {
    int64_t tokens, patches, targets;
    int64_t documents, longest;    /* documents of a row; tokens of the longest */
    int64_t images, frames, frame; /* frames: segments of vision; frame: patches of the largest */
    int64_t rows;                  /* rows of epoch 0 for which this is the smallest that fits */
    int64_t row_tokens, row_patches, row_targets; /* what those rows hold together */
} shape_bucket;
enum { MAX_BUCKETS = 8 };
/* [*out_n], owned by the plan. The last one holds any row of any epoch. None for PLAN_SAMPLES. */
const shape_bucket *plan_buckets(const plan *plan, int *out_n);

/* Writes what `prepd plan` prints about epoch 0: rows, their fill beside that of greedy packing,
 * shape buckets, refused samples, and how evenly a step's rows load the ranks.
 * Of PLAN_SAMPLES it writes the counts alone. */
WARN_UNUSED status plan_report(plan *plan, FILE *to);

#endif
