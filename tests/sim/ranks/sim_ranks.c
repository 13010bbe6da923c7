/* SPDX-License-Identifier: Apache-2.0 */
/* sim_ranks.c: plays jobs of ranks in virtual time (README.md). */
#include "tests/sim/ranks/ranks_world.h"

int main(int argc, char **argv)
{
    return sim_main(argc, argv, world_play);
}
