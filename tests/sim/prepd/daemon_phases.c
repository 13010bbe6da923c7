/* SPDX-License-Identifier: Apache-2.0 */
/* daemon_phases.c: what a simulated daemon is at, by which faults are counted. */
#include <string.h>

#include "tests/sim/prepd/sim_faults.h"

/* Marks the phases that the rows of a consumer are in. */
static void mark_rows(const consumer_seat *consumer, bool *out)
{
    for (int i = 0; i < consumer->n_slots; i++) {
        const bool made = consumer->slots[(consumer->first_slot + i) % SESSION_SLOTS].msg != NULL;
        out[made ? PHASE_DELIVERY : PHASE_LEASE] = true;
    }
}

/* Finds all phases that a daemon is in: while rows of one stream are leased, a consumer of another
 * one may wait for its index. */
void daemon_phases(const sim_daemon *daemon, bool *out)
{
    const dispatch *state = daemon->state;
    memset(out, 0, N_PHASES * sizeof *out);
    if (state) {
        out[PHASE_GREETING] = !state->train.opened;
        out[PHASE_INDEX] = state->train.build.active || state->eval.build.active;
        out[PHASE_DRAIN] = state->draining || state->stopping;
        for (const consumer_seat *one = state->consumer_seats; one; one = one->next) {
            out[PHASE_GREETING] |= !one->welcomed;
            mark_rows(one, out);
        }
    }
    out[PHASE_IDLE] = true;
    for (int i = 0; i < PHASE_IDLE; i++)
        out[PHASE_IDLE] &= !out[i];
}
