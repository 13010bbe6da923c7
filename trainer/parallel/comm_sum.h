/* comm_sum.h: the sum (or the greatest) of what several ranks have, in rank order, on the host. */
#ifndef TESSERA_TRAINER_PARALLEL_COMM_SUM_H
#define TESSERA_TRAINER_PARALLEL_COMM_SUM_H

#include "trainer/parallel/comm.h"

/* into [count] = from[0] + from[1] + .. + from[n - 1], each [count] of dtype, summed in dtype
 * (BF16 in float, rounded to even once) and in this order. into may be one of them. ST_INTERNAL for
 * a dtype that comm.h does not sum. */
WARN_UNUSED status comm_sum(void *into, const void *const *from, int n, int64_t count,
                            st_dtype dtype, comm_reduction reduction);

#endif
