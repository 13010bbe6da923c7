/* SPDX-License-Identifier: Apache-2.0 */
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

status speed_time(stream *queue, speed_call call, const void *context, double limit_s,
                  double *out_ns)
{
    const backend_vtable *backend = queue->dev->backend;
    event *from = NULL, *to = NULL;
    double ns[CALLS_MOST];
    int count = 0;
    status st = ST_OK;
    TRY_OR(done, backend->event_new(queue->dev, &from));
    TRY_OR(done, backend->event_new(queue->dev, &to));
    TRY_OR(done, call(queue, context));
    TRY_OR(done, backend->wait(queue));
    const int64_t begin = clock_ns(); /* some devices have a clock that never advances */
    while (count < CALLS_MOST &&
           (count < CALLS_LEAST || (double)(clock_ns() - begin) < limit_s * 1e9)) {
        int64_t one;
        TRY_OR(done, backend->event_record(queue, from));
        TRY_OR(done, call(queue, context));
        TRY_OR(done, backend->event_record(queue, to));
        TRY_OR(done, backend->event_wait(queue->dev, to));
        TRY_OR(done, backend->event_ns(from, to, &one));
        ns[count++] = (double)one;
    }
    qsort(ns, (size_t)count, sizeof *ns, compare_reals);
    *out_ns = count % 2 ? ns[count / 2] : (ns[count / 2 - 1] + ns[count / 2]) / 2;
done:
    backend->event_free(&from);
    backend->event_free(&to);
    return st;
}

/* A float in (-1, 1) as the number type of this size. */
static void put_number(char *at, float value, size_t size)
{
    if (size == 8) {
        double wide = (double)value;
        memcpy(at, &wide, sizeof wide);
    } else if (size == 4) {
        memcpy(at, &value, sizeof value);
    } else {
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        uint16_t upper = (uint16_t)(bits >> 16);
        memcpy(at, &upper, sizeof upper);
    }
}

status speed_fill(stream *queue, void *dst, int64_t bytes, size_t size)
{
    const backend_vtable *backend = queue->dev->backend;
    int64_t chunk = bytes < CHUNK ? bytes : CHUNK;
    char *host = malloc((size_t)(chunk > 0 ? chunk : 1) * size);
    if (!host)
        return FAIL(ST_NO_MEMORY, "no memory for the random numbers that are timed with");
    rng_key key = rng_key_make(1, "bench");
    for (int64_t i = 0; i < chunk; i++)
        put_number(host + (size_t)i * size, (float)(2.0 * rng_uniform(key, (uint64_t)i) - 1.0),
                   size);
    status st = ST_OK;
    for (int64_t at = 0; at < bytes; at += chunk) {
        int64_t part = bytes - at < chunk ? bytes - at : chunk;
        TRY_OR(done, backend->to_device(queue, (char *)dst + (size_t)at * size, host,
                                        (size_t)part * size));
    }
    TRY_OR(done, backend->wait(queue)); /* the copies read `host` until then */
done:
    free(host);
    return st;
}

static gemm_args make_square(int64_t side, void *const matrices[3])
{
    return (gemm_args){.m = side,
                       .n = side,
                       .k = side,
                       .trans_b = true,
                       .alpha = 1.0,
                       .a = matrices[0],
                       .b = matrices[1],
                       .c = matrices[2],
                       .lda = side,
                       .ldb = side,
                       .ldc = side};
}

static double flops_of(int64_t side)
{
    return 2.0 * (double)side * (double)side * (double)side;
}

static status run_product(stream *queue, const void *context)
{
    return op_gemm(queue, context);
}

status speed_product(stream *queue, int64_t side, double limit_s, double *out)
{
    const backend_vtable *backend = queue->dev->backend;
    size_t act = st_dtype_size(backend->act);
    void *matrices[3] = {NULL};
    double ns;
    status st = ST_OK;
    for (int i = 0; i < 3; i++) {
        TRY_OR(done, backend->alloc(queue->dev, (size_t)(side * side) * act, &matrices[i]));
        TRY_OR(done, speed_fill(queue, matrices[i], side * side, act));
    }
    gemm_args args = make_square(side, matrices);
    TRY_OR(done, speed_time(queue, run_product, &args, limit_s, &ns));
    *out = flops_of(side) / (ns * 1e-9);
done:
    for (int i = 0; i < 3; i++)
        backend->release(queue->dev, matrices[i]);
    return st;
}

