/* planner.h: inside of the plan. */
#ifndef TESSERA_PREPD_PLAN_PLANNER_H
#define TESSERA_PREPD_PLAN_PLANNER_H

#include "prepd/dataset/tables.h"
#include "prepd/plan/mixture_lane.h"
#include "prepd/plan/pack.h"
#include "prepd/plan/plan.h"
#include "prepd/sample/clip.h"

/* Resolution classes (classes.c): octaves of area in patches, each wide, square or tall; the last
 * is that of texts. */
enum {
    CLASS_AREAS = 24,
    CLASS_ASPECTS = 3,
    TEXT_CLASS = CLASS_AREAS * CLASS_ASPECTS,
    RESOLUTION_CLASSES,
    MIXED_CLASSES = -1
};

/* Measures of a row, for buckets and the report. */
typedef struct row_stat {
    int64_t tokens, patches, targets, documents, longest, images, frames, frame;
    int64_t visual;  /* tokens that stand for images; of shared ones in every document */
    int class;       /* of all its units, MIXED_CLASSES of several */
    int64_t squares; /* sum of the documents' tokens squared: attention */
} row_stat;

/* What the order permutes and packing places: a document, or several that share their images. */
typedef struct plan_unit {
    int64_t first; /* in plan.docs */
    int32_t n_docs, tokens, patches, targets, images, frames, frame;
    int32_t class; /* of its first image */
} plan_unit;

typedef struct unit_doc {
    int64_t sample;
    int32_t part, tokens;
} unit_doc;

/* A planned window: its units by rows. row k holds items[first[k]..first[k+1]). */
typedef struct window_plan {
    uint64_t global; /* epoch * n_windows + window */
    bool valid;
    uint64_t used; /* for the choice of which to forget */
    int64_t n_rows;
    int64_t *first; /* [n_rows + 1] */
    int64_t *items; /* units */
    int64_t items_capacity, first_capacity;
} window_plan;

/* For each who walks over the rows: a step may straddle a border between windows. */
enum { WINDOWS_EACH = 2 };

/* How far it is prepared; nothing of a later stage is there before. */
typedef enum plan_stage {
    STAGE_MEASURE, /* samples into units */
    STAGE_JOIN,    /* units of one picture, where asked for */
    STAGE_LANES,
    STAGE_WINDOWS, /* windows, one after the other */
} plan_stage;

typedef struct grouping grouping;

struct row_range {
    uint64_t epoch; /* that it begins with */
    /* first_row[k] = stream row that window k (from the first of that epoch on) begins with; grown
     * as far as somebody asked. */
    uint64_t *first_row;
    int64_t n_known, known_capacity; /* entries; the last is the end of the last known window */
    uint64_t end_row;   /* rows before the stream's end, empty ones included; UINT64_MAX without, or
                         * not known yet */
    uint64_t full_rows; /* rows before the empty ones */
    int walkers;
    row_range *next;
};

struct plan {
    const conf *c; /* borrowed, as all below */
    const dataset *d;
    const data_index *x;
    plan_kind kind;
    fit_limits limits;
    clip_limits clips;
    int64_t token_budget, patch_budget;
    uint64_t seed, window, n_windows;
    plan_unit *units; /* [n_units] in data-set order of their first samples */
    int64_t n_units, unit_capacity;
    unit_doc *docs; /* [n_docs] those of a unit side by side */
    int64_t n_docs, doc_capacity;
    mixture_lane *lanes; /* [n_lanes] of units */
    int n_lanes;
    uint64_t epoch_units;      /* units of an epoch, over all lanes */
    int64_t longest, shortest; /* tokens of a document */
    row_stat *rows;            /* [rows of epoch 0] */
    int64_t n_rows, row_capacity;
    plan_stage stage;
    int64_t at;        /* sample or unit that the stage goes on with */
    grouping *joining; /* heap; while units are joined */
    int64_t n_usable;  /* samples in the stream */
    id_map cause_of;   /* refused sample -> offset of its cause */
    text_pool causes;
    row_range whole;                    /* from epoch 0 on */
    row_range *others;                  /* linked; those that somebody walks over */
    uint64_t whole_epochs, last_window; /* of training.epochs; UINT64_MAX without end */
    window_plan *cache;                 /* [n_cached] of at most WINDOWS_EACH * walkers */
    int64_t n_cached, cache_capacity;
    int walkers;
    uint64_t clock;
    arena scratch;
    shape_bucket buckets[MAX_BUCKETS];
    int n_buckets;
};

/* What a sample is in a row: its tokens with pads, patches, its images and their grids in the
 * arena; a text that will be split whole. Fails with the cause of a sample that cannot be in the
 * stream; *out_cause is false if the failure is another one (memory). */
WARN_UNUSED status plan_measure(const plan *p, int64_t i, arena *a, planned_doc *out,
                                bool *out_cause);

/* Fills units, docs, lanes and causes, a few thousand at a time: a piece of the present stage,
 * which it moves on to the next when it is done. */
WARN_UNUSED status plan_make_units(plan *p);
void plan_stop_joining(plan *p); /* what a plan freed half-way has of it */

/* row_range.c */
WARN_UNUSED status row_range_init(row_range *s, uint64_t epoch, uint64_t row);
void row_range_done(row_range *s);
uint64_t row_range_begin(const plan *p, const row_range *s); /* its first window */
uint64_t row_range_known(const plan *p, const row_range *s); /* windows before the first unknown */
/* Takes the number of rows of the window behind the last known one. */
WARN_UNUSED status row_range_add(plan *p, row_range *s, int64_t n_rows);
/* Rows that can be told to be in the stream: of an epoch that is taken in part none before all of
 * it is planned, since the part is counted in its rows. */
uint64_t row_range_rows(const plan *p, const row_range *s);
/* The window a known row lies in, and in *out_first that window's first row. */
uint64_t row_range_window(const plan *p, const row_range *s, uint64_t row, uint64_t *out_first);

/* The plan of a window, from the cache or new; valid until the next is asked for. */
WARN_UNUSED status plan_window(plan *p, uint64_t global, const window_plan **out);

int plan_class_of(fit_grid g);

/* Packed, then levelled (pack.h). */
WARN_UNUSED status plan_pack_mixed(plan *p, const pack_item *items, int64_t n, int64_t *row_of,
                                   int64_t *out_rows);
/* The same, with rows of one class where there are enough; items of these units. */
WARN_UNUSED status plan_pack_classes(plan *p, const pack_item *items, const int64_t *units,
                                     int64_t n, int64_t *row_of, int64_t *out_rows);

/* At most MAX_BUCKETS of them from the rows of epoch 0. */
WARN_UNUSED status plan_make_buckets(plan *p);

#endif
