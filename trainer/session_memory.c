#include "trainer/session_memory.h"

#include "trainer/checkpoint/keeper.h"

status session_memory_plan(const session *s, memory_plan *out)
{
    model_options o = {.cap = s->cap,
                       .training = true,
                       .checkpoint_full = s->conf->ac_mode == AC_FULL,
                       .router_aux_coef = s->conf->loss_router_aux};
    memory_plan p;
    params_sizes size;
    TRY(params_size(s->params, s->device->v, true, &size));
    int64_t n = size.stored, trained = size.trained;
    model_options_freeze(&o, s->params);
    TRY(memory_plan_make(&s->dims, n, trained, &o, s->device->v, &p));
    memory_plan_add_gathered(&p, size.gathered_bytes);
    if (s->generator)
        memory_plan_add_answers(&p, &s->dims, s->cap.tokens / s->conf->training_local_batch_size,
                                s->device->v);
    if (keeper_in_background(s->conf))
        memory_plan_add_snapshot(&p, n, trained, s->device->v);
    *out = p;
    return ST_OK;
}

status session_memory_tell(const session *s)
{
    const double gib = 1073741824.0;
    memory_plan p;
    size_t used, total;
    TRY(session_memory_plan(s, &p));
    TRY(s->device->v->memory(s->device, &used, &total));
    double taken = (double)used - (double)s->device->used_at_open;
    double known = (double)p.total + (double)s->device->counts.scratch;
    printf("memory: planned %.3f GiB, scratch of ops %.3f GiB, taken %.3f GiB: off by %.2f %% "
           "(%.3f GiB were in use when the device was opened)\n",
           (double)p.total / gib, (double)s->device->counts.scratch / gib, taken / gib,
           100.0 * (taken - known) / known, (double)s->device->used_at_open / gib);
    return ST_OK;
}
