/* skew.c: biases the router of a bench until the experts' loads have the wanted shape. An untrained
 * router gives its busiest expert anything from once to three times the mean load, by accident, and
 * a bench must know which load it measures. */
#include <math.h>
#include <stdlib.h>

#include "trainer/bench/bench.h"
#include "trainer/bench/skew.h"
#include "trainer/model/convert.h"
#include "trainer/run/step.h"

/* Each round moves each bias towards the wanted load, by up to the bias's own reach in logits. The
 * reach shrinks if the load has passed the wanted one and grows if it has not, and so adapts to the
 * spread of this router's logits. */
enum { ROUNDS = 36 };
static const double REACH = 0.25, SHRINK = 0.5, GROW = 1.2;

struct skew {
    int64_t layers, experts;
    void *bias;      /* [layers, experts] in the type of activations, in device memory */
    double *value;   /* [layers, experts] the same biases on the host */
    double *slots;   /* [layers, experts] loads, averaged half and half with the rounds before */
    double *reach;   /* [layers, experts] for the next round; negative: the last move was down */
    int32_t *target; /* [experts + 1] the wanted loads, as offsets (bench_loads) */
    int32_t *count;  /* [layers, experts] loads of the last micro-batch */
    void *act;       /* [layers, experts] values converted for the device */
};

void skew_free(skew **held, session *s)
{
    skew *k = *held;
    if (!k)
        return;
    if (k->bias)
        s->device->backend->release(s->device, k->bias);
    free(k->value);
    free(k->slots);
    free(k->reach);
    free(k->target);
    free(k->count);
    free(k->act);
    free(k);
    *held = NULL;
}

status skew_new(session *s, double load, skew **out)
{
    const backend_vtable *v = s->device->backend;
    const int64_t layers = s->dims.text.layers, experts = s->dims.text.experts;
    size_t n = (size_t)(layers * experts), act = st_dtype_size(v->act);
    if (experts == 0)
        return FAIL(ST_USAGE, "bench step --load: %s has no experts", s->dims.name);
    if (!(load >= 1.0) || load > (double)experts / (double)s->dims.text.top_k)
        return FAIL(ST_USAGE,
                    "bench step --load: with %lld experts the busiest one can have 1 to %.1f times "
                    "the mean load where a token goes to %lld of them, not %g times",
                    (long long)experts, (double)experts / (double)s->dims.text.top_k,
                    (long long)s->dims.text.top_k, load);
    skew *k = calloc(1, sizeof *k);
    if (!k)
        return FAIL(ST_NO_MEMORY, "no memory to bias the router");
    *k = (skew){.layers = layers,
                .experts = experts,
                .value = calloc(n, sizeof *k->value),
                .slots = calloc(n, sizeof *k->slots),
                .reach = calloc(n, sizeof *k->reach),
                .target = calloc((size_t)experts + 1, sizeof *k->target),
                .count = calloc(n, sizeof *k->count),
                .act = calloc(n, act)};
    status st = k->value && k->slots && k->reach && k->target && k->count && k->act
                    ? v->alloc(s->device, n * act, &k->bias)
                    : FAIL(ST_NO_MEMORY, "no memory to bias the router");
    if (st != ST_OK) {
        skew_free(&k, s);
        return st;
    }
    bench_loads(experts, s->cap.tokens * s->dims.text.top_k, load, k->target);
    model_bias_router(s->model, k->bias);
    *out = k;
    return ST_OK;
}

status skew_measure(skew *k, session *s, double *out_load)
{
    const backend_vtable *v = s->device->backend;
    double sum = 0.0;
    int64_t n = 0;
    TRY(v->to_host(s->stream, k->count, model_expert_count(s->model),
                   (size_t)(k->layers * k->experts) * sizeof *k->count));
    TRY(v->wait(s->stream));
    for (int64_t l = 0; l < k->layers; l++) {
        int64_t total = 0, most = 0;
        for (int64_t e = 0; e < k->experts; e++) {
            int64_t c = k->count[l * k->experts + e];
            total += c;
            most = c > most ? c : most;
        }
        if (!dims_layer_is_moe(&s->dims, l) || total == 0)
            continue;
        sum += (double)most * (double)k->experts / (double)total;
        n++;
    }
    *out_load = n > 0 ? sum / (double)n : 0.0;
    return ST_OK;
}

/* Moves each bias by its reach, or by less if the load is off by less than a factor of two. */
static status move_biases(skew *k, session *s, bool first)
{
    const backend_vtable *v = s->device->backend;
    for (int64_t i = 0; i < k->layers * k->experts; i++) {
        int64_t e = i % k->experts;
        double want = (double)(k->target[e + 1] - k->target[e]);
        k->slots[i] = (k->slots[i] + (double)k->count[i]) / (first ? 1.0 : 2.0);
        double off = log((want + 1.0) / (k->slots[i] + 1.0)) / log(2.0);
        double last = k->reach[i], reach = fabs(last);
        reach = last == 0.0 ? REACH : reach * ((last < 0.0) == (off < 0.0) ? GROW : SHRINK);
        k->value[i] += reach * fmin(fmax(off, -1.0), 1.0);
        k->reach[i] = off < 0.0 ? -reach : reach;
    }
    convert_from_double(k->act, v->act, k->value, k->layers * k->experts);
    TRY(v->to_device(s->stream, k->bias, k->act,
                     (size_t)(k->layers * k->experts) * st_dtype_size(v->act)));
    return v->wait(s->stream);
}

status skew_settle(skew *k, session *s, int64_t *step)
{
    for (int i = 0; i < ROUNDS; i++) {
        step_report r;
        double load;
        TRY(step_run(s, ++*step, &r));
        TRY(skew_measure(k, s, &load));
        TRY(move_biases(k, s, i == 0));
    }
    return ST_OK;
}
