#include "trainer/report/line.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/json.h"
#include "trainer/ops/table.h"
#include "trainer/report/digits.h"

struct reporter {
    const session *session;
    int64_t log_freq;
    int mfu_kind;
    double peak_flops;
    FILE *metrics;
    char path[STATUS_PATH_MAX];
    /* since the last line */
    int64_t since_ns;
    step_report sum, last;
    bool unprinted; /* last has not been told */
};

status reporter_new(const conf *c, const session *s, double peak_flops, const char *folder,
                    reporter **out)
{
    reporter *r = calloc(1, sizeof *r);
    if (!r)
        return FAIL(ST_NO_MEMORY, "reporter: out of memory");
    r->session = s;
    r->log_freq = c->metrics_log_freq;
    r->mfu_kind = c->metrics_mfu;
    r->peak_flops = peak_flops;
    r->since_ns = clock_ns();
    if (folder[0]) {
        snprintf(r->path, sizeof r->path, "%s/metrics.jsonl", folder);
        r->metrics = fopen(r->path, "a");
        if (!r->metrics) {
            status st = FAIL_IN(ST_CANT_CREATE, r->path, "%s", strerror(errno));
            free(r);
            return st;
        }
    }
    *out = r;
    return ST_OK;
}

void reporter_free(reporter **held)
{
    reporter *r = *held;
    if (!r)
        return;
    if (r->metrics)
        fclose(r->metrics);
    free(r);
    *held = NULL;
}

static void add(step_report *sum, const step_report *s)
{
    sum->tokens += s->tokens;
    sum->row_capacity += s->row_capacity;
    sum->patches += s->patches;
    sum->documents += s->documents;
    sum->images += s->images;
    sum->targets += s->targets;
    sum->wait_ns += s->wait_ns;
    flops_add(&sum->flops, &s->flops);
}

typedef struct figures {
    double seconds, memory_gib, memory_share, tps, tflops, mfu, vision, wait, fill;
} figures;

static status figures_of(const reporter *r, figures *f)
{
    const step_report *sum = &r->sum;
    const session *s = r->session;
    size_t used, total;
    TRY(s->device->v->memory(s->device, &used, &total));
    f->seconds = (double)(clock_ns() - r->since_ns) * 1e-9;
    f->memory_gib = (double)used / 1073741824.0;
    f->memory_share = total ? 100.0 * (double)used / (double)total : 0.0;
    /* torchtitan counts the whole row, padding included; ours counts what is in it. */
    bool titan = r->mfu_kind == MFU_TORCHTITAN;
    f->tps = (double)(titan ? sum->row_capacity : sum->tokens) / f->seconds;
    double work = titan ? (double)sum->row_capacity *
                              dims_flops_torchtitan(&s->dims, s->conf->training_seq_len)
                        : (double)sum->flops.training;
    f->tflops = work / f->seconds * 1e-12;
    f->mfu = r->peak_flops > 0.0 ? 100.0 * work / f->seconds / r->peak_flops : 0.0;
    double vision = (double)(sum->flops.patch_embed + sum->flops.vision_blocks +
                             sum->flops.vision_attention + sum->flops.mergers);
    f->vision = sum->flops.forward ? 100.0 * vision / (double)sum->flops.forward : 0.0;
    f->wait = 100.0 * (double)sum->wait_ns * 1e-9 / f->seconds;
    f->fill = sum->row_capacity ? 100.0 * (double)sum->tokens / (double)sum->row_capacity : 0.0;
    return ST_OK;
}

