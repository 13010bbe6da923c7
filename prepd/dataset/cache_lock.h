/* cache_lock.h: lets one process make a file of the cache while others that want it wait, and then
 * read what it made. A lock is an flock(2) on FILE.lock beside the file: the kernel releases it
 * when its holder dies, in whatever way. FILE.lock names the holder, and is removed with the lock.
 */
#ifndef TESSERA_PREPD_DATASET_CACHE_LOCK_H
#define TESSERA_PREPD_DATASET_CACHE_LOCK_H

#include <limits.h>

#include "common/base/status.h"

enum { LOCK_HOLDER = 128 }; /* bytes of a holder's name, with its end */
typedef struct cache_lock {
    int fd; /* 0: not held */
    char path[PATH_MAX];
} cache_lock;

typedef enum lock_answer {
    LOCK_OURS,
    LOCK_TAKEN, /* another living process has it; out_holder names it */
    LOCK_NONE,  /* no lock can be had here (a file system without locks, or no permission);
                 * status_text() says why */
} lock_answer;

/* Tries to take the lock of `file`, without waiting. out_holder is written for LOCK_TAKEN only:
 * "pid 12 on host", or "another prepd" where that cannot be read. */
lock_answer cache_lock_take(const char *file, cache_lock *out, char out_holder[LOCK_HOLDER]);
void cache_lock_leave(cache_lock *lock); /* does nothing if the lock is not held */

#endif
