/* SPDX-License-Identifier: Apache-2.0 */
/* comm_sum.h: the sum, or the maximum, of what several ranks have, taken on the host in the order
 * of the ranks, so that the same values give the same bits. */
#ifndef TESSERA_TRAINER_PARALLEL_COMM_SUM_H
#define TESSERA_TRAINER_PARALLEL_COMM_SUM_H

#include "trainer/parallel/comm/comm.h"

/* into [count] = from[0] + from[1] + .. + from[how_many - 1], each [count] of dtype, in this order.
 * Sums are taken in dtype; those of BF16 in float, rounded to even once. COMM_MAX keeps a NaN.
 * `into` may be one of `from`. ST_INTERNAL for a dtype that comm.h does not sum. */
WARN_UNUSED status comm_sum(void *into, const void *const *from, int how_many, int64_t count,
                            st_dtype dtype, comm_reduction reduction);

#endif
