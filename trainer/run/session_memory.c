/* SPDX-License-Identifier: Apache-2.0 */
/* session_memory.c: plans the memory of an open session, refuses what does not fit, and compares
 * the plan with what was taken. plan/memory.c does the arithmetic; this file gives it the session's
 * device, parameters and shapes. */
#include "trainer/run/session_memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/program/log.h"
#include "trainer/device/host_memory.h"
#include "trainer/optim/groups.h"
#include "trainer/plan/memory_search.h"
#include "trainer/plan/plan_print.h"
#include "trainer/plan/recompute_plan.h"

static bool trains(const session *run)
{
    return run->use == SESSION_TRAIN;
}

static bool knows_shapes(const session *run)
{
    return run->buckets.count > 0;
}

/* What a rank sends the others of its device. */
typedef struct device_facts {
    plan_room room;
    int64_t multiprocessors, cudnn;
    hash128 memory; /* equal for ranks that share it */
} device_facts;

/* The part of its device's memory that rank `other` may use: what other processes do not hold,
 * divided equally among the ranks that share it. What those have taken already (on a GPU their
 * contexts, on the CPU the programs themselves) counts as theirs. */
static double divide_room(const device_facts *of, int ranks, int other, int *out_sharers)
{
    double available = of[other].room.available, own = 0.0;
    int sharers = 0;
    for (int i = 0; i < ranks; i++) {
        if (!hash_equal(of[i].memory, of[other].memory))
            continue;
        sharers++;
        available = fmin(available, of[i].room.available);
        own += of[i].room.own;
    }
    if (sharers == 1)
        own += of[other].room.grown;
    *out_sharers = sharers;
    return fmin(of[other].room.memory, available + own) / sharers;
}

/* Makes *inout a device that no rank's falls short of, so that all ranks decide alike: what the
 * rank with least may use, and the most multiprocessors, since a context takes more memory the more
 * of them there are, and cuDNN if any rank has it. */
static status least_of_ranks(const comm *all, const device *own, const plan_room *room,
                             plan_device *inout)
{
    const char *name = own->memory_name;
    char alone[32];
    snprintf(alone, sizeof alone, "rank %d", all->rank);
    name = name[0] ? name : alone;
    const device_facts mine = {*room, inout->multiprocessors, inout->cudnn,
                               hash_bytes(name, strlen(name))};
    device_facts *of = calloc((size_t)all->size, sizeof *of);
    if (!of)
        return FAIL(ST_NO_MEMORY, "no memory for the devices of %d ranks", all->size);
    status st = comm_host_all_gather(all, (comm_at){"agree on the devices' memory", -1}, &mine, of,
                                     sizeof *of);
    for (int i = 0; i < all->size && st == ST_OK; i++) {
        int sharers;
        const double usable = divide_room(of, all->size, i, &sharers);
        if (i == 0 || usable < inout->usable) {
            inout->usable = usable;
            inout->memory = of[i].room.memory;
            inout->sharers = sharers;
        }
        if (of[i].multiprocessors > inout->multiprocessors)
            inout->multiprocessors = (int)of[i].multiprocessors;
        inout->cudnn |= of[i].cudnn != 0;
    }
    free(of);
    return st;
}

status session_memory_device(session *run)
{
    plan_room room;
    char text[PLAN_DEVICE_TEXT];
    TRY(plan_device_opened(run->device, &run->planned, &room));
    run->planned.host_ranks = run->world ? run->world->place.local_size : 1;
    if (run->mesh.layout.world > 1)
        TRY(least_of_ranks(mesh_comm(&run->mesh, MESH_WORLD), run->device, &room, &run->planned));
    log_info("memory: %s; memory.limit is a share of that", plan_device_text(&run->planned, text));
    return ST_OK;
}

/* Input for planning the whole model over all ranks, rather than this rank's part. *out_whole is a
 * registry that is not cut; *out borrows it, and the caller frees it with params_free. */
