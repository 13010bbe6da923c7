/* SPDX-License-Identifier: Apache-2.0 */
/* rules_ranks.c: which daemon serves which ranks. */
#include <stdio.h>

#include "tests/sim/prepd/rules.h"

int rules_daemon_of(const sim_rules *rules, int rank)
{
    return rank / rules->together % rules->n_daemons;
}

void rules_ranks_of(const sim_rules *rules, int daemon, char out[RANKS_TEXT])
{
    size_t size = 0;
    out[0] = 0;
    if (!rules->split)
        return;
    for (int from = daemon * rules->together; from < rules->most_ranks;
         from += rules->n_daemons * rules->together)
        size += (size_t)snprintf(out + size, RANKS_TEXT - size, "%s%d-%d", size ? "," : "", from,
                                 from + rules->together - 1);
    if (!out[0]) /* none of this job's */
        snprintf(out, RANKS_TEXT, "%d-%d", rules->most_ranks + daemon, rules->most_ranks + daemon);
}
