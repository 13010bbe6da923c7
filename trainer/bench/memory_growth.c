/* memory_growth.c: trainer bench memory: what the device has less behind each part of a run, beside
 * the plan of that part. What ops work in is counted apart, so that what is left of a step's growth
 * is the libraries' (first steps) and the captured steps' (later ones). */
#include <string.h>
#include <unistd.h>

#include "common/base/visible.h"
#include "trainer/bench/bench.h"
#include "trainer/bench/text_rows.h"
#include "trainer/run/session_memory.h"
#include "trainer/run/step.h"

static const double MIB = 1048576.0;
static const double GOAL = 2.0; /* per cent */

/* Bytes in use, of them scratch. */
typedef struct reading {
    double used, scratch;
} reading;

static status read_now(const session *s, reading *out)
{
    size_t used, total;
    TRY(s->device->v->memory(s->device, &used, &total));
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

/* The guess behind the plan of captured steps, and what it should have been. */
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

/* r: behind opening; the steps that no graph holds; all but two; all. */
static status measure_steps(session *s, int64_t steps, reading r[4])
{
    const int64_t first = s->device->v->ahead + 1;
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
    conf own = *c; /* its texts stay c's */
    status st = ST_OK;
    own.model_layers = layers;
    own.eval_enable = own.checkpoint_enable = false;
    if (c->training_steps < 8)
        return FAIL(ST_CONFIG,
                    "bench memory: training.steps is %lld; every buffer's step is "
                    "captured behind 8",
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
