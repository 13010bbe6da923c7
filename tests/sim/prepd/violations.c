/* violations.c: keeps the first thing that does not hold, in words. */
#include <stdarg.h>
#include <stdio.h>

#include "tests/sim/prepd/invariants.h"

void sim_break(simulation *sim, invariant which, const char *format, ...)
{
    static const char *const names[N_INVARIANTS] = {
#define INVARIANT_WORD(name, word, says) [name] = word,
        INVARIANTS(INVARIANT_WORD)
#undef INVARIANT_WORD
    };
    va_list args;
    if (sim->broken[0])
        return;
    const int length = snprintf(sim->broken, sizeof sim->broken, "%s: ", names[which]);
    va_start(args, format);
    vsnprintf(sim->broken + length, sizeof sim->broken - (size_t)length, format, args);
    va_end(args);
    sim_log_tell(&sim->log, sim->now_ns, "BROKEN: %s", sim->broken);
}
