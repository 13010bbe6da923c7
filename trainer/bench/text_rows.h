/* text_rows.h: a recording of rows without pictures, so that a bench of steps reads rows the way a
 * run does. Each row is full: documents of `document` tokens end to end (0: one document), every
 * token but each document's first a target, ids drawn at random below the special ones. */
#ifndef TESSERA_BENCH_TEXT_ROWS_H
#define TESSERA_BENCH_TEXT_ROWS_H

#include "trainer/model/dims.h"

WARN_UNUSED status text_rows_record(const char *path, const model_dims *d, int64_t rows,
                                    int64_t seq_len, int64_t document);

#endif
