/* SPDX-License-Identifier: Apache-2.0 */
/* assign.h: which data-parallel consumer gets which row of a step.
 *
 * The ranks of a step wait for each other, so each should get the same amount of work, and the same
 * number of rows. The result is a pure function of the rows' predicted costs and the number of
 * ranks: the daemon and the reader of a recording compute it independently and hand out the same
 * rows. */
#ifndef TESSERA_PROTO_ROW_ASSIGN_H
#define TESSERA_PROTO_ROW_ASSIGN_H

#include <stdint.h>

#include "common/base/status.h"

/* What the cost of a row follows from. */
typedef struct row_measure {
    int64_t tokens, patches; /* patches of pictures and clips together */
    int64_t squares;         /* for attention: the documents' tokens squared (row_squares) */
} row_measure;

/* The predicted cost of a row in MFLOP: what one training step of Qwen3-VL-30B-A3B computes for it,
 * 18.25 GFLOP for a token, 2.9 GFLOP for a patch, and 1.18 MFLOP for a squared token of a document.
 * Only the proportions matter. It is computed in integers so that every machine gets the same. */
int64_t assign_cost(const row_measure *measure);

/* Writes the rank that gets each row to rank_of [n_rows], from the rows' costs row_cost [n_rows].
 * Every rank gets n_rows / ranks rows; if that does not divide, the first ranks get one more. */
WARN_UNUSED status assign_rows(const int64_t *row_cost, int64_t n_rows, int ranks, int *rank_of);

#endif
