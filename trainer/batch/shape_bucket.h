/* shape_bucket.h: the shape buckets of a stream: a few sets of capacities. Every micro-batch is
 * padded to one of them, so a step is captured as a graph once per bucket and not once per batch.
 *
 * The daemon's WELCOME (proto/wire.md) names at most 8 buckets for a row. Each holds whatever the
 * one before it holds, and the last one holds any row of the stream. A micro-batch of n rows has n
 * times the capacities, with the same bounds on the longest document and frame. A stream that names
 * no bucket, such as an old recording, has a single one, the widest. */
#ifndef TESSERA_TRAINER_BATCH_SHAPE_BUCKET_H
#define TESSERA_TRAINER_BATCH_SHAPE_BUCKET_H

#include "common/json/json.h"
#include "trainer/batch/stager.h"

enum { BUCKETS_MAX = 8 };

typedef struct bucket_list {
    batch_caps cap[BUCKETS_MAX]; /* of a micro-batch, ascending */
    int count;
} bucket_list;

/* Reads the buckets of a WELCOME for micro-batches of `rows` rows. widest: the most that a row may
 * hold by the stream's budgets. ST_PROTOCOL if a bucket is smaller than the one before it or larger
 * than widest. */
WARN_UNUSED status bucket_list_read(const json_value *welcome, int64_t rows,
                                    const batch_caps *widest, bucket_list *out);

/* Grows each capacity of *inout to the other's. */
void bucket_include(batch_caps *inout, const batch_caps *other);

#endif