static status input_of(const session *run, params **out_whole, plan_input *out)
{
    params *whole;
    TRY(params_new(&run->dims, &whole));
    status st = session_has_parts(run) ? groups_apply(run->conf, whole) : ST_OK;
    if (st != ST_OK) {
        params_free(&whole);
        return st;
    }
    *out = (plan_input){.conf = run->conf,
                        .layout = &run->mesh.layout,
                        .dims = &run->dims,
                        .params = whole,
                        .device = &run->planned,
                        .evaluates = !trains(run)};
    if (knows_shapes(run)) {
        const int64_t rows = run->conf->training_local_batch_size;
        out->seq_len = run->cap.tokens / rows;
        out->patch_budget = run->cap.patches / rows;
        out->shapes = (memory_shapes){run->buckets.cap, run->buckets.count, run->cap};
    }
    *out_whole = whole;
    return ST_OK;
}

status session_memory_choose(session *run)
{
    char text[RECOMPUTE_TEXT_MAX], vision[RECOMPUTE_TEXT_MAX];
    const recomputes before = run->recomputed;
    params *whole;
    plan_input in;
    if (!trains(run) || (knows_shapes(run) && !recompute_is_open(run->conf)))
        return ST_OK;
    TRY(input_of(run, &whole, &in));
    status st = recompute_plan_of(&in, run->conf->training_local_batch_size, &run->recomputed);
    params_free(&whole);
    TRY(st);
    if (!knows_shapes(run) || memcmp(&before, &run->recomputed, sizeof before) != 0)
        log_info("activation checkpointing: %s; in the vision tower: %s",
                 recompute_plan_text(&run->recomputed.text, text),
                 recompute_plan_text(&run->recomputed.vision, vision));
    return ST_OK;
}

status session_memory_plan(const session *run, memory_plan *out)
{
    const int64_t rows = run->conf->training_local_batch_size;
    memory_options options =
        memory_options_of(run->conf, &run->mesh.layout, &run->planned, trains(run), rows);
    memory_shapes shapes = {0};
    memory_rank rank;
    options.recomputed = run->recomputed;
    if (knows_shapes(run))
        shapes = (memory_shapes){run->buckets.cap, run->buckets.count, run->cap};
    TRY(memory_rank_of(run->params, &run->dims, &run->planned, trains(run), &rank));
    return memory_plan_make(&options, &rank, &shapes, &run->planned, out);
}

/* Prints the plan for a GPU. With several ranks train_check has printed it already. */
static status print_for_gpu(const session *run)
{
    char why[PLAN_DEVICE_WHY];
    plan_device gpu;
    params *whole;
    plan_input in;
    layout degrees;
    if (!trains(run) || run->mesh.layout.world > 1)
        return ST_OK;
    TRY(layout_of(run->conf, NULL, &degrees));
    TRY(plan_device_here(run->conf, 1, &gpu, why));
    TRY(input_of(run, &whole, &in));
    in.layout = &degrees;
    in.device = &gpu;
    status st = layout_print(&in, PLAN_CHOICES, stdout, NULL);
    params_free(&whole);
    return st;
}

/* Prints the plan and returns ST_CONFIG with the smallest change that would fit. */
static status refuse_memory(const session *run, const memory_plan *plan)
{
    const double mib = 1048576.0;
    const char *no_gpu = run->device->no_gpu;
    char change[CHANGE_TEXT_MAX] = "";
    params *whole;
    plan_input in;
    if (no_gpu[0]) {
        if (print_for_gpu(run) != ST_OK)
            status_clear(); /* the refusal is complete without that plan */
        printf("on the CPU of this machine, which was taken instead:\n");
    }
    memory_plan_print(plan, &run->mesh.layout, &run->planned, false, stdout);
    fflush(stdout);
    TRY(input_of(run, &whole, &in));
    status st = memory_smallest_change(&in, change);
    params_free(&whole);
    if (st != ST_OK)
        snprintf(change, sizeof change, "no change was found that fits: %s", status_text());
    char room[PLAN_DEVICE_TEXT];
    st = FAIL(ST_CONFIG,
              "the layout needs %.1f MiB, but memory.limit allows %.1f MiB of this device (%s); %s",
              (double)plan->total / mib, run->conf->memory_limit * run->planned.usable / mib,
              plan_device_text(&run->planned, room), change);
    if (!no_gpu[0])
        return st;
    const status_note why = *status_last();
    return FAIL(
        st,
        "no GPU for this run: %s; it does not fit on the CPU either, which training.backend "
        "auto takes instead: %s; both plans are above",
        no_gpu, why.message);
}

