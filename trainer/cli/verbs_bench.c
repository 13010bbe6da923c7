/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_bench.c: trainer bench ops | step: reads the arguments and calls trainer/bench. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "common/program/verb.h"
#include "trainer/bench/cases.h"
#include "trainer/cli/verbs.h"

/* What the verb cannot do without. */
static const conf_need needs[] = {
    {"model.path", NULL, "name a Hugging Face folder or a preset (trainer inspect lists them)"},
    {0},
};

typedef struct request {
    const char *what, *op, *layers, *ranks, *load, *settle, *document, *seconds, *rates;
    bool live;
} request;

/* Reads the arguments that are no options: what to bench, an op, and the flags of this verb. */
static status read_request(int argc, char **argv, request *asked)
{
    *asked = (request){.layers = "0",
                       .ranks = "1",
                       .load = "0",
                       .settle = "36",
                       .document = "0",
                       .seconds = "0.3"};
    const struct {
        const char *flag;
        const char **value;
    } flags[] = {{"--layers", &asked->layers},     {"--ranks", &asked->ranks},
                 {"--load", &asked->load},         {"--settle", &asked->settle},
                 {"--document", &asked->document}, {"--seconds", &asked->seconds},
                 {"--rates", &asked->rates}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        const char *given;
        TRY(verb_take(&argc, argv, flags[i].flag, &given));
        if (given)
            *flags[i].value = given;
    }
    const bool overwrite = verb_take_overwrite(&argc, argv);
    asked->live = verb_take_flag(&argc, argv, "--live");
    asked->what = argc > 1 ? argv[1] : NULL;
    asked->op = argc > 2 ? argv[2] : NULL;
    if (argc > 3)
        return FAIL(ST_USAGE, "bench: unexpected \"%s\" after \"%s\"; see trainer bench --help",
                    argv[3], argv[2]);
    if (!asked->what || (strcmp(asked->what, "ops") != 0 && strcmp(asked->what, "step") != 0))
        return FAIL(ST_USAGE,
                    "bench needs to know what to measure: ops or step; see trainer bench --help");
    return asked->rates ? verb_may_write(asked->rates, overwrite) : ST_OK;
}

static status read_depths(const char *text, int64_t *out, int *out_n)
{
    int count = 0;
    for (const char *at = text;; at++) {
        char *end;
        long long value = strtoll(at, &end, 10);
        if (end == at || value < 0 || value > 1000 || (*end && *end != ',') ||
            count == BENCH_DEPTHS)
            return FAIL(ST_USAGE,
                        "--layers: expected up to %d depths as N,N,.. (0: all layers), got \"%s\"",
                        BENCH_DEPTHS, text);
        out[count++] = value;
        at = end;
        if (!*at)
            break;
    }
    *out_n = count;
    return ST_OK;
}

static status keep_rates(const char *path, const rates *speeds)
{
    FILE *file = fopen(path, "w");
    if (!file)
        return FAIL_IN(ST_CANT_CREATE, path, "cannot create it: %s", strerror(errno));
    rates_write(speeds, file);
    if (fclose(file) != 0)
        return FAIL_IN(ST_IO, path, "write failed: %s", strerror(errno));
    return ST_OK;
}

static status ops(const conf *options, const request *asked)
{
    static const bench_row *const lists[] = {bench_products, NULL};
    rates measured = {.memory = 0};
    char *end;
    const bench_how how = {.only = asked->op, .seconds = strtod(asked->seconds, &end)};
    if (*end || !(how.seconds > 0.0))
        return FAIL(ST_USAGE, "--seconds: expected a time above 0, got \"%s\"", asked->seconds);
    TRY(bench_ops(options, lists, &how, &measured, stdout));
    return asked->rates ? keep_rates(asked->rates, &measured) : ST_OK;
}

static status steps(const conf *options, const request *asked)
{
    int64_t depths[BENCH_DEPTHS];
    int count;
    char *end;
    bench_depths how = {.live = asked->live};
    TRY(verb_number("--ranks", asked->ranks, 1, INT32_MAX, &how.ranks));
    TRY(verb_number("--settle", asked->settle, 1, 1000, &how.settle));
    TRY(verb_number("--document", asked->document, 0, 1048576, &how.document));
    how.load = strtod(asked->load, &end);
    if (*end || !(how.load >= 0.0))
        return FAIL(ST_USAGE,
                    "--load: expected the busiest expert's load over the mean, got \"%s\"",
                    asked->load);
    if (options->training_steps < 1)
        return FAIL(ST_CONFIG, "bench step: training.steps is 0; set it to the number of steps to "
                               "measure");
    TRY(read_depths(asked->layers, depths, &count));
    return bench_steps(options, depths, count, &how, stdout);
}

status verb_bench(int argc, char **argv)
{
    conf options;
    request asked;
    TRY(verb_load(&options, &argc, argv, needs));
    log_init("trainer", options.log_level, options.log_json);
    status st = read_request(argc, argv, &asked);
    if (st == ST_OK)
        st = strcmp(asked.what, "ops") == 0 ? ops(&options, &asked) : steps(&options, &asked);
    conf_done(&options);
    return st;
}
