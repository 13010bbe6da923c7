/* SPDX-License-Identifier: Apache-2.0 */
/* op_times.c: trainer bench ops: measures the ceilings of a device, times ops at real shapes, and
 * compares the two. */
#include <stdlib.h>
#include <string.h>

#include "common/base/words.h"
#include "trainer/bench/cases.h"
#include "trainer/ops/open.h"
#include "trainer/report/speed.h"

enum { GPU_COPY_MIB = 2048 /* many times the L2 cache */, CPU_COPY_MIB = 64 };
static const double CEILING_S = 0.5;

typedef struct copy_job {
    void *to, *from;
    size_t bytes;
} copy_job;

static status run_copy(stream *queue, const void *context)
{
    const copy_job *job = context;
    return queue->dev->backend->copy(queue, job->to, job->from, job->bytes);
}

static status measure_copy(stream *queue, int64_t bytes, double *out)
{
    const backend_vtable *backend = queue->dev->backend;
    copy_job job = {.bytes = (size_t)bytes};
    double ns;
    status st = ST_OK;
    TRY_OR(done, backend->alloc(queue->dev, job.bytes, &job.from));
    TRY_OR(done, backend->alloc(queue->dev, job.bytes, &job.to));
    TRY_OR(done, speed_fill(queue, job.from, bytes / 4, sizeof(float)));
    TRY_OR(done, speed_time(queue, run_copy, &job, CEILING_S, &ns));
    *out = 2.0 * (double)bytes / (ns * 1e-9);
done:
    backend->release(queue->dev, job.from);
    backend->release(queue->dev, job.to);
    return st;
}

status bench_ceilings_measure(stream *queue, bench_ceilings *out)
{
    const bool gpu = speed_is_gpu(queue->dev);
    bench_ceilings ceilings = {.side = gpu ? SPEED_GPU_SIDE : SPEED_CPU_SIDE,
                               .bytes = (int64_t)(gpu ? GPU_COPY_MIB : CPU_COPY_MIB) << 20};
    TRY(measure_copy(queue, ceilings.bytes, &ceilings.copy));
    TRY(speed_product(queue, ceilings.side, CEILING_S, &ceilings.product));
    *out = ceilings;
    return ST_OK;
}

void bench_ceilings_print(const bench_ceilings *ceilings, FILE *to)
{
    fprintf(to,
            "ceilings: copy of %lld MiB %.1f GB/s read and written, product of %lld^3 %.2f "
            "TFLOP/s\n",
            (long long)(ceilings->bytes >> 20), ceilings->copy * 1e-9, (long long)ceilings->side,
            ceilings->product * 1e-12);
}

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

enum {
    LOW_MAX = 128,
    FRAME = 1200,  /* patches of a 640 x 480 picture */
    DOCUMENT = 340 /* tokens of a packed document of VQAv2, about */
};
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

/* Whether a list of names, separated by commas, has this one. */
static bool list_has(const char *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = list; (at = strstr(at, name)) != NULL; at += length)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == 0))
            return true;
    return false;
}

status bench_sizes_of(const conf *options, model_dims *out_dims, bench_sizes *out)
{
    TRY(dims_load(options->model_path, out_dims));
    if (out_dims->vision.depth == 0 || out_dims->text.experts == 0)
        return FAIL(ST_CONFIG,
                    "bench ops: %s has no vision tower or no experts, so not every op has a shape",
                    options->model_path);
    *out = (bench_sizes){.dims = out_dims,
                         .tokens = options->training_seq_len * options->training_local_batch_size,
                         .row = options->training_seq_len,
                         .frame = FRAME,
                         .document = DOCUMENT};
    out->patches = out->tokens * 15 / 4 / 4 * 4; /* rows of VQAv2 have nearly four per token */
    return ST_OK;
}

/* Times the rows of all lists whose op is in how->only. One failed case does not stop the others;
 * the first error is returned. */
static status run_lists(stream *queue, const bench_row *const *lists, const bench_sizes *sizes,
                        const bench_ceilings *ceilings, const bench_how *how, bench_sums *sums,
                        FILE *to)
{
    status first = ST_OK;
    bool any = false;
    for (int i = 0; lists[i]; i++)
        for (const bench_row *row = lists[i]; row->op_name; row++) {
            if (how->only && !list_has(how->only, row->op_name))
                continue;
            any = true;
            status st = run_row(queue, row, sizes, ceilings, how->seconds, sums, to);
            if (st != ST_OK) {
                fprintf(to, "%-17s %-27s %s\n", row->op_name, row->shape, status_text());
                first = first == ST_OK ? st : first;
            }
            fflush(to);
        }
    if (!any)
        return FAIL(ST_USAGE, "bench ops: no op \"%s\" is timed", how->only);
    print_low(sums, to);
    return first;
}

static void read_rates(const bench_sums *sums, const bench_ceilings *ceilings, rates *out)
{
    out->of[RATE_COPY] = ceilings->copy;
    out->kind[RATE_COPY] = RATE_MEASURED;
    for (int k = 0; k < RATE_KEYS; k++)
        if (sums->seconds[k] > 0) {
            out->of[k] = sums->flops[k] / sums->seconds[k];
            out->kind[k] = RATE_MEASURED;
        }
}

status bench_ops(const conf *options, const bench_row *const *lists, const bench_how *how,
                 rates *out, FILE *to)
{
    device *dev = NULL;
    stream *queue = NULL;
    model_dims dims;
    bench_sizes sizes;
    bench_ceilings ceilings;
    bench_sums sums = {.shapes = 0};
    status st = ST_OK;
    TRY(bench_sizes_of(options, &dims, &sizes));
    const device_options opened = {.threads = (int)options->training_threads,
                                   .attention = options->training_attention,
                                   .experts = options->training_experts,
                                   /* the names of cases that need no fixed order say so */
                                   .deterministic = true};
    TRY_OR(done, device_open(options->training_backend, &opened, &dev));
    TRY_OR(done, dev->backend->stream_new(dev, &queue));
    fprintf(to, "device: %s\nmodel: %s  tokens: %lld  patches: %lld\n", dev->description,
            escape_text(dims.name).text, (long long)sizes.tokens, (long long)sizes.patches);
    if (how->ceilings) {
        ceilings = *how->ceilings;
    } else {
        TRY_OR(done, bench_ceilings_measure(queue, &ceilings));
        bench_ceilings_print(&ceilings, to);
    }
    TRY_OR(done, run_lists(queue, lists, &sizes, &ceilings, how, &sums, to));
    snprintf(out->source, sizeof out->source, "%.160s, %s", dev->description, dims.name);
    read_rates(&sums, &ceilings, out);
done:
    if (queue)
        dev->backend->stream_free(&queue);
    device_close(&dev);
    return st;
}
