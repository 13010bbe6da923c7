/* shape_bucket.h: shape buckets of a stream: the capacities that micro-batches are staged into, and
 * that steps are captured for (design section 5).
 *
 * WELCOME names those of a row, at most 8, each holding what the one before it holds; the last
 * holds any row of the stream (proto/README.md). L rows end to end make one of L times the
 * capacities, with the same longest segments. A stream that names none (an old recording) has one:
 * the widest. */
#ifndef TESSERA_TRAINER_BATCH_SHAPE_BUCKET_H
#define TESSERA_TRAINER_BATCH_SHAPE_BUCKET_H

#include "common/json/json.h"
#include "trainer/batch/stager.h"

enum { BUCKETS_MAX = 8 };

typedef struct bucket_list {
    batch_caps cap[BUCKETS_MAX]; /* of a micro-batch */
    int n;
} bucket_list;

/* widest: what a row may hold by the stream's budgets, whatever it is made of. ST_PROTOCOL where
 * buckets are not nested, or beyond it. */
WARN_UNUSED status bucket_list_read(const json_value *welcome, int64_t rows,
                                    const batch_caps *widest, bucket_list *out);

/* Each capacity the larger of the two. */
void bucket_include(batch_caps *inout, const batch_caps *other);

#endif
