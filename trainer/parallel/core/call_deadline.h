/* SPDX-License-Identifier: Apache-2.0 */
/* call_deadline.h: how long a collective call waits for the other ranks: it completes, or fails by
 * a deadline. While any rank waits for rows or files, which the others cannot hurry, the time does
 * not run. Engines ask between two looks at their transport. */
#ifndef TESSERA_TRAINER_PARALLEL_CORE_CALL_DEADLINE_H
#define TESSERA_TRAINER_PARALLEL_CORE_CALL_DEADLINE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct call_deadline {
    int64_t timeout_ns; /* that a call may take */
    int64_t until_ns;
} call_deadline;

static inline call_deadline call_deadline_begin(int64_t now_ns, int64_t timeout_ns)
{
    return (call_deadline){timeout_ns, now_ns + timeout_ns};
}

/* Whether a call that has not completed fails now. patient: a rank waits for something. */
static inline bool call_deadline_passed(call_deadline *call, int64_t now_ns, bool patient)
{
    if (patient)
        call->until_ns = now_ns + call->timeout_ns;
    return now_ns > call->until_ns;
}

#endif
