/* SPDX-License-Identifier: Apache-2.0 */
/* plan_print.c: prints a plan, from the mesh down to the verdict whether it fits. */
#include "trainer/plan/plan_print.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/words.h"
#include "trainer/model/params/unit_order.h"
#include "trainer/plan/memory_search.h"
#include "trainer/plan/recompute_plan.h"
#include "trainer/plan/layout_plan.h"

static const double GIB = 1073741824.0, MIB = 1048576.0;
enum { WHOSE = PLAN_DEVICE_TEXT + 32 };

/* The tables of a whole plan use one unit: GiB if its total is at least one, otherwise MiB. */
typedef struct unit {
    double bytes;
    const char *name;
} unit;

static unit unit_of(const memory_plan *plan)
{
    return (double)plan->total < GIB ? (unit){MIB, "MiB"} : (unit){GIB, "GiB"};
}

/* Whether most plans lack such a region, so that it is not worth a line without bytes. */
static bool is_optional(const char *key)
{
    static const char *const keys[] = {"weights",  "window",       "codes",
                                       "expanded", "host_moments", "host_frozen"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

int memory_plan_regions(const memory_plan *plan, const plan_device *on,
                        memory_region out[MEMORY_REGIONS])
{
    const bool cpu = plan_device_is_cpu(on);
    const memory_region list[MEMORY_REGIONS] = {
        {"parameters", cpu ? "parameters" : "parameters (master values)", MEMORY_VALUES,
         plan->parameters},
        {"weights", "compute weights", MEMORY_VALUES, plan->weights},
        {"codes", "frozen matrices in codes", MEMORY_VALUES, plan->codes},
        {"expanded", "one of them expanded", MEMORY_VALUES, plan->expanded},
        {"gradients", "gradients", MEMORY_VALUES, plan->gradients},
        {"moments", plan->resting_moments ? "moments: buffers of two units" : "moments",
         MEMORY_VALUES, plan->moments},
        {"gathered", "units gathered, their gradients", MEMORY_VALUES, plan->gathered},
        {"activations", "activations and scratch", MEMORY_WORK, plan->activations},
        {"window", "windows of peers (shared experts)", MEMORY_WORK, plan->window},
        {"staging", "batches under way", MEMORY_WORK, plan->staging},
        {"answers", "answers", MEMORY_WORK, plan->answers},
        {"context", "context", MEMORY_DRIVER, plan->gpu.context},
        {"libraries", "libraries' kernels", MEMORY_DRIVER, plan->gpu.libraries},
        {"workspace", "workspace of ops", MEMORY_DRIVER, plan->gpu.workspace},
        {"graphs", "captured steps", MEMORY_DRIVER, plan->gpu.graphs},
        {"ranks", "NCCL's buffers, host values", MEMORY_DRIVER, plan->gpu.ranks},
        {"host_moments", "host: moments (memory.host)", MEMORY_HOST, plan->resting_moments},
        {"host_frozen", "host: frozen weights (memory.host)", MEMORY_HOST, plan->resting_frozen},
        {"host_built", "host: batches being built", MEMORY_HOST, plan->built},
        {"host_received", "host: rows received", MEMORY_HOST, plan->received},
        {"host_snapshot", "host: snapshot of a checkpoint", MEMORY_HOST, plan->snapshot},
    };
    int count = 0;
    for (int i = 0; i < MEMORY_REGIONS; i++) {
        const bool absent = list[i].bytes == 0 && is_optional(list[i].key);
        if (!absent && (list[i].part != MEMORY_DRIVER || !cpu))
            out[count++] = list[i];
    }
    return count;
}

static void print_heading(const memory_plan *plan, const layout *degrees, const plan_device *on,
                          FILE *to)
{
    const backend_vtable *backend = on->sizes;
    char stage[32] = "", sharers[48] = "";
    if (degrees->pipeline > 1)
        snprintf(stage, sizeof stage, " of stage %d", plan->stage);
    if (on->sharers > 1)
        snprintf(sharers, sizeof sharers, ", shared by %d ranks", on->sharers);
    fprintf(to, "one rank%s on the device %s of %.1f GiB%s, %s:\n", stage,
            escape_text(on->name).text, on->memory / GIB, sharers,
            backend->act != backend->acc ? plan->parameters ? "bf16 with fp32 master weights"
                                                            : "bf16 with bf16 master weights"
            : backend->acc == DT_F64     ? "float64"
                                         : "float32");
}

static void print_bytes(FILE *to, unit scale, const char *name, int64_t bytes)
{
    fprintf(to, "  %-44s %20" PRId64 " bytes %9.1f %s\n", name, bytes, (double)bytes / scale.bytes,
            scale.name);
}

/* Every region to the byte. The host's regions are part of the total on the CPU, and come after it
 * beside a GPU, since they are another memory. */
static void print_full(const memory_plan *plan, const memory_region *region, int count, bool cpu,
                       FILE *to)
{
    const unit scale = unit_of(plan);
    for (int i = 0; i < count; i++)
        if (cpu || region[i].part != MEMORY_HOST)
            print_bytes(to, scale, region[i].name, region[i].bytes);
    print_bytes(to, scale, "total", plan->total);
    for (int i = 0; i < count; i++)
        if (!cpu && region[i].part == MEMORY_HOST)
            print_bytes(to, scale, region[i].name, region[i].bytes);
}

/* A line for each part that has bytes, and the total. */
static void print_short(const memory_plan *plan, const memory_region *region, int count,
                        const plan_device *on, FILE *to)
{
    static const char *const names[] = {[MEMORY_VALUES] = "model: values, gradients, moments",
                                        [MEMORY_WORK] = "activations, micro-batches, answers",
                                        [MEMORY_DRIVER] = "driver, libraries, captured steps",
                                        [MEMORY_HOST] = "rows, batches, snapshot on the host"};
    const bool cpu = plan_device_is_cpu(on);
    int64_t sum[MEMORY_PARTS] = {0};
    char text[MEMORY_BYTES_TEXT], usable[MEMORY_BYTES_TEXT];
    for (int i = 0; i < count; i++)
        sum[region[i].part] += region[i].bytes;
    for (int part = 0; part < MEMORY_PARTS; part++)
        if (sum[part] && (cpu || part != MEMORY_HOST))
            fprintf(to, "  %-36s %12s\n", names[part], memory_bytes_text(sum[part], text));
    fprintf(to, "  %-36s %12s  %.1f %% of the %s available", "total",
            memory_bytes_text(plan->total, text), (double)plan->total / on->usable * 100.0,
            memory_bytes_text((int64_t)on->usable, usable));
    if (!cpu && sum[MEMORY_HOST])
        fprintf(to, "; host memory %s", memory_bytes_text(sum[MEMORY_HOST], text));
    fprintf(to, "\n");
}

/* Says what lies on the host since memory.host asks for it. */
static void print_resting(const memory_plan *plan, bool cpu, FILE *to)
{
    char text[MEMORY_BYTES_TEXT], turns[MEMORY_BYTES_TEXT];
    const char *where = cpu ? "this same memory" : "pinned memory of the host";
    if (plan->resting_moments)
        fprintf(to, "  memory.host: %s of moments rest in %s, and come to buffers of %s\n",
                memory_bytes_text(plan->resting_moments, text), where,
                memory_bytes_text(plan->moments, turns));
    if (plan->resting_frozen)
        fprintf(
            to,
            "  memory.host: %s of frozen weights rest in %s, and come to buffers of two units\n",
            memory_bytes_text(plan->resting_frozen, text), where);
}

/* Says what codes buy: bytes of the matrices that are in them, and what these would take. */
static void print_codes(const memory_plan *plan, FILE *to)
{
    char codes[MEMORY_BYTES_TEXT], plain[MEMORY_BYTES_TEXT], room[MEMORY_BYTES_TEXT];
    fprintf(to,
            "lora.base: the frozen matrices take %s in codes in place of %s, and %s to expand one "
            "of them\n",
            memory_bytes_text(plan->codes, codes), memory_bytes_text(plan->uncoded, plain),
            memory_bytes_text(plan->expanded, room));
}

void memory_plan_print(const memory_plan *plan, const layout *degrees, const plan_device *on,
                       bool full, FILE *to)
{
    memory_region region[MEMORY_REGIONS];
    const int count = memory_plan_regions(plan, on, region);
    print_heading(plan, degrees, on, to);
    if (full)
        print_full(plan, region, count, plan_device_is_cpu(on), to);
    else
        print_short(plan, region, count, on, to);
    print_resting(plan, plan_device_is_cpu(on), to);
    if (plan->codes)
        print_codes(plan, to);
}

/* Names the memory that a share is of. */
static const char *whose(const plan_device *on, char text[WHOSE])
{
    char free[PLAN_DEVICE_TEXT];
    snprintf(text, WHOSE, "%s", plan_device_is_cpu(on) ? "this machine's memory" : "the card");
    if (on->usable < on->memory)
        snprintf(text + strlen(text), WHOSE - strlen(text), " that a rank may use (%s)",
                 plan_device_text(on, free));
    return text;
}

/* Prints a line for each mode: the memory of this micro-batch, and the rows of the largest that
 * fits. */
static status print_modes(const plan_input *in, const recomputes *now, FILE *to)
{
    const int64_t rows = in->conf->training_local_batch_size;
    char text[RECOMPUTE_TEXT_MAX];
    fprintf(to, "%-56s %11s %9s %8s %9s\n", "activation checkpointing", "activations", "total",
            "share", "rows fit");
    for (int mode = SEARCH_AS_CONFIGURED; mode <= AC_FULL; mode++) {
        recomputes recomputed;
        memory_plan plan;
        int64_t most;
        TRY(memory_search_recompute(in, rows, mode, &recomputed));
        if (mode != SEARCH_AS_CONFIGURED && memcmp(&recomputed, now, sizeof recomputed) == 0)
            continue;
        TRY(layout_plan_make(in, rows, &recomputed, &plan));
        TRY(memory_most_rows(in, mode, &most));
        const unit scale = unit_of(&plan);
        fprintf(to, "%s %-54s %7.1f %s %5.1f %s %6.1f %% %9" PRId64 "\n",
                mode == SEARCH_AS_CONFIGURED ? "*" : " ",
                recompute_plan_text(&recomputed.text, text), (double)plan.parts.total / scale.bytes,
                scale.name, (double)plan.total / scale.bytes, scale.name,
                (double)plan.total / in->device->usable * 100.0, most);
        if (in->dims->vision.depth > 0)
            fprintf(to, "    vision: %s\n", recompute_plan_text(&recomputed.vision, text));
    }
    return ST_OK;
}

/* Prints a line for each pipeline stage and marks the one that takes most. */
static status print_stages(const plan_input *in, const recomputes *recomputed,
                           const memory_plan *most, FILE *to)
{
    layout cut = *in->layout;
    plan_input staged = *in;
    if (cut.pipeline == 1)
        return ST_OK;
    staged.layout = &cut;
    TRY(stage_plan(in->conf, in->dims, in->params, &cut));
    fprintf(to, "%-8s %8s %14s %13s %11s %9s\n", "stage", "layers", "micro-batches",
            "values, state", "activations", "total");
    for (int stage = 0; stage < cut.pipeline; stage++) {
        const stage_part part = stage_part_of(in->dims, &cut, stage);
        memory_plan plan;
        TRY(layout_plan_stage(&staged, in->conf->training_local_batch_size, recomputed, stage,
                              &plan));
        fprintf(to,
                "%5d    %3" PRId64 "..%-3" PRId64 " %14" PRId64
                " %9.1f GiB %7.1f GiB %5.1f GiB%s\n",
                stage, part.first, part.end - 1,
                stage_flights(stage, (int)cut.pipeline, cut.accumulation),
                (double)(plan.parameters + plan.gradients + plan.moments + plan.weights +
                         plan.codes + plan.expanded) /
                    GIB,
                (double)plan.parts.total / GIB, (double)plan.total / GIB,
                stage == most->stage ? "  the most" : "");
    }
    return ST_OK;
}

static void print_mesh(const plan_input *in, FILE *to)
{
    const conf *options = in->conf;
    const layout *degrees = in->layout;
    fprintf(to,
            "layout: %" PRId64 " ranks = replicate %" PRId64 " x shard %" PRId64
            " x context %" PRId64 " x tensor %" PRId64 " x pipeline %" PRId64
            "; of these expert %" PRId64 ", expert tensor %" PRId64 "\n",
            degrees->world, degrees->replicate, degrees->shard, degrees->context, degrees->tensor,
            degrees->pipeline, degrees->expert, degrees->expert_tensor);
    fprintf(to,
            "step: %" PRId64 " rows of %" PRId64 " tokens = %" PRId64 " x %" PRId64
            " data-parallel ranks x %" PRId64 " micro-batches\n",
            options->training_global_batch_size, options->training_seq_len,
            options->training_local_batch_size, layout_consumers(degrees), degrees->accumulation);
}

/* Prints what a machine needs of host memory beside its GPUs: nothing on the CPU, where that is
 * part of the total. */
static void print_host_memory(const memory_plan *plan, const plan_device *on, FILE *to)
{
    const struct {
        const char *name;
        int64_t bytes;
    } parts[] = {{"snapshots of checkpoints", plan->snapshot},
                 {"memory.host", memory_resting(plan)},
                 {"rows and micro-batches", plan->built + plan->received}};
    const int64_t ranks = on->host_ranks, rank = memory_host(plan);
    char text[MEMORY_BYTES_TEXT], each[MEMORY_BYTES_TEXT];
    if (plan_device_is_cpu(on))
        return;
    fprintf(to, "host memory: %s a machine", memory_bytes_text(ranks * rank, text));
    if (ranks > 1)
        fprintf(to, ", for %" PRId64 " ranks of %s", ranks, memory_bytes_text(rank, each));
    const char *before = ": ";
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i].bytes == 0)
            continue;
        fprintf(to, "%s%s %s", before, parts[i].name, memory_bytes_text(parts[i].bytes, text));
        before = ", ";
    }
    if (on->host > 0 && (double)(ranks * rank) > on->host)
        fprintf(to, "; only %s are available here", memory_bytes_text((int64_t)on->host, text));
    fputs("\n", to);
}

