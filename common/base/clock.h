/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h: monotonic time in nanoseconds, for durations and deadlines. Wall-clock time, which can
 * jump, is used only in logs and reports. */
#ifndef TESSERA_COMMON_BASE_CLOCK_H
#define TESSERA_COMMON_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* CPU time of this thread in nanoseconds: what its work takes, whatever else the machine does. */
static inline int64_t clock_thread_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
