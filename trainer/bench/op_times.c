/* op_times.c: trainer bench ops: times every op at its real shapes and compares it with the
 * ceilings. */
#include <stdlib.h>
#include <string.h>

#include "trainer/bench/cases.h"
#include "trainer/report/speed.h"

typedef struct call {
    bench_op op;
    const bench_args *args;
} call;

static status run_call(stream *queue, const void *context)
{
    const call *timed = context;
    switch (timed->op) {
#define OP(name)                                                                                   \
    case BENCH_##name:                                                                             \
        return op_##name(queue, &timed->args->name);
#include "trainer/ops/ops.def"
    default:
        return FAIL(ST_INTERNAL, "bench: there is no op %d", (int)timed->op);
    }
}

enum { LOW_MAX = 128 };
static const double LOW = 0.8; /* the share of its ceiling that every op should reach */

/* FLOPs and seconds of the shapes that make up each rate, and the shapes that are slow. */
typedef struct bench_sums {
    double flops[RATE_KEYS], seconds[RATE_KEYS];
    int shapes, n_low; /* shapes that were timed, and those that reached less than LOW */
    struct {
        const bench_row *row;
        double share;
    } low[LOW_MAX];
} bench_sums;

/* The rate that a case belongs to; RATE_KEYS: none. The rate of experts comes from the load that
 * real routing has, and that of attention from whole rows, where attention matters: with packed
 * short documents it is about a hundredth of a step. */
static rate_key rate_of(const bench_row *row)
{
    static const struct {
        bench_op op;
        const char *shape;
        rate_key key;
    } attention[] = {
        {BENCH_attention_fwd, "text, whole rows", RATE_ATTENTION},
        {BENCH_attention_bwd, "text, whole rows", RATE_ATTENTION_BACKWARD},
        {BENCH_attention_bwd, "text, whole rows, any order", RATE_ATTENTION_ANY_ORDER},
        {BENCH_attention_bwd, "text, whole rows, ours", RATE_OWN_ATTENTION},
        {BENCH_attention_fwd, "vision", RATE_VISION_ATTENTION},
        {BENCH_attention_bwd, "vision", RATE_VISION_ATTENTION_BACKWARD},
        {BENCH_attention_bwd, "vision, any order", RATE_VISION_ATTENTION_ANY_ORDER},
        {BENCH_attention_bwd, "vision, ours", RATE_OWN_VISION_ATTENTION},
    };
    for (size_t i = 0; i < sizeof attention / sizeof *attention; i++)
        if (row->op == attention[i].op && strcmp(row->shape, attention[i].shape) == 0)
            return attention[i].key;
    switch (row->op) {
    case BENCH_gemm:
        return RATE_DENSE;
    case BENCH_grouped_gemm:
        return strstr(row->shape, "load 3") ? RATE_EXPERTS : RATE_KEYS;
    default:
        return RATE_KEYS;
    }
}

static status run_row(stream *queue, const bench_row *row, const bench_sizes *sizes,
                      const bench_ceilings *limit, double limit_s, bench_sums *sums, FILE *to)
{
    bench_case bench = {.queue = queue, .sizes = sizes, .st = ST_OK};
    double ns = 0.0;
    row->make(&bench);
    status st = bench.st;
    call timed = {.op = row->op, .args = &bench.args};
    if (st == ST_OK)
        st = speed_time(queue, run_call, &timed, limit_s, &ns);
    for (int i = 0; i < bench.n_held; i++)
        queue->dev->backend->release(queue->dev, bench.held[i]);
    if (st != ST_OK)
        return status_context(st, "bench of %s, %s", row->op_name, row->shape);
    rate_key key = rate_of(row);
    if (key != RATE_KEYS) {
        sums->flops[key] += bench.flops;
        sums->seconds[key] += ns * 1e-9;
    }
    /* The least time that the ceilings allow. */
    double floor_s = bench.bytes / limit->copy, compute_s = bench.flops / limit->product;
    floor_s = compute_s > floor_s ? compute_s : floor_s;
    double share = floor_s / (ns * 1e-9);
    sums->shapes++;
    if (share < LOW && sums->n_low < LOW_MAX) {
        sums->low[sums->n_low].row = row;
        sums->low[sums->n_low++].share = share;
    }
    fprintf(to, "%-17s %-27s %12.1f us %9.1f GB/s %9.2f TFLOP/s %6.1f %% of %s\n", row->op_name,
            row->shape, ns * 1e-3, bench.bytes / ns, bench.flops / ns * 1e-3, 100.0 * share,
            compute_s < floor_s ? "copy" : "product");
    return ST_OK;
}

