/* SPDX-License-Identifier: Apache-2.0 */
/* comm_count.h: an engine of collectives that moves nothing. Every call returns at once, and the
 * engine records for each group which calls were made. A dry run (dry_run.h) that plays its ranks
 * one after another compares these records. The engine works with a device without storage
 * (shapes.h); it refuses a call whose buffers are not inside an allocation of that device.
 */
#ifndef TESSERA_TESTS_DRY_RUN_COMM_COUNT_H
#define TESSERA_TESTS_DRY_RUN_COMM_COUNT_H

#include "common/base/hash.h"
#include "trainer/parallel/comm/comm.h"

enum { COUNTED_GROUPS_MAX = 16 };

/* What was recorded for a group. */
typedef struct comm_counted {
    int first; /* its first rank, numbered in the world */
    int size;
    int64_t count; /* number of calls */
    hash128 list;  /* chain over the calls' kinds, counts, dtypes and roots; an all-to-all has no
                      count */
    int64_t sent, received; /* elements to and from other ranks by all-to-all, send and receive */
} comm_counted;

/* The engine's `world` for one rank; it starts as zeros. Groups are in the order in which they were
 * made, which is the same on all ranks. */
typedef struct comm_count {
    comm_counted group[COUNTED_GROUPS_MAX];
    int count;
} comm_count;

extern const comm_engine comm_count_engine;

#endif
