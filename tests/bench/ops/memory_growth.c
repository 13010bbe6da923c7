/* SPDX-License-Identifier: Apache-2.0 */
/* memory_growth.c: reads how much memory of the device is in use after each
 * part of a run, and prints the growth beside its plan. The scratch memory of ops is counted
 * separately, so that the growth of the first steps is that of the libraries' kernels, and the
 * growth of later steps is that of captured steps. */
#include <string.h>
#include <unistd.h>

#include "common/base/words.h"
#include "tests/bench/ops/memory_growth.h"
#include "trainer/bench/bench.h"
#include "trainer/run/session_memory.h"
#include "trainer/run/step.h"

static const double MIB = 1048576.0;
static const double GOAL = 2.0; /* per cent */

/* Bytes in use, and how many of them are scratch of ops. */
typedef struct reading {
    double used, scratch;
} reading;

static status read_now(const session *run, reading *out)
{
    size_t used, total;
    TRY(run->device->backend->memory(run->device, &used, &total));
    *out = (reading){(double)used, (double)run->device->counts.scratch};
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

static void line(table *cells, const char *name, double planned, double taken)
{
    fprintf(cells->to, "memory: %-28s planned %12.1f MiB  taken %12.1f MiB\n", name, planned / MIB,
            taken / MIB);
    cells->planned += planned;
    cells->taken += taken;
}

/* Prints how many bytes a node of a captured graph was planned with, and how many it took. */
static void print_nodes(const memory_gpu *gpu, double taken, FILE *to)
{
    if (gpu->nodes > 0)
        fprintf(to,
                "memory: captured steps: %lld nodes planned, of %.0f bytes each; taken %.0f each\n",
                (long long)gpu->nodes, (double)gpu->graphs / (double)gpu->nodes,
                taken / (double)gpu->nodes);
}

static void print_growth(const session *run, const memory_plan *plan, const reading readings[4],
                         FILE *to)
{
    const device *dev = run->device;
    const reading closed = {(double)dev->used_at_open, 0.0};
    table cells = {.to = to};
    if (dev->context_bytes)
        line(&cells, "context", (double)plan->gpu.context, (double)dev->context_bytes);
    else
        fprintf(to, "memory: %-28s planned %12.1f MiB  not measured (no NVML)\n", "context",
                (double)plan->gpu.context / MIB);
    line(&cells, "asked for before step 1", (double)(plan->total - memory_gpu_total(&plan->gpu)),
         measure_growth(&closed, &readings[0]));
    line(&cells, "workspace of ops", (double)plan->gpu.workspace, readings[3].scratch);
    line(&cells, "libraries' kernels", (double)plan->gpu.libraries,
         measure_growth(&readings[0], &readings[1]));
    line(&cells, "captured steps", (double)plan->gpu.graphs,
         measure_growth(&readings[1], &readings[3]));
    print_nodes(&plan->gpu, measure_growth(&readings[1], &readings[3]), to);
    fprintf(to, "memory: %lld graphs; the last two steps took %.1f MiB more\n",
            (long long)dev->counts.captures, (readings[3].used - readings[2].used) / MIB);
    fprintf(to, "memory: all planned %.1f MiB, taken %.1f MiB: off by %.2f %% (goal: %.0f %%)\n",
            cells.planned / MIB, cells.taken / MIB,
            100.0 * (cells.taken - cells.planned) / cells.planned, GOAL);
}

/* Reads memory four times: readings[0] after opening, readings[1] after the steps that are not
 * captured, readings[2] before the last two steps, and readings[3] at the end. */
static status measure_steps(session *run, int64_t steps, reading readings[4])
{
    const int64_t first = run->device->backend->ahead + 1;
    TRY(read_now(run, &readings[0]));
    for (int64_t i = 1; i <= steps; i++) {
        step_report told;
        TRY(step_run(run, i, &told));
        if (i == first)
            TRY(read_now(run, &readings[1]));
        if (i == steps - 2)
            TRY(read_now(run, &readings[2]));
    }
    return read_now(run, &readings[3]);
}

status bench_device_memory(const conf *options, int64_t layers, FILE *to)
{
    char path[STATUS_PATH_MAX] = "";
    model_dims dims;
    memory_plan plan;
    reading readings[4] = {{0}};
    session run = {0};
    conf own = *options; /* a shallow copy, whose strings belong to options */
    status st = ST_OK;
    own.model_layers = layers;
    own.eval_enable = own.checkpoint_enable = false;
    if (options->training_steps < 8)
        return FAIL(ST_CONFIG,
                    "bench memory: training.steps is %lld; set it to at least 8, after which the "
                    "steps of every buffer are captured",
                    (long long)options->training_steps);
    TRY(dims_load(options->model_path, &dims));
    if (!options->feed_replay[0]) {
        TRY_OR(done, text_rows_own(options, &dims, 0, path));
        own.feed_replay = path;
    }
    TRY_OR(done, session_open_bench(&own, NULL, false, &run));
    fprintf(to, "device: %s\nmodel: %s, %lld layers\n", run.device->description,
            escape_text(run.dims.name).text, (long long)run.dims.text.layers);
    TRY_OR(done, session_memory_plan(&run, &plan));
    TRY_OR(done, measure_steps(&run, options->training_steps, readings));
    print_growth(&run, &plan, readings, to);
done:
    if (run.device)
        session_close(&run);
    if (path[0])
        unlink(path);
    return st;
}
