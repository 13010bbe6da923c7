/* SPDX-License-Identifier: Apache-2.0 */
/* planner.h: what the files of a plan share, and no one else includes.
 *
 * A plan is made in stages (plan_stage): every sample is measured and becomes a unit (units.c),
 * units of one picture are joined where that is asked for, the units of each source are given an
 * order of their own (order.h), and then windows are planned one after the other (window.c)
 * while a row_range counts their rows (row_range.c). Only the number of rows of each window is
 * kept; the rows themselves are planned again when they are asked for, and a few windows are
 * cached. */
#ifndef TESSERA_PREPD_PLAN_PLANNER_H
#define TESSERA_PREPD_PLAN_PLANNER_H

#include "prepd/dataset/tables.h"
#include "prepd/plan/order.h"
#include "prepd/plan/pack.h"
#include "prepd/plan/plan.h"
#include "prepd/sample/clip.h"

/* What a row measures, for shape buckets and the report. */
typedef struct row_stat {
    int64_t tokens, patches, targets, documents, longest, images, frames, frame;
    int64_t visual;   /* visual tokens; those of a shared image count in every document */
    int64_t squares;  /* as in row_measure (proto/row/assign.h): the cost of attention */
    int64_t prefixes; /* how many of the documents are prefixes, and so no samples */
} row_stat;

/* The pictures of a resolution class have areas within one octave of patches and are all wide, all
 * square or all tall, so they give the vision tower similar shapes. The last class is for texts. */
enum { PLAN_CLASS_AREAS = 24, PLAN_CLASS_ASPECTS = 3 };
enum { PLAN_CLASSES = PLAN_CLASS_AREAS * PLAN_CLASS_ASPECTS + 1 };

/* What is permuted and packed as a whole: a document, several that share their images, or a prefix
 * and its branches. */
typedef struct plan_unit {
    int64_t first; /* its first document, in plan.docs */
    int32_t n_docs, tokens, patches, targets, images, frames, frame;
    int32_t class; /* of its first picture, below PLAN_CLASSES */
} plan_unit;

typedef struct unit_doc {
    int64_t sample;
    int32_t part, tokens; /* which part of a split text, -1 for a prefix; the document's tokens */
} unit_doc;

/* A planned window: row k of it holds items[first[k]] to items[first[k + 1] - 1]. */
typedef struct window_plan {
    uint64_t global; /* epoch * n_windows + window */
    bool valid;
    uint64_t used; /* plan.clock when it was last asked for; the oldest is dropped first */
    int64_t n_rows;
    int64_t *first; /* [n_rows + 1] */
    int64_t *items; /* positions in plan.units */
    int64_t items_capacity, first_capacity;
} window_plan;

/* Windows cached per consumer. Two, because a step may have rows on both sides of a border between
 * windows. */
enum { WINDOWS_EACH = 2 };

/* How far a plan is prepared. The results of a later stage do not exist before it. */
typedef enum plan_stage {
    STAGE_MEASURE, /* every sample is measured and becomes one unit or several */
    STAGE_JOIN,    /* units that share a picture or a prefix become one (data.group) */
    STAGE_LANES,   /* the units of each source get their order */
    STAGE_WINDOWS, /* windows are planned, one after the other */
} plan_stage;

typedef struct grouping grouping;   /* state of STAGE_JOIN for shared_image; units.c */
typedef struct prefixing prefixing; /* and for shared_prefix; prefix_units.c */

/* The stream from the first row of one epoch on. */
struct row_range {
    uint64_t epoch; /* the epoch it begins with */
    /* first_row[k] is the stream row with which window k begins, windows counted from the first of
     * that epoch. It grows as rows further on are asked for. */
    uint64_t *first_row;
    int64_t n_known, known_capacity; /* entries; the last is the end of the last known window */
    uint64_t end_row;   /* rows before the stream's end, empty ones included; UINT64_MAX if there is
                         * no end or it is not known yet */
    uint64_t full_rows; /* rows before the empty ones */
    int walkers;        /* consumers that hold this range */
    row_range *next;
};

