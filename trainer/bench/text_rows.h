/* text_rows.h: a recording of rows without pictures, so that a bench of steps reads rows the way a
 * run does. Each row is full: documents of `document` tokens end to end (0: one document), every
 * token but each document's first a target, ids drawn at random below the special ones. The stream
 * says that it may have patch_budget patches in a row; where that is 0, what a row has, as a
 * bucket. */
#ifndef TESSERA_TRAINER_BENCH_TEXT_ROWS_H
#define TESSERA_TRAINER_BENCH_TEXT_ROWS_H

#include "common/conf/conf.h"
#include "trainer/model/dims.h"

/* In a file of their own, for a bench that is given no recording: two steps of rows of
 * training.seq_len tokens in documents of bench.document. path: its name, to be unlinked. */
WARN_UNUSED status text_rows_own(const conf *c, const model_dims *d, char path[STATUS_PATH_MAX]);
WARN_UNUSED status text_rows_record(const char *path, const model_dims *d, int64_t rows,
                                    int64_t seq_len, int64_t document, int64_t patch_budget);

#endif
