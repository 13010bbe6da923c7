/* memory_growth.c: trainer bench memory: reads how much memory of the device is in use after each
 * part of a run, and prints the growth beside its plan. The scratch memory of ops is counted
 * separately, so that the growth of the first steps is that of the libraries' kernels, and the
 * growth of later steps is that of captured steps. */
#include <string.h>
#include <unistd.h>

#include "common/base/visible.h"
#include "trainer/bench/bench.h"
#include "trainer/bench/text_rows.h"
#include "trainer/run/session_memory.h"
#include "trainer/run/step.h"

static const double MIB = 1048576.0;
static const double GOAL = 2.0; /* per cent */

/* Bytes in use, and how many of them are scratch of ops. */
typedef struct reading {
    double used, scratch;
} reading;

static status read_now(const session *s, reading *out)
{
    size_t used, total;
    TRY(s->device->backend->memory(s->device, &used, &total));
    *out = (reading){(double)used, (double)s->device->counts.scratch};
    return ST_OK;
}

static double measure_growth(const reading *from, const reading *to)
{
    return to->used - from->used - (to->scratch - from->scratch);
}

typedef struct table {
    FILE *to;
    double planned, taken; /* sums */
} table;

static void line(table *t, const char *name, double planned, double taken)
{
    fprintf(t->to, "memory: %-28s planned %12.1f MiB  taken %12.1f MiB\n", name, planned / MIB,
            taken / MIB);
    t->planned += planned;
    t->taken += taken;
}

/* Prints how many bytes a node of a captured graph was planned with, and how many it took. */
static void print_nodes(const memory_gpu *p, double taken, FILE *to)
{
    if (p->nodes > 0)
        fprintf(
            to, "memory: captured steps: %lld nodes planned, of %.0f bytes each; taken %.0f each\n",
            (long long)p->nodes, (double)p->graphs / (double)p->nodes, taken / (double)p->nodes);
}

static void print_growth(const session *s, const memory_plan *p, const reading r[4], FILE *to)
{
    const device *d = s->device;
    const reading closed = {(double)d->used_at_open, 0.0};
    table t = {.to = to};
    if (d->context_bytes)
        line(&t, "context", (double)p->gpu.context, (double)d->context_bytes);
    else
        fprintf(to, "memory: %-28s planned %12.1f MiB  not measured (no NVML)\n", "context",
                (double)p->gpu.context / MIB);
    line(&t, "asked for before step 1", (double)(p->total - memory_gpu_total(&p->gpu)),
         measure_growth(&closed, &r[0]));
    line(&t, "workspace of ops", (double)p->gpu.workspace, r[3].scratch);
    line(&t, "libraries' kernels", (double)p->gpu.libraries, measure_growth(&r[0], &r[1]));
    line(&t, "captured steps", (double)p->gpu.graphs, measure_growth(&r[1], &r[3]));
    print_nodes(&p->gpu, measure_growth(&r[1], &r[3]), to);
    fprintf(to, "memory: %lld graphs; the last two steps took %.1f MiB more\n",
            (long long)d->counts.captures, (r[3].used - r[2].used) / MIB);
    fprintf(to, "memory: all planned %.1f MiB, taken %.1f MiB: off by %.2f %% (goal: %.0f %%)\n",
            t.planned / MIB, t.taken / MIB, 100.0 * (t.taken - t.planned) / t.planned, GOAL);
}

/* Reads memory four times: r[0] after opening, r[1] after the steps that are not captured, r[2]
 * before the last two steps, and r[3] at the end. */
static status measure_steps(session *s, int64_t steps, reading r[4])
{
    const int64_t first = s->device->backend->ahead + 1;
    TRY(read_now(s, &r[0]));
    for (int64_t i = 1; i <= steps; i++) {
        step_report told;
        TRY(step_run(s, i, &told));
        if (i == first)
            TRY(read_now(s, &r[1]));
        if (i == steps - 2)
            TRY(read_now(s, &r[2]));
    }
    return read_now(s, &r[3]);
}

status bench_device_memory(const conf *c, int64_t layers, FILE *to)
{
    char path[STATUS_PATH_MAX] = "";
    model_dims dims;
    memory_plan p;
    reading r[4] = {{0}};
    session s = {0};
    conf own = *c; /* a shallow copy, whose strings belong to c */
    status st = ST_OK;
    own.model_layers = layers;
    own.eval_enable = own.checkpoint_enable = false;
    if (c->training_steps < 8)
        return FAIL(ST_CONFIG,
                    "bench memory: training.steps is %lld; set it to at least 8, after which the "
                    "steps of every buffer are captured",
                    (long long)c->training_steps);
    TRY(dims_load(c->model_path, &dims));
    if (!c->feed_replay[0]) {
        TRY_OR(done, text_rows_own(c, &dims, path));
        own.feed_replay = path;
    }
    TRY_OR(done, session_open(&own, SESSION_TRAIN, &s));
    fprintf(to, "device: %s\nmodel: %s, %lld layers\n", s.device->description,
            escape_text(s.dims.name).text, (long long)s.dims.text.layers);
    TRY_OR(done, session_memory_plan(&s, &p));
    TRY_OR(done, measure_steps(&s, c->training_steps, r));
    print_growth(&s, &p, r, to);
done:
    if (s.device)
        session_close(&s);
    if (path[0])
        unlink(path);
    return st;
}
