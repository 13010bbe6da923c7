/* SPDX-License-Identifier: Apache-2.0 */
/* rank_link_where.c: see rank_link_where.h. */
#include "trainer/parallel/link/rank_link_where.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/words.h"

void rank_link_where_init(rank_link_where *out, comm_ledger *ledger)
{
    out->ledger = ledger;
    pthread_mutex_init(&out->lock, NULL);
}

void rank_link_where_done(rank_link_where *where)
{
    pthread_mutex_destroy(&where->lock);
}

void rank_link_where_set(rank_link_where *where, int64_t step, const uint64_t *sample,
                         int64_t count)
{
    pthread_mutex_lock(&where->lock);
    where->step = step;
    where->n_samples = count;
    if (count > 0)
        memcpy(where->sample, sample,
               (size_t)(count < WHERE_IDS ? count : WHERE_IDS) * sizeof *sample);
    pthread_mutex_unlock(&where->lock);
}

bool rank_link_where_began(rank_link_where *where)
{
    pthread_mutex_lock(&where->lock);
    const bool began = where->step != 0;
    pthread_mutex_unlock(&where->lock);
    return began;
}

void rank_link_where_tell(rank_link_where *where, char *out, size_t size)
{
    comm_now now = comm_ledger_now(where->ledger);
    pthread_mutex_lock(&where->lock);
    size_t count = 0;
    if (where->step == 0)
        count = words_add(out, size, count, "before the first step");
    else
        count = words_add(out, size, count, "step %" PRId64, where->step);
    if (now.what) {
        count = words_add(out, size, count, ", %s %s: %s", now.inside ? "in" : "after",
                          comm_kind_name(now.kind), now.what);
        if (now.layer >= 0)
            count = words_add(out, size, count, " of layer %" PRId64, now.layer);
        count = words_add(out, size, count, " over %s", now.group);
        if (now.inside)
            count = words_add(out, size, count, " for %.1f s",
                              (double)(clock_ns() - now.since_ns) * 1e-9);
    }
    if (where->n_samples > 0)
        count = words_add(out, size, count, ", samples");
    for (int64_t i = 0; i < where->n_samples && i < WHERE_IDS && count + 32 < size; i++)
        count = words_add(out, size, count, " %" PRIu64, where->sample[i]);
    if (where->n_samples > WHERE_IDS)
        count = words_add(out, size, count, " .. (%" PRId64 ")", where->n_samples);
    const char *waits = atomic_load(&where->waits);
    if (waits)
        words_add(out, size, count, ", waiting for %s", waits);
    pthread_mutex_unlock(&where->lock);
}
