/* assign.h: which data-parallel consumer gets which row of a step (design section 3): a pure
 * function of the rows' predicted time and of how many consumers there are. The daemon and a reader
 * of a recording call it with the same figures, so both hand out the same rows. */
#ifndef TESSERA_PROTO_ASSIGN_H
#define TESSERA_PROTO_ASSIGN_H

#include <stdint.h>

#include "common/base/status.h"

/* What tells how long a row takes. */
typedef struct row_measure {
    int64_t tokens, patches; /* patches of images and videos together */
    int64_t squares;         /* sum of the documents' tokens squared: attention */
} row_measure;

/* Predicted time in MFLOP of a 30B-A3B training step (spec 10): 18.25 GFLOP a token, 2.9 a patch,
 * attention by the square of each document. Only the proportions matter, and that they are the same
 * on every machine: integers. */
int64_t assign_cost(const row_measure *m);

/* rank_of [n_rows] written; every rank gets rows / ranks of them when that divides. */
WARN_UNUSED status assign_rows(const int64_t *row_cost, int64_t n_rows, int ranks, int *rank_of);

#endif
