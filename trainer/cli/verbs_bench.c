/* verbs_bench.c: trainer bench ops | step | memory: reads the arguments and calls trainer/bench. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "common/program/verb.h"
#include "common/base/visible.h"
#include "trainer/bench/bench.h"
#include "trainer/cli/verbs.h"
#include "trainer/ops/open.h"

enum { DEPTHS = 8, FRAME = 1200 /* patches of a 640 x 480 picture */ };

/* What the verb cannot do without. */
static const conf_need needs[] = {
    {"model.path", NULL, "name a Hugging Face folder or a preset (trainer inspect lists them)"},
    {0},
};

typedef struct request {
    const char *what, *op, *layers, *ranks, *load, *settle, *seconds, *rates, *ceilings;
    bool live, counted;
} request;

/* Reads the arguments that are no options: what to bench, an op, and the flags of this verb. */
static status read_request(int argc, char **argv, request *asked)
{
    *asked = (request){.layers = "0", .ranks = "1", .load = "0", .settle = "36", .seconds = "0.3"};
    const struct {
        const char *flag;
        const char **value;
    } flags[] = {{"--layers", &asked->layers},    {"--ranks", &asked->ranks},
                 {"--load", &asked->load},        {"--settle", &asked->settle},
                 {"--seconds", &asked->seconds},  {"--rates", &asked->rates},
                 {"--ceilings", &asked->ceilings}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        const char *given;
        TRY(verb_take(&argc, argv, flags[i].flag, &given));
        if (given)
            *flags[i].value = given;
    }
    const bool overwrite = verb_take_overwrite(&argc, argv);
    asked->live = verb_take_flag(&argc, argv, "--live");
    asked->counted = verb_take_flag(&argc, argv, "--count");
    asked->what = argc > 1 ? argv[1] : NULL;
    asked->op = argc > 2 ? argv[2] : NULL;
    if (argc > 3)
        return FAIL(ST_USAGE, "bench: unexpected \"%s\" after \"%s\"; see trainer bench --help",
                    argv[3], argv[2]);
    if (!asked->what || (strcmp(asked->what, "ops") != 0 && strcmp(asked->what, "step") != 0 &&
                         strcmp(asked->what, "memory") != 0))
        return FAIL(ST_USAGE, "bench needs to know what to measure: ops, step or memory; see "
                              "trainer bench --help");
    return asked->rates ? verb_may_write(asked->rates, overwrite) : ST_OK;
}

static status read_depths(const char *text, int64_t *out, int *out_n)
{
    int count = 0;
    for (const char *at = text;; at++) {
        char *end;
        long long value = strtoll(at, &end, 10);
        if (end == at || value < 0 || value > 1000 || (*end && *end != ',') || count == DEPTHS)
            return FAIL(ST_USAGE,
                        "--layers: expected up to %d depths as N,N,.. (0: all layers), got \"%s\"",
                        DEPTHS, text);
        out[count++] = value;
        at = end;
        if (!*at)
            break;
    }
    *out_n = count;
    return ST_OK;
}

/* The ceilings that another process has measured, "GB/s,TFLOP/s", or those of this one. */
static status find_ceilings(const request *asked, stream *queue, bench_ceilings *out)
{
    if (!asked->ceilings) {
        TRY(bench_ceilings_measure(queue, out));
        bench_ceilings_print(out, stdout);
        return ST_OK;
    }
    double copy, product;
    char rest;
    if (sscanf(asked->ceilings, "%lf,%lf%c", &copy, &product, &rest) != 2 || !(copy > 0.0) ||
        !(product > 0.0))
        return FAIL(ST_USAGE,
                    "--ceilings: expected GB/s,TFLOP/s as an earlier run measured them, got \"%s\"",
                    asked->ceilings);
    *out = (bench_ceilings){.copy = copy * 1e9, .product = product * 1e12};
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
    device *dev = NULL;
    stream *queue = NULL;
    model_dims dims;
    bench_ceilings ceilings;
    char *end;
    double seconds = strtod(asked->seconds, &end);
    status st = ST_OK;
    if (*end || !(seconds > 0.0))
        return FAIL(ST_USAGE, "--seconds: expected a time above 0, got \"%s\"", asked->seconds);
    TRY(dims_load(options->model_path, &dims));
    if (dims.vision.depth == 0 || dims.text.experts == 0)
        return FAIL(ST_CONFIG,
                    "bench ops: %s has no vision tower or no experts, so not every op "
                    "has a shape",
                    options->model_path);
    device_options how = {.threads = (int)options->training_threads,
                          .attention = options->training_attention,
                          .experts = options->training_experts,
                          /* cases that may do without it say so */
                          .deterministic = true};
    bench_sizes sizes = {.dims = &dims,
                         .tokens = options->training_seq_len * options->training_local_batch_size,
                         .row = options->training_seq_len,
                         .frame = FRAME,
                         .document = options->bench_document ? options->bench_document : 340};
    /* Rows of VQAv2 have nearly four patches per token. */
    sizes.patches = sizes.tokens * 15 / 4 / 4 * 4;
    if (asked->counted) /* copy and product rates measured on one H200, in bytes/s and FLOP/s */
        return bench_ops_counted(&sizes, &(bench_ceilings){.copy = 4.3e12, .product = 780e12},
                                 stdout);
    TRY_OR(done, device_open(options->training_backend, &how, &dev));
    TRY_OR(done, dev->backend->stream_new(dev, &queue));
    printf("device: %s\nmodel: %s  tokens: %lld  patches: %lld\n", dev->description,
           escape_text(dims.name).text, (long long)sizes.tokens, (long long)sizes.patches);
    TRY_OR(done, find_ceilings(asked, queue, &ceilings));
    rates measured = {.memory = 0};
    snprintf(measured.source, sizeof measured.source, "%.160s, %s", dev->description, dims.name);
    TRY_OR(done, bench_ops(queue, &sizes, &ceilings, asked->op, seconds, &measured, stdout));
    if (asked->rates)
        st = keep_rates(asked->rates, &measured);
done:
    if (queue)
        dev->backend->stream_free(&queue);
    device_close(&dev);
    return st;
}

static status steps(const conf *options, const request *asked)
{
    int64_t depths[DEPTHS];
    int count;
    char *end;
    bench_how how = {.live = asked->live};
    TRY(verb_number("--ranks", asked->ranks, 1, INT32_MAX, &how.ranks));
    TRY(verb_number("--settle", asked->settle, 1, 1000, &how.settle));
    how.load = strtod(asked->load, &end);
    if (*end || !(how.load >= 0.0))
        return FAIL(ST_USAGE,
                    "--load: expected the busiest expert's load over the mean, got \"%s\"",
                    asked->load);
    if (options->training_steps < 1)
        return FAIL(ST_CONFIG,
                    "bench %s: training.steps is 0; set it to the number of steps to "
                    "measure",
                    asked->what);
    TRY(read_depths(asked->layers, depths, &count));
    if (strcmp(asked->what, "memory") == 0)
        return count == 1 ? bench_device_memory(options, depths[0], stdout)
                          : FAIL(ST_USAGE, "bench memory takes a single depth: --layers N");
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