/* Refuses what does not fit into the host's memory beside a GPU. On the CPU, where that is the
 * device's memory, it is part of the total. */
static status check_host(const session *run, const memory_plan *plan)
{
    const double gib = 1073741824.0;
    const int ranks = run->planned.host_ranks;
    const double wanted = (double)ranks * (double)memory_resting(plan);
    host_memory host;
    if (wanted <= 0.0 || plan_device_is_cpu(&run->planned) || run->params->acts.at)
        return ST_OK; /* once taken they are no longer available */
    TRY(host_memory_read("", &host));
    if (wanted <= (double)host.available)
        return ST_OK;
    return FAIL(ST_CONFIG,
                "memory.host: what rests on the host for the %d rank%s of this machine takes %.1f "
                "GiB of its memory (moments %.1f, frozen weights %.1f), of which %.1f of %.1f GiB "
                "are available; optimizer.states int8 makes moments smaller, more machines share "
                "all of it, and memory.host none leaves it on the device",
                ranks, ranks == 1 ? "" : "s", wanted / gib,
                (double)ranks * (double)plan->resting_moments / gib,
                (double)ranks * (double)plan->resting_frozen / gib, (double)host.available / gib,
                (double)host.total / gib);
}

status session_memory_check(const session *run)
{
    memory_plan plan;
    TRY(session_memory_plan(run, &plan));
    if ((double)plan.total > run->conf->memory_limit * run->planned.usable)
        return refuse_memory(run, &plan);
    return check_host(run, &plan);
}

status session_memory_log_host(const session *run)
{
    const double gib = 1073741824.0;
    memory_plan plan;
    TRY(session_memory_plan(run, &plan));
    const char *where = plan_device_is_cpu(&run->planned)
                            ? "the same memory, as the device is the CPU"
                            : "pinned memory of the host";
    if (plan.resting_moments)
        log_info("memory.host: %.3f GiB of moments rest in %s, and come for each update to %.3f "
                 "GiB of buffers on the device",
                 (double)plan.resting_moments / gib, where, (double)plan.moments / gib);
    if (plan.resting_frozen)
        log_info("memory.host: %.3f GiB of frozen weights rest in %s, and come for each pass to "
                 "buffers of two units on the device",
                 (double)plan.resting_frozen / gib, where);
    return ST_OK;
}

status session_memory_taken(const session *run, size_t *out)
{
    size_t used, total;
    TRY(run->device->backend->memory(run->device, &used, &total));
    size_t before = run->device->used_at_open - run->device->context_bytes;
    *out = used > before ? used - before : 0;
    return ST_OK;
}

status session_memory_print(const session *run)
{
    const double gib = 1073741824.0;
    const device *dev = run->device;
    memory_plan plan;
    size_t taken;
    char context[64] = "";
    TRY(session_memory_plan(run, &plan));
    TRY(session_memory_taken(run, &taken));
    if (dev->backend->overhead &&
        dev->context_bytes == 0) { /* not measured: leave it out on both sides */
        plan.total -= plan.gpu.context;
        snprintf(context, sizeof context, ", both without the context");
    }
    if (!run->conf->feed_replay[0] && dev->backend == &backend_cpu) {
        printf("memory: planned %.3f GiB, taken %.3f GiB with up to %.3f GiB of rows under way "
               "(prepd.ahead_bytes)\n",
               (double)plan.total / gib, (double)taken / gib,
               (double)run->conf->prepd_ahead_bytes / gib);
        return ST_OK;
    }
    printf("memory: planned %.3f GiB, taken %.3f GiB: off by %.2f %% (scratch of ops %.3f of %.3f "
           "GiB planned%s; %.3f GiB were in use when the device was opened)\n",
           (double)plan.total / gib, (double)taken / gib,
           100.0 * ((double)taken - (double)plan.total) / (double)plan.total,
           (double)dev->counts.scratch / gib, (double)plan.gpu.workspace / gib, context,
           (double)dev->used_at_open / gib);
    return ST_OK;
}
