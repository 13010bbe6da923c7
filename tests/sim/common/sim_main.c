/* SPDX-License-Identifier: Apache-2.0 */
/* sim_main.c: see sim_main.h. */
#include "tests/sim/common/sim_main.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/common/sim_jobs.h"

enum { USAGE_CODE = 64, MOST_JOBS = 256 };

static bool read_number(const char *text, uint64_t *out)
{
    char *end;
    if (!text || *text < '0' || *text > '9')
        return false;
    *out = strtoull(text, &end, 10);
    return *end == 0;
}

static bool read_hours(const char *text, double *out)
{
    char *end;
    if (!text)
        return false;
    *out = strtod(text, &end);
    return end != text && *end == 0 && *out > 0 && *out < 1e6;
}

static bool read_request(int argc, char **argv, sim_request *out)
{
    *out = (sim_request){.name = argv[0], .schedules = 0, .seed = 1, .jobs = 1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--trace") == 0)
            out->trace = true;
        else if (strcmp(argv[i], "--stop") == 0)
            out->stop = true;
        else if (strcmp(argv[i], "--schedules") == 0 && read_number(argv[i + 1], &out->schedules))
            i++;
        else if (strcmp(argv[i], "--seed") == 0 && read_number(argv[i + 1], &out->seed))
            i++;
        else if (strcmp(argv[i], "--jobs") == 0 && read_number(argv[i + 1], &out->jobs))
            i++;
        else if (strcmp(argv[i], "--hours") == 0 && read_hours(argv[i + 1], &out->hours))
            i++;
        else
            return false;
        if (out->schedules == 0 && strcmp(argv[i - 1], "--schedules") == 0)
            return false;
    }
    if (out->schedules == 0)
        out->schedules = out->hours > 0 ? UINT64_MAX : 1;
    return out->jobs > 0 && out->jobs <= MOST_JOBS && (!out->trace || out->jobs == 1);
}

/* In this process, where a debugger and a profiler see it. */
static sim_tally play_here(const sim_request *asked, const sim_program *program)
{
    sim_tally tally = {0};
    for (uint64_t i = 0; i < asked->schedules && !(asked->stop && tally.violations > 0); i++)
        sim_play_one(asked, program, asked->seed + i, &tally);
    return tally;
}

int sim_main_counting(int argc, char **argv, const sim_program *program)
{
    sim_request asked;
    if (!read_request(argc, argv, &asked)) {
        fprintf(stderr,
                "usage: %s --schedules N --seed S [--hours H] [--jobs J] [--stop] [--trace]\n",
                argv[0]);
        return USAGE_CODE;
    }
    const sim_tally played = asked.jobs == 1 && asked.hours <= 0 ? play_here(&asked, program)
                                                                 : sim_jobs_play(&asked, program);
    printf("hash of all events: %016" PRIx64 "\n", played.hash);
    printf("%" PRIu64 " schedules, %" PRIu64 " events, %" PRIu64 " violations\n", played.schedules,
           played.events, played.violations);
    return played.violations > 0;
}

int sim_main(int argc, char **argv, sim_play play)
{
    const sim_program program = {.play = play};
    return sim_main_counting(argc, argv, &program);
}
