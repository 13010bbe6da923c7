#include "trainer/run/session_memory.h"

#include <stdio.h>

#include "trainer/checkpoint/writer.h"
#include "trainer/plan/layout_plan.h"

status session_memory_plan(const session *s, memory_plan *out)
{
    model_options o = {.cap = s->cap,
                       .training = true,
                       .again = s->again,
                       .router_aux_coef = s->conf->loss_router_aux,
                       .exchange = memory_exchange_way(s->conf, &s->mesh.layout)};
    memory_plan p;
    params_sizes size;
    TRY(params_size(s->params, s->device->v, true, &size));
    int64_t n = size.stored, trained = size.trained;
    model_options_freeze(&o, s->params);
    const memory_shapes shapes = {s->buckets.cap, s->buckets.n, s->conf->training_local_batch_size,
                                  memory_rows_ahead(s->conf)};
    o.mesh = s->mesh.layout.world > 1 ? &s->mesh : NULL;
    TRY(memory_plan_make(&s->dims, n, trained, &o, &shapes, s->device->v, &p));
    memory_plan_add_gathered(&p, size.gathered_bytes);
    if (s->generator)
        memory_plan_add_answers(&p, &s->dims, &s->mesh,
                                s->cap.tokens / s->conf->training_local_batch_size, s->device->v);
    if (keeper_in_background(s->conf))
        memory_plan_add_snapshot(&p, n, trained, s->device->v);
    *out = p;
    return ST_OK;
}

/* What it would take of a GPU; of several ranks that is on stdout already. */
static status print_for_gpu(const session *s)
{
    layout l;
    if (s->use != SESSION_TRAIN || s->mesh.layout.world > 1)
        return ST_OK;
    TRY(layout_of(s->conf, NULL, &l));
    return layout_print(s->conf, &l, &s->dims, s->params, stdout, NULL);
}

/* It does not fit, for the reason that status_last has. */
static status refuse(const session *s, const memory_layout *l, status st)
{
    const status_note why = *status_last();
    const char *no_gpu = s->device->no_gpu;
    memory_plan needs;
    if (no_gpu[0] && print_for_gpu(s) == ST_OK)
        printf("on the CPU that is here instead, float32:\n");
    if (memory_layout_plan(l, &needs) == ST_OK)
        memory_plan_print(&needs, stdout);
    fflush(stdout);
    status_set(&why);
    if (!no_gpu[0])
        return st;
    return FAIL(st,
                "no GPU for this run: %s; the CPU, which is taken in its place (training.backend "
                "auto), does not hold it: %s; both plans are above",
                no_gpu, why.message);
}

status session_memory_check(const session *s, int64_t seq_len, int64_t patch_budget, bool answers)
{
    const conf *c = s->conf;
    size_t used, total;
    TRY(s->device->v->memory(s->device, &used, &total));
    params_sizes size;
    TRY(params_size(s->params, s->device->v, s->use == SESSION_TRAIN, &size));
    memory_layout l = {
        .dims = &s->dims,
        .backend = s->device->v,
        .n_params = size.stored,
        .n_trained = size.trained,
        .gathered = size.gathered_bytes,
        .mesh = &s->mesh,
        .rows = c->training_local_batch_size,
        .buckets = s->buckets.cap,
        .n_buckets = s->buckets.n,
        .ahead = memory_rows_ahead(c),
        .seq_len = seq_len,
        .patch_budget = patch_budget,
        .training = s->use == SESSION_TRAIN,
        .again = s->again,
        .router_aux_coef = c->loss_router_aux,
        .keeps = s->use == SESSION_TRAIN && keeper_in_background(c),
        .answers = answers,
        .exchange = memory_exchange_way(c, &s->mesh.layout),
    };
    model_options frozen = {0};
    model_options_freeze(&frozen, s->params);
    l.tower_frozen = frozen.tower_frozen;
    l.vision_frozen = frozen.vision_frozen;
    l.lora_rank = frozen.lora_rank;
    l.lora_experts = frozen.lora_experts;
    status st = memory_layout_check(&l, c->memory_limit * (double)total);
    return st == ST_OK ? ST_OK : refuse(s, &l, st);
}

status session_memory_taken(const session *s, size_t *out)
{
    size_t used, total;
    TRY(s->device->v->memory(s->device, &used, &total));
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
    if (d->v->overhead && d->context_bytes == 0) { /* then neither side has it */
        p.total -= p.gpu.context;
        snprintf(context, sizeof context, ", the context on neither side");
    }
    if (!s->conf->feed_replay[0] && d->v == &backend_cpu) {
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
