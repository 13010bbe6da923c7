/* memory_checks.c: what the dispatcher keeps has bounds, and all of it is freed. */
#include "tests/sim/common/sim_memory.h"
#include "tests/sim/prepd/invariants.h"

void check_memory_is_back(simulation *sim, int64_t blocks_before)
{
    const int64_t lost = sim_memory_blocks() - blocks_before;
    if (lost != 0)
        sim_break(sim, INV_MEMORY, "%lld blocks of memory were not freed", (long long)lost);
}
