/* SPDX-License-Identifier: Apache-2.0 */
/* violations.c: keeps the first thing that does not hold, in words. */
#include <stdarg.h>
#include <stdio.h>

#include "tests/sim/prepd/invariants.h"

/* What was to be read, told or counted may be lost where there was no memory for it. Rows, the
 * index, credit and what becomes of memory are not excused. */
static bool is_excused(const simulation *sim, invariant which)
{
    bool any = false;
    for (int i = 0; i < sim->rules.n_daemons; i++)
        any |= sim->daemon[i].ran_short;
    return any && (which == INV_PROCESSES || which == INV_TWINS || which == INV_ROLES ||
                   which == INV_DEVIANT || which == INV_HONEST || which == INV_WORDS ||
                   which == INV_DRAIN || which == INV_POISON || which == INV_LEASES);
}

void sim_break(simulation *sim, invariant which, const char *format, ...)
{
    static const char *const names[N_INVARIANTS] = {
#define INVARIANT_WORD(name, word, says) [name] = word,
        INVARIANTS(INVARIANT_WORD)
#undef INVARIANT_WORD
    };
    va_list args;
    if (sim->broken[0] || is_excused(sim, which))
        return;
    const int length = snprintf(sim->broken, sizeof sim->broken, "%s: ", names[which]);
    va_start(args, format);
    vsnprintf(sim->broken + length, sizeof sim->broken - (size_t)length, format, args);
    va_end(args);
    sim_log_tell(&sim->log, sim->now_ns, "BROKEN: %s", sim->broken);
}