struct plan {
    const conf *conf; /* borrowed, as are the next two */
    const dataset *data;
    const data_index *index;
    plan_kind kind;
    fit_limits limits;
    clip_limits clips;
    int64_t token_budget, patch_budget;
    uint64_t seed, window, n_windows;
    plan_unit *units; /* [n_units] in data-set order of their first samples */
    int64_t n_units, unit_capacity;
    unit_doc *docs; /* [n_docs] documents of a unit lie side by side */
    int64_t n_docs, doc_capacity;
    mixture_lane *lanes; /* [n_lanes] one per source */
    int n_lanes;
    uint64_t epoch_units;      /* units of an epoch, over all lanes */
    int64_t longest, shortest; /* tokens of a document */
    row_stat *rows;            /* [n_rows] rows of epoch 0 */
    int64_t n_rows, row_capacity;
    plan_stage stage;
    int64_t at;           /* the sample or unit with which the stage continues */
    grouping *joining;    /* heap; only during STAGE_JOIN */
    prefixing *prefixing; /* the same */
    int64_t n_usable;     /* samples in the stream */
    id_map cause_of;      /* refused sample -> offset of its cause in `causes` */
    text_pool causes;
    row_range whole;                    /* from epoch 0 on */
    row_range *others;                  /* linked list of the ranges that plan_from made */
    uint64_t whole_epochs, last_window; /* from training.epochs; UINT64_MAX without an end */
    window_plan *cache;                 /* [n_cached], at most WINDOWS_EACH * walkers */
    int64_t n_cached, cache_capacity;
    int walkers;
    uint64_t clock; /* counts plan_window calls, for window_plan.used */
    arena scratch;
    shape_bucket buckets[MAX_BUCKETS];
    int n_buckets;
};

/* Measures sample i as it would stand in a row: its tokens with image pads, its patches, its images
 * and their grids (in `memory`). A text that will be split is measured whole. Fails with the cause
 * for a sample that cannot be in the stream; *out_cause is false if the failure is another one,
 * such as no memory. */
WARN_UNUSED status plan_measure(const plan *plan, int64_t sample, arena *memory, planned_doc *out,
                                bool *out_cause);

/* Does one piece of the present stage (a few thousand samples): fills units, docs, lanes and
 * causes. Moves on to the next stage when the present one is done. */
WARN_UNUSED status plan_make_units(plan *plan);
void plan_stop_joining(plan *plan); /* frees what STAGE_JOIN holds, at any time */

/* Sets *out to whether both samples, which are in the stream, show the same images at the same
 * sizes.
 */
WARN_UNUSED status plan_same_images(plan *plan, int64_t first, int64_t second, bool *out);

/* prefix_units.c: STAGE_JOIN of data.group shared_prefix. Begin it, join every unit in order, then
 * lay them: they become plan.units. Stopping frees what it holds, at any time. */
WARN_UNUSED status plan_begin_prefixes(plan *plan);
WARN_UNUSED status plan_join_prefix(plan *plan, int64_t unit);
WARN_UNUSED status plan_lay_prefixes(plan *plan);
void plan_stop_prefixes(plan *plan);

/* Tokens of the unit's prefix, which is its first document; 0 if it has none. */
int32_t plan_unit_prefix(const plan *plan, const plan_unit *unit);
/* Adds what a unit holds to *stat. */
void plan_add_unit(const plan *plan, const plan_unit *unit, row_stat *stat);

/* Starts a range whose epoch `epoch` begins with stream row `row`. */
WARN_UNUSED status row_range_init(row_range *range, uint64_t epoch, uint64_t row);
void row_range_done(row_range *range);
/* The first window whose number of rows is not known. */
uint64_t row_range_known(const plan *plan, const row_range *range);
/* Takes the number of rows of that window. */
WARN_UNUSED status row_range_add(plan *plan, row_range *range, int64_t n_rows);
/* Rows that are known to be in the stream. Of an epoch that training.epochs takes in part, none is
 * known before the whole epoch is planned, since the part is a share of its rows. */
uint64_t row_range_rows(const plan *plan, const row_range *range);
/* The window in which a known row lies; *out_first is that window's first row. */
uint64_t row_range_window(const plan *plan, const row_range *range, uint64_t row,
                          uint64_t *out_first);

/* The plan of a window, from the cache or made now. Valid until the next call. */
WARN_UNUSED status plan_window(plan *plan, uint64_t global, const window_plan **out);

/* Whether this plan splits large units and makes rows alike in predicted cost (PLAN_VERSION 3). */
bool plan_balances(const plan *plan);
/* A joined unit takes at most this part of a row, where its documents are short enough for that. */
enum { UNITS_OF_A_ROW = 2 };
/* The predicted cost of a unit (assign_cost). */
int64_t plan_unit_cost(const plan *plan, const plan_unit *unit);

/* Packs the items of a window and levels the rows (pack.h), and where the plan balances, makes them
 * alike in predicted cost. Item i is unit units[i]. row_of [count] and *out_rows as in pack.h. */
WARN_UNUSED status plan_pack_mixed(plan *plan, const pack_item *items, const int64_t *units,
                                   int64_t count, int64_t *row_of, int64_t *out_rows);
/* The same, with rows of a single resolution class where a class has enough units for that. */
WARN_UNUSED status plan_pack_classes(plan *plan, const pack_item *items, const int64_t *units,
                                     int64_t count, int64_t *row_of, int64_t *out_rows);

/* Makes plan.buckets from the rows of epoch 0 (shape_buckets.c). */
WARN_UNUSED status plan_make_buckets(plan *plan);

#endif
