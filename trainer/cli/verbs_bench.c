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
    const char *what, *op, *layers, *ranks, *load, *seconds, *rates;
    bool live, counted;
} request;

/* Reads the arguments that are no options: what to bench, an op, and the flags of this verb. */
static status read_request(int argc, char **argv, request *q)
{
    *q = (request){.layers = "0", .ranks = "1", .load = "0", .seconds = "0.3"};
    const struct {
        const char *flag;
        const char **value;
    } flags[] = {{"--layers", &q->layers},
                 {"--ranks", &q->ranks},
                 {"--load", &q->load},
                 {"--seconds", &q->seconds},
                 {"--rates", &q->rates}};
    for (size_t f = 0; f < sizeof flags / sizeof *flags; f++) {
        const char *given;
        TRY(verb_take(&argc, argv, flags[f].flag, &given));
        if (given)
            *flags[f].value = given;
    }
    const bool overwrite = verb_take_overwrite(&argc, argv);
    q->live = verb_take_flag(&argc, argv, "--live");
    q->counted = verb_take_flag(&argc, argv, "--count");
    q->what = argc > 1 ? argv[1] : NULL;
    q->op = argc > 2 ? argv[2] : NULL;
    if (argc > 3)
        return FAIL(ST_USAGE, "bench: unexpected \"%s\" after \"%s\"; see trainer bench --help",
                    argv[3], argv[2]);
    if (!q->what || (strcmp(q->what, "ops") != 0 && strcmp(q->what, "step") != 0 &&
                     strcmp(q->what, "memory") != 0))
        return FAIL(ST_USAGE, "bench needs to know what to measure: ops, step or memory; see "
                              "trainer bench --help");
    return q->rates ? verb_may_write(q->rates, overwrite) : ST_OK;
}

static status read_depths(const char *text, int64_t *out, int *out_n)
{
    int n = 0;
    for (const char *p = text;; p++) {
        char *end;
        long long v = strtoll(p, &end, 10);
        if (end == p || v < 0 || v > 1000 || (*end && *end != ',') || n == DEPTHS)
            return FAIL(ST_USAGE,
                        "--layers: expected up to %d depths as N,N,.. (0: all layers), got \"%s\"",
                        DEPTHS, text);
        out[n++] = v;
        p = end;
        if (!*p)
            break;
    }
    *out_n = n;
    return ST_OK;
}

static status keep_rates(const char *path, const rates *r)
{
    FILE *f = fopen(path, "w");
    if (!f)
        return FAIL_IN(ST_CANT_CREATE, path, "cannot create it: %s", strerror(errno));
    rates_write(r, f);
    if (fclose(f) != 0)
        return FAIL_IN(ST_IO, path, "write failed: %s", strerror(errno));
    return ST_OK;
}

static status ops(const conf *c, const request *q)
{
    device *dev = NULL;
    stream *s = NULL;
    model_dims d;
    bench_ceilings ceilings;
    char *end;
    double seconds = strtod(q->seconds, &end);
    status st = ST_OK;
    if (*end || !(seconds > 0.0))
        return FAIL(ST_USAGE, "--seconds: expected a time above 0, got \"%s\"", q->seconds);
    TRY(dims_load(c->model_path, &d));
    if (d.vision.depth == 0 || d.text.experts == 0)
        return FAIL(ST_CONFIG,
                    "bench ops: %s has no vision tower or no experts, so not every op "
                    "has a shape",
                    c->model_path);
    device_options o = {.threads = (int)c->training_threads,
                        .attention = c->training_attention,
                        .deterministic = c->training_deterministic};
    bench_sizes z = {.dims = &d,
                     .tokens = c->training_seq_len * c->training_local_batch_size,
                     .row = c->training_seq_len,
                     .frame = FRAME,
                     .document = c->bench_document ? c->bench_document : 340};
    /* Rows of VQAv2 have nearly four patches per token. */
    z.patches = z.tokens * 15 / 4 / 4 * 4;
    if (q->counted) /* copy and product rates measured on one H200, in bytes/s and FLOP/s */
        return bench_ops_counted(&z, &(bench_ceilings){.copy = 4.3e12, .product = 780e12}, stdout);
    TRY_OR(done, device_open(c->training_backend, &o, &dev));
    TRY_OR(done, dev->backend->stream_new(dev, &s));
    printf("device: %s\nmodel: %s  tokens: %lld  patches: %lld\n", dev->description,
           escape_text(d.name).text, (long long)z.tokens, (long long)z.patches);
    TRY_OR(done, bench_ceilings_measure(s, &ceilings));
    bench_ceilings_print(&ceilings, stdout);
    rates measured = {.memory = 0};
    snprintf(measured.source, sizeof measured.source, "%.160s, %s", dev->description, d.name);
    TRY_OR(done, bench_ops(s, &z, &ceilings, q->op, seconds, &measured, stdout));
    if (q->rates)
        st = keep_rates(q->rates, &measured);
done:
    if (s)
        dev->backend->stream_free(&s);
    device_close(&dev);
    return st;
}

static status steps(const conf *c, const request *q)
{
    int64_t depths[DEPTHS];
    int n;
    char *end;
    long long ranks = strtoll(q->ranks, &end, 10);
    if (*end || ranks < 1)
        return FAIL(ST_USAGE, "--ranks: expected a number of at least 1, got \"%s\"", q->ranks);
    double load = strtod(q->load, &end);
    if (*end || !(load >= 0.0))
        return FAIL(ST_USAGE,
                    "--load: expected the busiest expert's load over the mean, got \"%s\"",
                    q->load);
    if (c->training_steps < 1)
        return FAIL(ST_CONFIG,
                    "bench %s: training.steps is 0; set it to the number of steps to "
                    "measure",
                    q->what);
    TRY(read_depths(q->layers, depths, &n));
    if (strcmp(q->what, "memory") == 0)
        return n == 1 ? bench_device_memory(c, depths[0], stdout)
                      : FAIL(ST_USAGE, "bench memory takes a single depth: --layers N");
    return bench_steps(c, depths, n, ranks, load, q->live, stdout);
}

status verb_bench(int argc, char **argv)
{
    conf c;
    request q;
    TRY(verb_load(&c, &argc, argv, needs));
    log_init("trainer", c.log_level, c.log_json);
    status st = read_request(argc, argv, &q);
    if (st == ST_OK)
        st = strcmp(q.what, "ops") == 0 ? ops(&c, &q) : steps(&c, &q);
    conf_done(&c);
    return st;
}