/* Prints the last lines: whether the plan fits and, if it does not, what would. */
static status print_verdict(const plan_input *in, const memory_plan *plan, FILE *to)
{
    char change[CHANGE_TEXT_MAX], text[WHOSE];
    int64_t most;
    const bool fits = layout_fits(in, plan);
    TRY(memory_most_rows(in, SEARCH_AS_CONFIGURED, &most));
    fprintf(to,
            "%s: %.1f %% of %s, memory.limit %.0f %%; the largest micro-batch is %" PRId64
            " rows\n",
            fits ? "fits" : "does not fit", (double)plan->total / in->device->usable * 100.0,
            whose(in->device, text), in->conf->memory_limit * 100.0, most);
    if (fits)
        return ST_OK;
    TRY(memory_smallest_change(in, change));
    fprintf(to, "%s\n", change);
    return ST_OK;
}

status layout_print(const plan_input *in, plan_detail detail, FILE *to, bool *out_fits)
{
    const int64_t rows = in->conf->training_local_batch_size;
    const bool full = detail == PLAN_FULL;
    recomputes recomputed;
    memory_plan plan;
    TRY(recompute_plan_of(in, rows, &recomputed));
    TRY(layout_plan_make(in, rows, &recomputed, &plan));
    print_host_memory(&plan, in->device, to);
    print_mesh(in, to);
    TRY(print_stages(in, &recomputed, &plan, to));
    memory_plan_print(&plan, in->layout, in->device, full, to);
    if (detail != PLAN_SHORT)
        TRY(print_modes(in, &recomputed, to));
    TRY(print_verdict(in, &plan, to));
    if (out_fits)
        *out_fits = layout_fits(in, &plan);
    return ST_OK;
}
