/* main.c: the simulator of the dispatcher. `--stats` prints what the schedules held. */
#include <string.h>
#include <time.h>

#include "tests/sim/prepd/play.h"

static sim_stats stats;

static sim_played play(uint64_t seed, FILE *trace)
{
    return play_schedule(seed, trace, &stats);
}

int main(int argc, char **argv)
{
    bool shown = false;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--stats") == 0) {
            shown = true;
            memmove(argv + i, argv + i + 1, (size_t)(argc-- - i) * sizeof *argv);
        }
    const clock_t began = clock();
    const int code = sim_main(argc, argv, play);
    stats.seconds = (double)(clock() - began) / CLOCKS_PER_SEC;
    if (shown)
        stats_print(&stats, stderr);
    return code;
}
