/* skew.c: biases the router of a bench until the experts' loads have the wanted shape. An untrained
 * router gives its busiest expert anything from once to three times the mean load, by accident, and
 * a bench must know which load it measures. */
#include <math.h>
#include <stdlib.h>

#include "trainer/bench/bench.h"
#include "trainer/bench/skew.h"
#include "trainer/model/dims/convert.h"
#include "trainer/run/step.h"

/* Each round moves each bias towards the wanted load, by up to the bias's own reach in logits. The
 * reach shrinks if the load has passed the wanted one and grows if it has not, and so adapts to the
 * spread of this router's logits. The loads are set when STABLE rounds in a row are within OFF of
 * the wanted one. */
enum { STABLE = 3 };
static const double OFF = 0.03;
static const double REACH = 0.25, SHRINK = 0.5, GROW = 1.2;

struct skew {
    int64_t layers, experts;
    double load;     /* the wanted one of the busiest expert over the mean */
    void *bias;      /* [layers, experts] in the type of activations, in device memory */
    double *value;   /* [layers, experts] the same biases on the host */
    double *slots;   /* [layers, experts] loads, averaged half and half with the rounds before */
    double *reach;   /* [layers, experts] for the next round; negative: the last move was down */
    int32_t *target; /* [experts + 1] the wanted loads, as offsets (bench_loads) */
    int32_t *count;  /* [layers, experts] loads of the last micro-batch */
    void *act;       /* [layers, experts] values converted for the device */
};

void skew_free(skew **held, session *run)
{
    skew *slow = *held;
    if (!slow)
        return;
    if (slow->bias)
        run->device->backend->release(run->device, slow->bias);
    free(slow->value);
    free(slow->slots);
    free(slow->reach);
    free(slow->target);
    free(slow->count);
    free(slow->act);
    free(slow);
    *held = NULL;
}

status skew_new(session *run, double load, skew **out)
{
    const backend_vtable *backend = run->device->backend;
    const int64_t layers = run->dims.text.layers, experts = run->dims.text.experts;
    size_t count = (size_t)(layers * experts), act = st_dtype_size(backend->act);
    if (experts == 0)
        return FAIL(ST_USAGE, "bench step --load: %s has no experts", run->dims.name);
    if (!(load >= 1.0) || load > (double)experts / (double)run->dims.text.top_k)
        return FAIL(ST_USAGE,
                    "bench step --load: with %lld experts the busiest one can have 1 to %.1f times "
                    "the mean load where a token goes to %lld of them, not %g times",
                    (long long)experts, (double)experts / (double)run->dims.text.top_k,
                    (long long)run->dims.text.top_k, load);
    skew *slow = calloc(1, sizeof *slow);
    if (!slow)
        return FAIL(ST_NO_MEMORY, "no memory to bias the router");
    *slow = (skew){.layers = layers,
                   .experts = experts,
                   .load = load,
                   .value = calloc(count, sizeof *slow->value),
                   .slots = calloc(count, sizeof *slow->slots),
                   .reach = calloc(count, sizeof *slow->reach),
                   .target = calloc((size_t)experts + 1, sizeof *slow->target),
                   .count = calloc(count, sizeof *slow->count),
                   .act = calloc(count, act)};
    status st =
        slow->value && slow->slots && slow->reach && slow->target && slow->count && slow->act
            ? backend->alloc(run->device, count * act, &slow->bias)
            : FAIL(ST_NO_MEMORY, "no memory to bias the router");
    if (st != ST_OK) {
        skew_free(&slow, run);
        return st;
    }
    bench_loads(experts, run->cap.tokens * run->dims.text.top_k, load, slow->target);
    model_bias_router(run->model, slow->bias);
    *out = slow;
    return ST_OK;
}

status skew_measure(skew *slow, session *run, double *out_load)
{
    const backend_vtable *backend = run->device->backend;
    double sum = 0.0;
    int64_t count = 0;
    TRY(backend->to_host(run->stream, slow->count, model_expert_count(run->model),
                         (size_t)(slow->layers * slow->experts) * sizeof *slow->count));
    TRY(backend->wait(run->stream));
    for (int64_t layer = 0; layer < slow->layers; layer++) {
        int64_t total = 0, most = 0;
        for (int64_t expert = 0; expert < slow->experts; expert++) {
            int64_t tokens = slow->count[layer * slow->experts + expert];
            total += tokens;
            most = tokens > most ? tokens : most;
        }
        if (!dims_layer_is_moe(&run->dims, layer) || total == 0)
            continue;
        sum += (double)most * (double)slow->experts / (double)total;
        count++;
    }
    *out_load = count > 0 ? sum / (double)count : 0.0;
    return ST_OK;
}

/* Moves each bias by its reach, or by less if the load is off by less than a factor of two. */
static status move_biases(skew *slow, session *run, bool first)
{
    const backend_vtable *backend = run->device->backend;
    for (int64_t i = 0; i < slow->layers * slow->experts; i++) {
        int64_t expert = i % slow->experts;
        double want = (double)(slow->target[expert + 1] - slow->target[expert]);
        slow->slots[i] = (slow->slots[i] + (double)slow->count[i]) / (first ? 1.0 : 2.0);
        double off = log((want + 1.0) / (slow->slots[i] + 1.0)) / log(2.0);
        double last = slow->reach[i], reach = fabs(last);
        reach = last == 0.0 ? REACH : reach * ((last < 0.0) == (off < 0.0) ? GROW : SHRINK);
        slow->value[i] += reach * fmin(fmax(off, -1.0), 1.0);
        slow->reach[i] = off < 0.0 ? -reach : reach;
    }
    convert_from_double(slow->act, backend->act, slow->value, slow->layers * slow->experts);
    TRY(backend->to_device(run->stream, slow->bias, slow->act,
                           (size_t)(slow->layers * slow->experts) * st_dtype_size(backend->act)));
    return backend->wait(run->stream);
}

status skew_settle(skew *slow, session *run, int64_t rounds, int64_t *step)
{
    int stable = 0;
    for (int64_t i = 0; i < rounds && stable < STABLE; i++) {
        step_report report;
        double load;
        TRY(step_run(run, ++*step, &report));
        TRY(skew_measure(slow, run, &load));
        TRY(move_biases(slow, run, i == 0));
        stable = fabs(load - slow->load) <= OFF * slow->load ? stable + 1 : 0;
    }
    return ST_OK;
}
