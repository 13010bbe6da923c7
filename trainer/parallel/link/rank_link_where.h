/* SPDX-License-Identifier: Apache-2.0 */
/* rank_link_where.h: where this rank is in its work, which the other ranks learn when a rank is
 * lost or late. The threads that work set it, and the thread of the rank link reads it. Internal to
 * the rank link. */
#ifndef TESSERA_TRAINER_PARALLEL_LINK_RANK_LINK_WHERE_H
#define TESSERA_TRAINER_PARALLEL_LINK_RANK_LINK_WHERE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "trainer/parallel/comm/comm_ledger.h"

enum { WHERE_IDS = 16 }; /* sample ids that are listed; of more, only their number */

typedef struct rank_link_where {
    comm_ledger *ledger;         /* knows the call that the rank is in; borrowed, may be NULL */
    _Atomic(const char *) waits; /* for what else the rank waits; static storage; NULL: nothing */
    pthread_mutex_t lock;        /* guards what follows */
    int64_t step;                /* 0: before the first one */
    uint64_t sample[WHERE_IDS];
    int64_t n_samples; /* of the step on this rank */
} rank_link_where;

/* Before the first step. *out was zero. */
void rank_link_where_init(rank_link_where *out, comm_ledger *ledger);
void rank_link_where_done(rank_link_where *where);
/* A step begins, with these samples [count] on this rank; they are copied. NULL and 0: its rows are
 * empty. */
void rank_link_where_set(rank_link_where *where, int64_t step, const uint64_t *sample,
                         int64_t count);
bool rank_link_where_began(rank_link_where *where);
/* Writes one line without its end, of at most `size` bytes with the final zero: step, call, layer,
 * group, sample ids, and what the rank waits for. */
void rank_link_where_tell(rank_link_where *where, char *out, size_t size);

#endif