static status write_metrics(reporter *r, const step_report *s, const figures *f)
{
    char digest[HASH_TEXT];
    hash_print(s->rows_digest, digest);
    const struct {
        const char *key;
        int64_t value;
    } counts[] = {
        {"step", s->step},         {"targets", r->sum.targets}, {"samples", r->sum.documents},
        {"images", r->sum.images}, {"tokens", r->sum.tokens},   {"patches", r->sum.patches}};
    const struct {
        const char *key;
        double value;
    } reals[] = {{"loss", s->loss},
                 {"aux", s->aux},
                 {"grad_norm", s->grad_norm},
                 {"lr", s->lr},
                 {"seconds", f->seconds},
                 {"memory_gib", f->memory_gib},
                 {"tps", f->tps},
                 {"tflops", f->tflops},
                 {"mfu_percent", f->mfu},
                 {"vision_percent", f->vision},
                 {"wait_percent", f->wait},
                 {"fill_percent", f->fill}};
    json_writer w;
    json_writer_init(&w);
    json_begin_object(&w);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        json_put_key(&w, counts[i].key);
        json_put_int(&w, counts[i].value);
    }
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        json_put_key(&w, reals[i].key);
        json_put_real(&w, reals[i].value);
    }
    json_put_key(&w, "skipped");
    json_put_bool(&w, s->skipped);
    json_put_key(&w, "rows_digest");
    json_put_cstr(&w, digest);
    json_end_object(&w);
    char *text;
    size_t size;
    TRY(json_writer_take(&w, &text, &size));
    bool ok = fprintf(r->metrics, "%s\n", text) > 0 && fflush(r->metrics) == 0;
    free(text);
    return ok ? ST_OK : FAIL_IN(ST_IO, r->path, "write failed: %s", strerror(errno));
}

static status print_last(reporter *r)
{
    const step_report *s = &r->last;
    figures f;
    TRY(figures_of(r, &f));
    char tps[DIGITS_TEXT];
    printf("step: %2" PRId64 "  loss: %7.4f  grad_norm: %7.4f  memory: %.2fGiB(%.2f%%)  tps: %s  "
           "tflops: %.*f  mfu: %.2f%%  vision: %.0f%%  wait: %.1f%%  fill: %.1f%%%s\n",
           s->step, s->loss, s->grad_norm, f.memory_gib, f.memory_share,
           digits_with_commas(llround(f.tps), tps), f.tflops < 1.0 ? 4 : 2, f.tflops, f.mfu,
           f.vision, f.wait, f.fill, s->skipped ? "  update skipped" : "");
    fflush(stdout);
    if (r->metrics)
        TRY(write_metrics(r, s, &f));
    memset(&r->sum, 0, sizeof r->sum);
    r->since_ns = clock_ns();
    r->unprinted = false;
    return ST_OK;
}

status reporter_step(reporter *r, const step_report *s)
{
    add(&r->sum, s);
    r->last = *s;
    r->unprinted = true;
    return s->step == 1 || s->step % r->log_freq == 0 ? print_last(r) : ST_OK;
}

status reporter_finish(reporter *r)
{
    return r->unprinted ? print_last(r) : ST_OK;
}

void reporter_rest(reporter *r, int64_t ns)
{
    r->since_ns += ns;
}

status report_measure_peak(stream *s, double *out_flops)
{
    enum { SIDE = 768, TIMES = 40 }; /* the best of half a second: others use the cores too */
    const backend_vtable *v = s->dev->v;
    size_t bytes = (size_t)SIDE * SIDE * st_dtype_size(v->act);
    void *m[3] = {NULL};
    status st = ST_OK;
    for (int i = 0; i < 3; i++)
        TRY_OR(done, v->alloc(s->dev, bytes, &m[i]));
    double best = 0.0;
    for (int i = 0; i < TIMES; i++) {
        int64_t start = clock_ns();
        TRY_OR(done, op_gemm(s, &(gemm_args){.m = SIDE,
                                             .n = SIDE,
                                             .k = SIDE,
                                             .trans_b = true,
                                             .alpha = 1.0,
                                             .a = m[0],
                                             .b = m[1],
                                             .c = m[2],
                                             .lda = SIDE,
                                             .ldb = SIDE,
                                             .ldc = SIDE}));
        TRY_OR(done, v->wait(s));
        double rate = 2.0 * SIDE * SIDE * SIDE / ((double)(clock_ns() - start) * 1e-9);
        if (rate > best)
            best = rate;
    }
    *out_flops = best;
done:
    for (int i = 0; i < 3; i++)
        v->release(s->dev, m[i]);
    return st;
}
