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
#include "trainer/optim/groups.h"
#include "trainer/plan/memory_search.h"
#include "trainer/plan/plan_print.h"
#include "trainer/plan/recompute_plan.h"

static bool trains(const session *s)
{
    return s->use == SESSION_TRAIN;
}

static bool knows_shapes(const session *s)
{
    return s->buckets.count > 0;
}

/* What a rank tells the others of its device. */
typedef struct device_facts {
    plan_room room;
    int64_t multiprocessors;
    hash128 memory; /* equal for ranks that share it */
} device_facts;

/* The part of its device's memory that rank r may use: what other processes do not hold, divided
 * equally among the ranks that share it. What those have taken already (on a GPU their contexts, on
 * the CPU the programs themselves) counts as theirs. */
static double divide_room(const device_facts *of, int ranks, int r, int *out_sharers)
{
    double available = of[r].room.available, own = 0.0;
    int sharers = 0;
    for (int i = 0; i < ranks; i++) {
        if (!hash_equal(of[i].memory, of[r].memory))
            continue;
        sharers++;
        available = fmin(available, of[i].room.available);
        own += of[i].room.own;
    }
    if (sharers == 1)
        own += of[r].room.grown;
    *out_sharers = sharers;
    return fmin(of[r].room.memory, available + own) / sharers;
}

/* Makes *inout a device that no rank's falls short of, so that all ranks decide alike: what the
 * rank with least may use, and the most multiprocessors, since a context takes more memory the more
 * of them there are. */
static status least_of_ranks(const comm *all, const device *own, const plan_room *room,
                             plan_device *inout)
{
    const char *name = own->memory_name;
    char alone[32];
    snprintf(alone, sizeof alone, "rank %d", all->rank);
    name = name[0] ? name : alone;
    const device_facts mine = {*room, inout->multiprocessors, hash_bytes(name, strlen(name))};
    device_facts *of = calloc((size_t)all->size, sizeof *of);
    if (!of)
        return FAIL(ST_NO_MEMORY, "no memory for the devices of %d ranks", all->size);
    status st = comm_host_all_gather(all, (comm_at){"agree on the devices' memory", -1}, &mine, of,
                                     sizeof *of);
    for (int r = 0; r < all->size && st == ST_OK; r++) {
        int sharers;
        const double usable = divide_room(of, all->size, r, &sharers);
        if (r == 0 || usable < inout->usable) {
            inout->usable = usable;
            inout->memory = of[r].room.memory;
            inout->sharers = sharers;
        }
        if (of[r].multiprocessors > inout->multiprocessors)
            inout->multiprocessors = (int)of[r].multiprocessors;
    }
    free(of);
    return st;
}

status session_memory_device(session *s)
{
    plan_room room;
    char text[PLAN_DEVICE_TEXT];
    TRY(plan_device_opened(s->device, &s->planned, &room));
    if (!device_has_storage(s->device)) /* a dry run gives all ranks the same device */
        return ST_OK;
    /* Simulated ranks have the same device as this one. */
    if (s->mesh.layout.world > 1 && !world_simulated(s->world))
        TRY(least_of_ranks(mesh_comm(&s->mesh, MESH_WORLD), s->device, &room, &s->planned));
    log_info("memory: %s; memory.limit is a share of that", plan_device_text(&s->planned, text));
    return ST_OK;
}

/* Input for planning the whole model over all ranks, rather than this rank's part. *out_whole is a
 * registry that is not cut; *out borrows it, and the caller frees it with params_free. */
static status input_of(const session *s, params **out_whole, plan_input *out)
{
    params *whole;
    TRY(params_new(&s->dims, &whole));
    status st = trains(s) ? groups_apply(s->conf, whole) : ST_OK;
    if (st != ST_OK) {
        params_free(&whole);
        return st;
    }
    *out = (plan_input){.conf = s->conf,
                        .layout = &s->mesh.layout,
                        .dims = &s->dims,
                        .params = whole,
                        .device = &s->planned,
                        .evaluates = !trains(s)};
    if (knows_shapes(s)) {
        const int64_t rows = s->conf->training_local_batch_size;
        out->seq_len = s->cap.tokens / rows;
        out->patch_budget = s->cap.patches / rows;
        out->shapes = (memory_shapes){s->buckets.cap, s->buckets.count, s->cap};
    }
    *out_whole = whole;
    return ST_OK;
}

status session_memory_choose(session *s)
{
    char text[RECOMPUTE_TEXT_MAX], vision[RECOMPUTE_TEXT_MAX];
    const recomputes before = s->recomputed;
    params *whole;
    plan_input in;
    if (!trains(s) || (knows_shapes(s) && !recompute_is_open(s->conf)))
        return ST_OK;
    TRY(input_of(s, &whole, &in));
    status st = recompute_plan_of(&in, s->conf->training_local_batch_size, &s->recomputed);
    params_free(&whole);
    TRY(st);
    if (!knows_shapes(s) || memcmp(&before, &s->recomputed, sizeof before) != 0)
        log_info("activation checkpointing %s; of the vision tower %s",
                 recompute_plan_text(&s->recomputed.text, text),
                 recompute_plan_text(&s->recomputed.vision, vision));
    return ST_OK;
}

