/* comm_count.h: an engine that moves nothing: calls come back at once, and of every group it is
 * kept what was asked for, so that ranks that are played one after another can be held against each
 * other (dry_run.h). Its device is one of shapes; a call whose buffers lie in no allocation of it
 * is refused. */
#ifndef TESSERA_TRAINER_CHECK_COMM_COUNT_H
#define TESSERA_TRAINER_CHECK_COMM_COUNT_H

#include "common/base/hash.h"
#include "trainer/parallel/comm.h"

enum { COUNTED_GROUPS_MAX = 16 };

/* A group, in the order they were made in, which is the same on all ranks. */
typedef struct comm_counted {
    int first; /* of its ranks, by number in the world */
    int size;
    int64_t n;    /* calls */
    hash128 list; /* chain over their kinds, counts, dtypes, roots; all to alls without counts */
    int64_t sent, received; /* elements of all to alls, from and to other ranks */
} comm_counted;

/* The `world` of the engine: a rank's. All zero to begin with. */
typedef struct comm_count {
    comm_counted group[COUNTED_GROUPS_MAX];
    int n;
} comm_count;

extern const comm_engine comm_count_engine;

#endif