/* The best of several products, since other processes may use the cores too. Timed by the host's
 * clock; launching and waiting take no time worth counting on the CPU. */
static status cpu_product(stream *queue, double *out)
{
    enum { TIMES = 40 };
    const backend_vtable *backend = queue->dev->backend;
    const size_t bytes = (size_t)SPEED_CPU_SIDE * SPEED_CPU_SIDE * st_dtype_size(backend->act);
    void *matrices[3] = {NULL};
    status st = ST_OK;
    for (int i = 0; i < 3; i++)
        TRY_OR(done, backend->alloc(queue->dev, bytes, &matrices[i]));
    double best = 0.0;
    const gemm_args args = make_square(SPEED_CPU_SIDE, matrices);
    for (int i = 0; i < TIMES; i++) {
        int64_t start = clock_ns();
        TRY_OR(done, op_gemm(queue, &args));
        TRY_OR(done, backend->wait(queue));
        double rate = flops_of(SPEED_CPU_SIDE) / ((double)(clock_ns() - start) * 1e-9);
        if (rate > best)
            best = rate;
    }
    *out = best;
done:
    for (int i = 0; i < 3; i++)
        backend->release(queue->dev, matrices[i]);
    return st;
}

bool speed_is_gpu(const device *dev)
{
    return strcmp(dev->backend->name, "cuda") == 0;
}

double speed_known(const device *dev)
{
    const char *name = dev->description;
    const bool slower =
        strstr(name, "PCIe") || strstr(name, "NVL"); /* variants with a lower peak */
    const bool hopper = strstr(name, "H200") || strstr(name, "H100");
    return hopper && !slower ? rates_h200().of[RATE_PEAK] : 0.0;
}

static status measure_peak(stream *queue, double *out)
{
    const bool gpu = speed_is_gpu(queue->dev);
    const int side = gpu ? SPEED_GPU_SIDE : SPEED_CPU_SIDE;
    status st = gpu ? speed_product(queue, side, PEAK_S, out) : cpu_product(queue, out);
    if (st == ST_NO_MEMORY && gpu) { /* a run must not fail for want of this figure */
        log_warn("there will be no mfu: metrics.peak_tflops is 0, this device is not known by its "
                 "name, and there is no memory left to measure its peak: %s",
                 status_text());
        status_clear();
        *out = 0.0;
        return ST_OK;
    }
    TRY(st);
    log_info("mfu is a share of %.3f TFLOP/s, measured here on a matrix product of %d x %d x %d",
             *out * 1e-12, side, side, side);
    return ST_OK;
}

status speed_peak(stream *queue, double tflops, peak_rate *out)
{
    *out = (peak_rate){.flops = tflops > 0.0 ? tflops * 1e12 : speed_known(queue->dev)};
    if (tflops > 0.0)
        return ST_OK;
    if (out->flops == 0.0) {
        TRY(measure_peak(queue, &out->flops));
        out->told = out->flops == 0.0;
        out->measured = !speed_is_gpu(queue->dev);
        out->tries_left = TRIES;
        return ST_OK;
    }
    log_info("mfu is a share of %.0f TFLOP/s, the maker's figure for dense bf16",
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

status speed_share(stream *queue, double reached, peak_rate *inout, double *out)
{
    if (reached > LIKELY * inout->flops && inout->measured && inout->tries_left > 0) {
        double again;
        inout->tries_left--; /* one for a line, since load comes and goes */
        TRY(measure_peak(queue, &again));
        inout->flops = again > inout->flops ? again : inout->flops;
    }
    *out = reached <= inout->flops ? reached / inout->flops : NAN;
    if (isnan(*out))
        tell_unknown(reached, inout);
    return ST_OK;
}