status session_memory_plan(const session *s, memory_plan *out)
{
    const int64_t rows = s->conf->training_local_batch_size;
    memory_options o = memory_options_of(s->conf, &s->mesh.layout, &s->planned, trains(s), rows);
    memory_shapes shapes = {0};
    memory_rank r;
    o.recomputed = s->recomputed;
    if (knows_shapes(s))
        shapes = (memory_shapes){s->buckets.cap, s->buckets.count, s->cap};
    TRY(memory_rank_of(s->params, &s->dims, &s->planned, trains(s), &r));
    return memory_plan_make(&o, &r, &shapes, &s->planned, out);
}

/* Prints the plan for a GPU. With several ranks train_check has printed it already. */
static status print_for_gpu(const session *s)
{
    char why[PLAN_DEVICE_WHY];
    plan_device gpu;
    params *whole;
    plan_input in;
    layout l;
    if (!trains(s) || s->mesh.layout.world > 1)
        return ST_OK;
    TRY(layout_of(s->conf, NULL, &l));
    TRY(plan_device_here(s->conf, 1, &gpu, why));
    TRY(input_of(s, &whole, &in));
    in.layout = &l;
    in.device = &gpu;
    status st = layout_print(&in, true, stdout, NULL);
    params_free(&whole);
    return st;
}

/* Prints the plan and returns ST_CONFIG with the smallest change that would fit. */
static status refuse_memory(const session *s, const memory_plan *p)
{
    const double mib = 1048576.0;
    const char *no_gpu = s->device->no_gpu;
    char change[SEARCH_TEXT_MAX] = "";
    params *whole;
    plan_input in;
    if (no_gpu[0]) {
        if (print_for_gpu(s) != ST_OK)
            status_clear(); /* the refusal is complete without that plan */
        printf("on the CPU of this machine, which was taken instead:\n");
    }
    memory_plan_print(p, &s->mesh.layout, &s->planned, (int)s->conf->memory_table, stdout);
    fflush(stdout);
    TRY(input_of(s, &whole, &in));
    status st = memory_smallest_change(&in, change);
    params_free(&whole);
    if (st != ST_OK)
        snprintf(change, sizeof change, "no change was found that fits: %s", status_text());
    char room[PLAN_DEVICE_TEXT];
    st = FAIL(ST_CONFIG,
              "the layout needs %.1f MiB, but memory.limit allows %.1f MiB of this device (%s); %s",
              (double)p->total / mib, s->conf->memory_limit * s->planned.usable / mib,
              plan_device_text(&s->planned, room), change);
    if (!no_gpu[0])
        return st;
    const status_note why = *status_last();
    return FAIL(
        st,
        "no GPU for this run: %s; it does not fit on the CPU either, which training.backend "
        "auto takes instead: %s; both plans are above",
        no_gpu, why.message);
}

status session_memory_check(const session *s)
{
    memory_plan p;
    if (!device_has_storage(s->device)) /* a dry run takes no memory */
        return ST_OK;
    TRY(session_memory_plan(s, &p));
    const bool fits = (double)p.total <= s->conf->memory_limit * s->planned.usable;
    return fits ? ST_OK : refuse_memory(s, &p);
}

status session_memory_taken(const session *s, size_t *out)
{
    size_t used, total;
    TRY(s->device->backend->memory(s->device, &used, &total));
    size_t before = s->device->used_at_open - s->device->context_bytes;
    *out = used > before ? used - before : 0;
    return ST_OK;
}

status session_memory_tell(const session *s)
{
    const double gib = 1073741824.0;
    const device *d = s->device;
    memory_plan p;
    size_t taken;
    char context[64] = "";
    TRY(session_memory_plan(s, &p));
    TRY(session_memory_taken(s, &taken));
    if (d->backend->overhead &&
        d->context_bytes == 0) { /* not measured: leave it out on both sides */
        p.total -= p.gpu.context;
        snprintf(context, sizeof context, ", both without the context");
    }
    if (!s->conf->feed_replay[0] && d->backend == &backend_cpu) {
        printf("memory: planned %.3f GiB, taken %.3f GiB with up to %.3f GiB of rows under way "
               "(prepd.ahead_bytes)\n",
               (double)p.total / gib, (double)taken / gib,
               (double)s->conf->prepd_ahead_bytes / gib);
        return ST_OK;
    }
    printf("memory: planned %.3f GiB, taken %.3f GiB: off by %.2f %% (scratch of ops %.3f of %.3f "
           "GiB planned%s; %.3f GiB were in use when the device was opened)\n",
           (double)p.total / gib, (double)taken / gib,
           100.0 * ((double)taken - (double)p.total) / (double)p.total,
           (double)d->counts.scratch / gib, (double)p.gpu.workspace / gib, context,
           (double)d->used_at_open / gib);
    return ST_OK;
}
