/* cache_lock.h: one process makes a file of the cache, and others that want it wait and read it. A
 * lock is an flock of FILE.lock beside it: the kernel gives it up when its holder dies, however.
 * The file holds who that is, and goes with the lock. */
#ifndef TESSERA_PREPD_DATASET_CACHE_LOCK_H
#define TESSERA_PREPD_DATASET_CACHE_LOCK_H

#include <limits.h>

#include "common/base/status.h"

enum { LOCK_HOLDER = 128 };
typedef struct cache_lock {
    int fd; /* 0: not held */
    char path[PATH_MAX];
} cache_lock;

typedef enum lock_answer {
    LOCK_OURS,
    LOCK_TAKEN, /* by another living process, named in holder */
    LOCK_NONE,  /* none can be had here (a file system without locks, no permission): status_text()
                 */
} lock_answer;

/* Without waiting. out_holder: "pid 12 on host". */
lock_answer cache_lock_take(const char *file, cache_lock *out, char out_holder[LOCK_HOLDER]);
void cache_lock_leave(cache_lock *l); /* nothing if it is not held */

#endif
