/* SPDX-License-Identifier: Apache-2.0 */
/* batch_caps.h: what rows need, compared with capacities; and the shape buckets of a stream: a few
 * sets of capacities. Every micro-batch is padded to one of them, so a step is captured as a graph
 * once per bucket and not once per batch.
 *
 * The daemon's WELCOME (proto/wire.md) names at most 8 buckets for a row. Each holds whatever the
 * one before it holds, and the last one holds any row of the stream. A micro-batch of n rows has n
 * times the capacities, with the same bounds on the longest document and frame. A stream that names
 * no bucket, such as an old recording, has a single one, the widest. */
#ifndef TESSERA_TRAINER_BATCH_CAPS_H
#define TESSERA_TRAINER_BATCH_CAPS_H

#include "common/json/json.h"
#include "proto/row/batch.h"
#include "trainer/model/layers/device_batch.h"

/* Exactly what these rows need. */
batch_caps batch_caps_count(const row *rows, int64_t n_rows);
/* ST_BAD_INPUT, with the first sample id of the rows, if `need` is beyond cap. */
WARN_UNUSED status batch_caps_check(const batch_caps *cap, const batch_caps *need, const row *rows,
                                    int64_t count);
/* Grows *inout_caps until it holds these rows. Tokens are rounded up to a multiple of token_step,
 * patches to a multiple of patch_step, which is a multiple of 4. longest and frame do not change.
 */
void batch_caps_for(const row *rows, int64_t n_rows, int64_t token_step, int64_t patch_step,
                    batch_caps *inout_caps);
/* True if a batch with these counts is within the capacities. */
bool batch_caps_hold(const batch_caps *cap, const batch_caps *counts);

/* ---- shape buckets ---- */

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
