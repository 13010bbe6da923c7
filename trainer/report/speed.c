/* speed.c: times calls on a device, and finds the peak that mfu is a share of. */
#include "trainer/report/speed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/compare.h"
#include "common/program/log.h"
#include "common/base/rng.h"
#include "trainer/ops/table.h"
#include "trainer/plan/rates.h"

enum {
    CALLS_LEAST = 5,
    CALLS_MOST = 1000,
    TRIES = 4,      /* how often a peak that was too low is measured again */
    CHUNK = 1 << 18 /* random numbers that are drawn; larger arrays repeat them */
};
static const double PEAK_S = 0.5; /* seconds for measuring the peak */
/* The share of a measured peak above which it is doubted: steps are not products alone. */
static const double LIKELY = 0.8;

status speed_time(stream *s, speed_call call, const void *context, double limit_s, double *out_ns)
{
    const backend_vtable *v = s->dev->backend;
    event *from = NULL, *to = NULL;
    double ns[CALLS_MOST];
    int n = 0;
    status st = ST_OK;
    TRY_OR(done, v->event_new(s->dev, &from));
    TRY_OR(done, v->event_new(s->dev, &to));
    TRY_OR(done, call(s, context));
    TRY_OR(done, v->wait(s));
    const int64_t begin = clock_ns(); /* some devices have a clock that never advances */
    while (n < CALLS_MOST && (n < CALLS_LEAST || (double)(clock_ns() - begin) < limit_s * 1e9)) {
        int64_t one;
        TRY_OR(done, v->event_record(s, from));
        TRY_OR(done, call(s, context));
        TRY_OR(done, v->event_record(s, to));
        TRY_OR(done, v->event_wait(s->dev, to));
        TRY_OR(done, v->event_ns(from, to, &one));
        ns[n++] = (double)one;
    }
    qsort(ns, (size_t)n, sizeof *ns, compare_reals);
    *out_ns = n % 2 ? ns[n / 2] : (ns[n / 2 - 1] + ns[n / 2]) / 2;
done:
    v->event_free(&from);
    v->event_free(&to);
    return st;
}

/* A float in (-1, 1) as the number type of this size. */
static void put_number(char *at, float x, size_t size)
{
    if (size == 8) {
        double wide = (double)x;
        memcpy(at, &wide, sizeof wide);
    } else if (size == 4) {
        memcpy(at, &x, sizeof x);
    } else {
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        uint16_t upper = (uint16_t)(bits >> 16);
        memcpy(at, &upper, sizeof upper);
    }
}

status speed_fill(stream *s, void *dst, int64_t n, size_t size)
{
    const backend_vtable *v = s->dev->backend;
    int64_t chunk = n < CHUNK ? n : CHUNK;
    char *host = malloc((size_t)(chunk > 0 ? chunk : 1) * size);
    if (!host)
        return FAIL(ST_NO_MEMORY, "no memory for the random numbers that are timed with");
    rng_key key = rng_key_make(1, "bench");
    for (int64_t i = 0; i < chunk; i++)
        put_number(host + (size_t)i * size, (float)(2.0 * rng_uniform(key, (uint64_t)i) - 1.0),
                   size);
    status st = ST_OK;
    for (int64_t at = 0; at < n; at += chunk) {
        int64_t part = n - at < chunk ? n - at : chunk;
        TRY_OR(done, v->to_device(s, (char *)dst + (size_t)at * size, host, (size_t)part * size));
    }
    TRY_OR(done, v->wait(s)); /* the copies read `host` until then */
done:
    free(host);
    return st;
}

static gemm_args make_square(int64_t side, void *const m[3])
{
    return (gemm_args){.m = side,
                       .n = side,
                       .k = side,
                       .trans_b = true,
                       .alpha = 1.0,
                       .a = m[0],
                       .b = m[1],
                       .c = m[2],
                       .lda = side,
                       .ldb = side,
                       .ldc = side};
}

static double flops_of(int64_t side)
{
    return 2.0 * (double)side * (double)side * (double)side;
}

static status run_product(stream *s, const void *context)
{
    return op_gemm(s, context);
}

