/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: the simulator of the dispatcher. `--stats` prints what the schedules held; `--pairs`
 * fails if a kind of fault has not come in each phase; `--thousand` plays schedules of 128 daemons;
 * with `--real-every N` one schedule in N has real rows, instead of one in a hundred. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/sim/prepd/play.h"

static sim_stats stats;
enum { REAL_EVERY = 100 };
static sim_choice choice = {.real_every = REAL_EVERY};
_Static_assert(sizeof stats % sizeof(uint64_t) == 0, "sim_main_counting adds up its words");

static sim_played play(uint64_t seed, FILE *trace)
{
    return play_schedule(seed, &choice, trace, &stats);
}

/* The most memory that one process had, in MiB. */
static long most_memory(void)
{
    struct rusage self, children;
    getrusage(RUSAGE_SELF, &self);
    getrusage(RUSAGE_CHILDREN, &children);
    return (self.ru_maxrss > children.ru_maxrss ? self.ru_maxrss : children.ru_maxrss) / 1024;
}

static double cpu_seconds(int whose)
{
    struct rusage used;
    getrusage(whose, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

/* Takes a word out of the command line. */
static bool take_word(int *argc, char **argv, const char *word)
{
    for (int i = 1; i < *argc; i++)
        if (strcmp(argv[i], word) == 0) {
            memmove(argv + i, argv + i + 1, (size_t)((*argc)-- - i) * sizeof *argv);
            return true;
        }
    return false;
}

/* Takes a word and the number after it out of the command line. *inout is left alone where the word
 * does not stand there with a number above 0. */
static void take_number(int *argc, char **argv, const char *word, uint64_t *inout)
{
    for (int i = 1; i + 1 < *argc; i++) {
        const uint64_t number = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], word) != 0 || number == 0)
            continue;
        *inout = number;
        memmove(argv + i, argv + i + 2, (size_t)((*argc -= 2) - i) * sizeof *argv);
        return;
    }
}

int main(int argc, char **argv)
{
    char words[64] = "";
    const sim_program program = {play, (uint64_t *)&stats, sizeof stats / sizeof(uint64_t), words};
    const bool shown = take_word(&argc, argv, "--stats"), pairs = take_word(&argc, argv, "--pairs");
    choice.thousand = take_word(&argc, argv, "--thousand");
    take_number(&argc, argv, "--real-every", &choice.real_every);
    if (choice.thousand)
        snprintf(words, sizeof words, " --thousand");
    else if (choice.real_every != REAL_EVERY)
        snprintf(words, sizeof words, " --real-every %" PRIu64, choice.real_every);
    static char told[BUFSIZ]; /* no block of memory that a schedule would take */
    setvbuf(stdout, told, _IOFBF, sizeof told);
    int code = sim_main_counting(argc, argv, &program);
    if (shown)
        stats_print(&stats, cpu_seconds(RUSAGE_SELF) + cpu_seconds(RUSAGE_CHILDREN), most_memory(),
                    stderr);
    if (pairs && stats_empty_pairs(&stats, stderr) > 0 && code == 0)
        code = 1;
    return code;
}
