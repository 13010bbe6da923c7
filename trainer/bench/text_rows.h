/* text_rows.h: writes a recording of rows without pictures, so that a bench reads rows the way a
 * run does. Each row is full: it has documents of `document` tokens end to end (0: one document),
 * every token but the first of a document is a target, and ids are drawn at random below the
 * special ones. The stream says that a row may have patch_budget patches. If that is 0, it
 * describes its rows exactly, as a shape bucket. */
#ifndef TESSERA_TRAINER_BENCH_TEXT_ROWS_H
#define TESSERA_TRAINER_BENCH_TEXT_ROWS_H

#include "common/conf/conf.h"
#include "trainer/model/dims/dims.h"

/* Writes two steps of rows of training.seq_len tokens, in documents of bench.document tokens, to a
 * temporary file, for a bench that was given no recording. path receives its name; the caller
 * unlinks it. */
WARN_UNUSED status text_rows_own(const conf *options, const model_dims *dims,
                                 char path[STATUS_PATH_MAX]);
/* Writes `rows` rows of seq_len tokens to `path`. */
WARN_UNUSED status text_rows_record(const char *path, const model_dims *dims, int64_t rows,
                                    int64_t seq_len, int64_t document, int64_t patch_budget);

#endif