status speed_product(stream *s, int64_t side, double limit_s, double *out)
{
    const backend_vtable *v = s->dev->backend;
    size_t act = st_dtype_size(v->act);
    void *m[3] = {NULL};
    double ns;
    status st = ST_OK;
    for (int i = 0; i < 3; i++) {
        TRY_OR(done, v->alloc(s->dev, (size_t)(side * side) * act, &m[i]));
        TRY_OR(done, speed_fill(s, m[i], side * side, act));
    }
    gemm_args a = make_square(side, m);
    TRY_OR(done, speed_time(s, run_product, &a, limit_s, &ns));
    *out = flops_of(side) / (ns * 1e-9);
done:
    for (int i = 0; i < 3; i++)
        v->release(s->dev, m[i]);
    return st;
}

/* The best of several products, since other processes may use the cores too. Timed by the host's
 * clock; launching and waiting take no time worth counting on the CPU. */
static status cpu_product(stream *s, double *out)
{
    enum { TIMES = 40 };
    const backend_vtable *v = s->dev->backend;
    const size_t bytes = (size_t)SPEED_CPU_SIDE * SPEED_CPU_SIDE * st_dtype_size(v->act);
    void *m[3] = {NULL};
    status st = ST_OK;
    for (int i = 0; i < 3; i++)
        TRY_OR(done, v->alloc(s->dev, bytes, &m[i]));
    double best = 0.0;
    const gemm_args a = make_square(SPEED_CPU_SIDE, m);
    for (int i = 0; i < TIMES; i++) {
        int64_t start = clock_ns();
        TRY_OR(done, op_gemm(s, &a));
        TRY_OR(done, v->wait(s));
        double rate = flops_of(SPEED_CPU_SIDE) / ((double)(clock_ns() - start) * 1e-9);
        if (rate > best)
            best = rate;
    }
    *out = best;
done:
    for (int i = 0; i < 3; i++)
        v->release(s->dev, m[i]);
    return st;
}

bool speed_is_gpu(const device *d)
{
    return strcmp(d->backend->name, "cuda") == 0;
}

double speed_known(const device *d)
{
    const char *name = d->description;
    const bool slower =
        strstr(name, "PCIe") || strstr(name, "NVL"); /* variants with a lower peak */
    const bool hopper = strstr(name, "H200") || strstr(name, "H100");
    return hopper && !slower ? rates_h200().of[RATE_PEAK] : 0.0;
}

static status measure_peak(stream *s, double *out)
{
    const bool gpu = speed_is_gpu(s->dev);
    const int side = gpu ? SPEED_GPU_SIDE : SPEED_CPU_SIDE;
    status st = gpu ? speed_product(s, side, PEAK_S, out) : cpu_product(s, out);
    if (st == ST_NO_MEMORY && gpu) { /* a run must not fail for want of this figure */
        log_warn("there will be no mfu: metrics.peak_tflops is 0, this device is not known by its "
                 "name, and there is no memory left to measure its peak: %s",
                 status_text());
        status_clear();
        *out = 0.0;
        return ST_OK;
    }
    TRY(st);
    log_info("mfu is a share of %.3f TFLOP/s, measured on a %d x %d x %d product here",
             *out * 1e-12, side, side, side);
    return ST_OK;
}

status speed_peak(stream *s, double tflops, peak_rate *out)
{
    *out = (peak_rate){.flops = tflops > 0.0 ? tflops * 1e12 : speed_known(s->dev)};
    if (tflops > 0.0)
        return ST_OK;
    if (out->flops == 0.0) {
        TRY(measure_peak(s, &out->flops));
        out->told = out->flops == 0.0;
        out->measured = !speed_is_gpu(s->dev);
        out->tries_left = TRIES;
        return ST_OK;
    }
    log_info("mfu is a share of %.0f TFLOP/s, the maker's figure of dense bf16",
             out->flops * 1e-12);
    return ST_OK;
}

static void tell_unknown(double reached, peak_rate *inout)
{
    if (!inout->told)
        log_warn("mfu is not known: this run does %.3f TFLOP/s, above the peak of %.3f %s",
                 reached * 1e-12, inout->flops * 1e-12,
                 inout->measured ? "that could be measured here beside other load"
                                 : "that it would be a share of (metrics.peak_tflops)");
    inout->told = true;
}

status speed_share(stream *s, double reached, peak_rate *inout, double *out)
{
    if (reached > LIKELY * inout->flops && inout->measured && inout->tries_left > 0) {
        double again;
        inout->tries_left--; /* one for a line, since load comes and goes */
        TRY(measure_peak(s, &again));
        inout->flops = again > inout->flops ? again : inout->flops;
    }
    *out = reached <= inout->flops ? reached / inout->flops : NAN;
    if (isnan(*out))
        tell_unknown(reached, inout);
    return ST_OK;
}
