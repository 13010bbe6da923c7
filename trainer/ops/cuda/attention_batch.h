/* SPDX-License-Identifier: Apache-2.0 */
/* attention_batch.h: the scratch of a call of cuDNN's attention, and the pointers that an execution
 * takes. Private to attention_cudnn.c. */
#ifndef TESSERA_TRAINER_OPS_CUDA_ATTENTION_BATCH_H
#define TESSERA_TRAINER_OPS_CUDA_ATTENTION_BATCH_H

#include "trainer/ops/cuda/attention_graphs.h"
#include "trainer/ops/cuda/attention_pack.h"

#ifdef TESSERA_CUDNN

/* `length` and `first` have a list for each run, one after the other, each aligned. */
typedef struct attention_batch {
    int32_t *length;
    /* First elements of q, k, v, o and lse. */
    int64_t *first[PACK_FIRSTS];
    /* lse: the copy of a group's log-sums, or NULL. */
    void *lse, *sum, *dq_sum, *dk_full, *dv_full, *library;
    int64_t dq_sum_bytes;
} attention_batch;

/* How the workspace of a call is laid out: for how many runs, and whether a group's log-sums are
 * copied into rows with a stride of their own. */
typedef struct attention_room {
    int64_t tokens, runs;
    bool backward, copies;
} attention_room;

/* Lays out the batch in the queue's scratch, for what the plan's library needs too. The scratch is
 * that of the queue's next call as well. ST_NO_MEMORY. */
WARN_UNUSED status attention_find_room(stream *queue, attention_batch *shape,
                                       const attention_shape *of, const attention_room *wanted,
                                       const cudnn_plan *plan);
/* The batch with the lists of one run. */
attention_batch attention_run_of(const attention_batch *whole, const attention_shape *of,
                                 int64_t run);
/* What fills the lists of a run: `filled` of the shape's segments have borders in cu. */
attention_pack_args attention_packing(const attention_batch *shape, const attention_shape *of,
                                      int64_t tokens, const int32_t *cu, int64_t filled);

/* The pointers of an execution, by the uid of their tensor. The first n are handed over. */
typedef struct attention_hand {
    int64_t n, uid[ATTENTION_COUNT];
    void *pointer[ATTENTION_COUNT];
} attention_hand;

/* Hands over an array, or with NULL none; and the lists of a batch. */
void attention_give(attention_hand *held, int64_t uid, const void *array);
void attention_give_batch(attention_hand *held, const attention_batch *shape);

#endif

#endif
