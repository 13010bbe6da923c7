/* SPDX-License-Identifier: Apache-2.0 */
/* bench_device.c: times every op on a device, and compares the memory that a run takes with its
 * plan. tests/gpu runs it, and trainer/ops/kernels.md has its figures.
 *
 *   bench_device ops [OP,OP..] [--seconds S] [--ceilings C,P] [--rates FILE] OPTIONS
 *       as trainer bench ops, for every op of ops.def; --ceilings has the GB/s and TFLOP/s that an
 *       earlier process has measured
 *   bench_device count OPTIONS
 *       without a device: bytes and FLOPs of each case in bf16, and the least time that the limits
 *       of an H200 allow
 *   bench_device memory [--layers N] OPTIONS
 *       the memory that training.steps steps take, each part with its plan */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "common/program/verb.h"
#include "tests/bench/ops/memory_growth.h"
#include "tests/bench/ops/op_cases.h"

static const bench_row *const lists[] = {
    bench_products, bench_more_products, bench_layers, bench_rows,
    bench_update,   bench_routing,       NULL};

static status check_all_have_a_case(void)
{
    bool seen[BENCH_OPS] = {false};
    for (int i = 0; lists[i]; i++)
        for (const bench_row *row = lists[i]; row->op_name; row++)
            seen[row->op] = true;
#define OP(name)                                                                                   \
    if (!seen[BENCH_##name])                                                                       \
        return FAIL(ST_INTERNAL, "op " #name " of ops.def has no case in tests/bench/ops");
#include "trainer/ops/ops.def"
    return ST_OK;
}

/* Copy and product rates that were measured on one H200, in bytes/s and FLOP/s. */
static const bench_ceilings h200 = {.copy = 4.3e12, .product = 780e12};

static status count(const conf *options)
{
    const backend_vtable types = {.name = "counted", .act = DT_BF16, .acc = DT_F32};
    device dev = {.backend = &types};
    stream queue = {.dev = &dev};
    model_dims dims;
    bench_sizes sizes;
    TRY(bench_sizes_of(options, &dims, &sizes));
    for (int i = 0; lists[i]; i++)
        for (const bench_row *row = lists[i]; row->op_name; row++) {
            bench_case bench = {.queue = &queue, .sizes = &sizes, .counted = true};
            row->make(&bench);
            TRY(bench.st);
            const double copy_s = bench.bytes / h200.copy, compute_s = bench.flops / h200.product;
            printf("| %s | %s | %.2f | %.3f | %s | %.3f |\n", row->op_name, row->shape,
                   bench.bytes * 1e-9, bench.flops * 1e-12, compute_s > copy_s ? "product" : "copy",
                   1e3 * (compute_s > copy_s ? compute_s : copy_s));
        }
    return ST_OK;
}

static status ops(const conf *options, const char *only, const char *seconds, const char *limits,
                  const char *path)
{
    double copy, product;
    char rest;
    bench_ceilings ceilings;
    rates measured = {.memory = 0};
    bench_how how = {.only = only, .seconds = seconds ? atof(seconds) : 0.3};
    if (limits && (sscanf(limits, "%lf,%lf%c", &copy, &product, &rest) != 2 || !(copy > 0.0) ||
                   !(product > 0.0)))
        return FAIL(ST_USAGE,
                    "--ceilings: expected GB/s,TFLOP/s as an earlier run printed them, "
                    "got \"%s\"",
                    limits);
    if (limits) {
        ceilings = (bench_ceilings){.copy = copy * 1e9, .product = product * 1e12};
        how.ceilings = &ceilings;
    }
    TRY(bench_ops(options, lists, &how, &measured, stdout));
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!path)
        return ST_OK;
    if (file)
        rates_write(&measured, file);
    return file && fclose(file) == 0 ? ST_OK : FAIL_IN(ST_CANT_CREATE, path, "cannot write it");
}

static status run(int argc, char **argv, conf *options)
{
    const char *seconds, *limits, *path, *layers;
    int64_t depth = 0;
    const char *what = argv[0];
    TRY(verb_take(&argc, argv, "--seconds", &seconds));
    TRY(verb_take(&argc, argv, "--ceilings", &limits));
    TRY(verb_take(&argc, argv, "--rates", &path));
    TRY(verb_take(&argc, argv, "--layers", &layers));
    if (layers)
        TRY(verb_number("--layers", layers, 0, 1000, &depth));
    TRY(check_all_have_a_case());
    if (strcmp(what, "count") == 0)
        return count(options);
    if (strcmp(what, "memory") == 0)
        return bench_device_memory(options, depth, stdout);
    return ops(options, argc > 1 ? argv[1] : NULL, seconds, limits, path);
}

int main(int argc, char **argv)
{
    conf options;
    argc--;
    argv++;
    if (argc < 1 || (strcmp(argv[0], "ops") != 0 && strcmp(argv[0], "count") != 0 &&
                     strcmp(argv[0], "memory") != 0)) {
        fputs("bench_device ops | count | memory [--section.key VALUE ..]\n", stderr);
        return 64;
    }
    status st = verb_load(&options, &argc, argv, NULL);
    if (st == ST_OK) {
        log_init("bench_device", options.log_level, options.log_json);
        st = run(argc, argv, &options);
        conf_done(&options);
    }
    if (st != ST_OK)
        fprintf(stderr, "bench_device: %s\n", status_text());
    return status_exit_code(st);
}