static void print_low(const bench_sums *sums, FILE *to)
{
    fprintf(to, "%d of %d shapes reach %.0f %% of their ceiling%s\n", sums->shapes - sums->n_low,
            sums->shapes, 100.0 * LOW, sums->n_low ? "; these do not:" : "");
    for (int i = 0; i < sums->n_low; i++)
        fprintf(to, "  %-17s %-27s %6.1f %%\n", sums->low[i].row->op_name, sums->low[i].row->shape,
                100.0 * sums->low[i].share);
}

static const bench_row *const lists[] = {bench_products, bench_layers, bench_rows, bench_update,
                                         bench_routing};
enum { LISTS = sizeof lists / sizeof *lists };

status bench_ops_counted(const bench_sizes *shapes, const bench_ceilings *limit, FILE *to)
{
    const backend_vtable sizes = {.name = "counted", .act = DT_BF16, .acc = DT_F32};
    device dev = {.backend = &sizes};
    stream queue = {.dev = &dev};
    for (int i = 0; i < LISTS; i++)
        for (const bench_row *row = lists[i]; row->op_name; row++) {
            bench_case bench = {.queue = &queue, .sizes = shapes, .counted = true};
            row->make(&bench);
            TRY(bench.st);
            const double copy_s = bench.bytes / limit->copy,
                         compute_s = bench.flops / limit->product;
            fprintf(to, "| %s | %s | %.2f | %.3f | %s | %.3f |\n", row->op_name, row->shape,
                    bench.bytes * 1e-9, bench.flops * 1e-12,
                    compute_s > copy_s ? "product" : "copy",
                    1e3 * (compute_s > copy_s ? compute_s : copy_s));
        }
    return ST_OK;
}

/* Whether a list of names, separated by commas, has this one. */
static bool list_has(const char *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = list; (at = strstr(at, name)) != NULL; at += length)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == 0))
            return true;
    return false;
}

status bench_ops(stream *queue, const bench_sizes *sizes, const bench_ceilings *ceilings,
                 const char *only, double limit_s, rates *out, FILE *to)
{
    bench_sums sums = {.shapes = 0};
    bool seen[BENCH_OPS] = {false}, any = false;
    status first = ST_OK;
    for (int i = 0; i < LISTS; i++)
        for (const bench_row *row = lists[i]; row->op_name; row++) {
            seen[row->op] = true;
            if (only && !list_has(only, row->op_name))
                continue;
            any = true;
            status st = run_row(queue, row, sizes, ceilings, limit_s, &sums, to);
            if (st != ST_OK) { /* one failed case must not stop the others */
                fprintf(to, "%-17s %-27s %s\n", row->op_name, row->shape, status_text());
                first = first == ST_OK ? st : first;
            }
            fflush(to);
        }
#define OP(name)                                                                                   \
    if (!seen[BENCH_##name])                                                                       \
        return FAIL(ST_INTERNAL, "bench: op " #name " of ops.def has no case");
#include "trainer/ops/ops.def"
    if (!any)
        return FAIL(ST_USAGE, "bench ops: there is no op \"%s\"", only);
    print_low(&sums, to);
    out->of[RATE_COPY] = ceilings->copy;
    out->kind[RATE_COPY] = RATE_MEASURED;
    for (int k = 0; k < RATE_KEYS; k++)
        if (sums.seconds[k] > 0) {
            out->of[k] = sums.flops[k] / sums.seconds[k];
            out->kind[k] = RATE_MEASURED;
        }
    return first;
}
