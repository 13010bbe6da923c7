/* sim_main.c: see sim_main.h. */
#include "tests/sim/common/sim_main.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/common/sim_random.h"

enum { USAGE_CODE = 64 };

typedef struct request {
    uint64_t schedules, seed;
    bool trace;
} request;

static bool read_number(const char *text, uint64_t *out)
{
    char *end;
    if (!text || *text < '0' || *text > '9')
        return false;
    *out = strtoull(text, &end, 10);
    return *end == 0;
}

static bool read_request(int argc, char **argv, request *out)
{
    *out = (request){.schedules = 1, .seed = 1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--trace") == 0)
            out->trace = true;
        else if (strcmp(argv[i], "--schedules") == 0 && read_number(argv[i + 1], &out->schedules))
            i++;
        else if (strcmp(argv[i], "--seed") == 0 && read_number(argv[i + 1], &out->seed))
            i++;
        else
            return false;
    }
    return out->schedules > 0;
}

int sim_main(int argc, char **argv, sim_play play)
{
    request asked;
    uint64_t events = 0, violations = 0, hash = 0;
    if (!read_request(argc, argv, &asked)) {
        fprintf(stderr, "usage: %s --schedules N --seed S [--trace]\n", argv[0]);
        return USAGE_CODE;
    }
    for (uint64_t i = 0; i < asked.schedules; i++) {
        const uint64_t seed = asked.seed + i;
        const sim_played played = play(seed, asked.trace ? stdout : NULL);
        events += played.events;
        hash = sim_random_mix(hash ^ played.hash);
        if (!played.broken[0])
            continue;
        violations++;
        printf("broken: %s; its story: %s --schedules 1 --seed %" PRIu64 " --trace\n",
               played.broken, argv[0], seed);
    }
    printf("hash of all events: %016" PRIx64 "\n", hash);
    printf("%" PRIu64 " schedules, %" PRIu64 " events, %" PRIu64 " violations\n", asked.schedules,
           events, violations);
    return violations > 0;
}
