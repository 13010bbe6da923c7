/* nonfinite.c: finds where a gradient that is not finite came from.
 *
 * Each rank fills a trace: its loss, the first unit whose values or outputs are not finite, and the
 * last unit whose gradient is not, since a backward pass begins at the last unit. The traces are
 * gathered, and every rank writes the same text from them. Units are counted in the order of the
 * forward pass (model/unit_order.h). */
#include "trainer/run/nonfinite.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "trainer/model/convert.h"
#include "trainer/model/outputs.h"
#include "trainer/model/unit_order.h"

enum {
    RANKS_TOLD = 4,
    SAMPLES_TOLD = 8,
    CHUNK = 1 << 18 /* elements that the host looks at in one piece */
};

/* What a rank has found; -1: nothing is wrong there. */
typedef struct trace {
    int64_t loss_is_bad; /* the loss of its own rows is not finite */
    int64_t value;    /* the parameter, in the first such unit, with a value that is not finite */
    int64_t output;   /* the first unit with such an output */
    int64_t arrived;  /* that output was received from another pipeline stage */
    int64_t gradient; /* the last unit with such a gradient */
    int64_t n_samples;
    uint64_t sample[SAMPLES_TOLD];
} trace;

/* Device memory for a sum of squares over one tensor: the list of tensors, and the result. */
typedef struct probe {
    optim_tensor tensor;
    double total;
} probe;

/* Says whether x, n elements of the accumulation type, is finite: its sum of squares is then finite
 * as well. */
static status probe_array(stream *s, probe *dev, const void *x, int64_t n, bool *out_finite)
{
    const backend_vtable *v = s->dev->backend;
    probe host = {.tensor = {.n = n, .g = x}};
    const sum_squares_args args = {
        .list = {&dev->tensor, 1, 0, (n + OPTIM_CHUNK - 1) / OPTIM_CHUNK}, .total = &dev->total};
    TRY(v->to_device(s, dev, &host, sizeof host));
    TRY(op_sum_squares(s, &args));
    TRY(v->to_host(s, &host.total, &dev->total, sizeof host.total));
    TRY(v->wait(s));
    *out_finite = isfinite(host.total);
    return ST_OK;
}

/* Finds the first parameter that is not finite: values in the order of the forward pass, gradients
 * in that of the backward pass. */
static status probe_params(const session *s, probe *dev, bool gradients, int64_t *out)
{
    const params *p = s->params;
    const int n_units = unit_count(&s->dims);
    *out = -1;
    for (int k = 0; k < n_units; k++)
        for (int64_t i = 0; i < p->count; i++) {
            const param *q = &p->list[i];
            const void *x = gradients ? q->own_grad : q->value;
            bool finite;
            if (q->unit != (gradients ? n_units - 1 - k : k) || q->own_n == 0 || !x)
                continue;
            TRY(probe_array(s->stream, dev, x, q->own_n, &finite));
            if (!finite) {
                *out = i;
                return ST_OK;
            }
        }
    return ST_OK;
}

static status find_params(const session *s, bool with_gradients, trace *t)
{
    const backend_vtable *v = s->device->backend;
    int64_t gradient = -1;
    probe *dev;
    TRY(v->alloc(s->device, sizeof *dev, (void **)&dev));
    status st = probe_params(s, dev, false, &t->value);
    if (st == ST_OK && with_gradients)
        st = probe_params(s, dev, true, &gradient);
    v->release(s->device, dev);
    t->gradient = gradient < 0 ? -1 : s->params->list[gradient].unit;
    return st;
}

/* Host memory into which outputs are read. */
typedef struct reader {
    void *raw;     /* [CHUNK] in the type of activations */
    double *value; /* [CHUNK] */
} reader;

static status read_output(const session *s, const reader *to, const model_output *o, bool *finite)
{
    const backend_vtable *v = s->device->backend;
    const size_t size = st_dtype_size(v->act);
    *finite = true;
    for (int64_t at = 0; at < o->count && *finite; at += CHUNK) {
        const int64_t n = o->count - at < CHUNK ? o->count - at : CHUNK;
        TRY(v->to_host(s->stream, to->raw, (const char *)o->x + (size_t)at * size,
                       (size_t)n * size));
        TRY(v->wait(s->stream));
        convert_to_double(to->value, to->raw, v->act, n);
        for (int64_t i = 0; i < n; i++)
            *finite &= isfinite(to->value[i]) != 0;
    }
    return ST_OK;
}

/* Finds the first output of a flight that is not finite, and keeps it if its unit comes before the
 * one found in another flight. */
static status find_in_flight(const session *s, const reader *to, const model_output *list, int n,
                             trace *t)
{
    bool finite;
    TRY(read_output(s, to, &list[n - 1],
                    &finite)); /* if the last is finite, so are all before it */
    for (int i = 0; i < n && !finite; i++) {
        bool this_one;
        TRY(read_output(s, to, &list[i], &this_one));
        if (this_one)
            continue;
        if (t->output < 0 || list[i].unit < t->output) {
            t->output = list[i].unit;
            t->arrived = list[i].arrived;
        }
        return ST_OK;
    }
    return ST_OK;
}

static status find_output(const session *s, device_batch *const *batch, trace *t)
{
    reader to = {.raw = malloc(CHUNK * st_dtype_size(s->device->backend->act)),
                 .value = malloc(CHUNK * sizeof *to.value)};
    model_output *list = calloc((size_t)unit_count(&s->dims), sizeof *list);
    status st = ST_OK;
    if (!to.raw || !to.value || !list)
        st = FAIL(ST_NO_MEMORY, "no memory to read the outputs of layers");
    for (int f = 0; f < model_flights(s->model) && st == ST_OK; f++)
        if (batch[f])
            st = find_in_flight(s, &to, list, model_outputs(s->model, f, batch[f], list), t);
    free(list);
    free(to.value);
    free(to.raw);
    return st;
}

/* The text being written; what does not fit is cut off. */
typedef struct words {
    char *to;
    size_t size, used;
} words;

static void append_phrase(words *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void append_phrase(words *w, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(w->to + w->used, w->size - w->used, fmt, args);
    va_end(args);
    w->used = w->used + (size_t)n < w->size ? w->used + (size_t)n : w->size - 1;
}

static void say_unit(words *w, const model_dims *d, int unit)
{
    if (unit == unit_head(d)) {
        append_phrase(w, "head");
    } else if (unit == unit_embedding(d)) {
        append_phrase(w, "embedding");
    } else if (unit > unit_embedding(d)) {
        append_phrase(w, "layer %d", unit - unit_layer(d, 0));
    } else if (unit == unit_patch()) {
        append_phrase(w, "patch embedding");
    } else if (unit == unit_merger(d, 0)) {
        append_phrase(w, "merger");
    } else {
        for (int b = 0; b < (int)d->vision.depth; b++)
            if (unit == unit_block(d, b))
                append_phrase(w, "vision block %d", b);
        for (int j = 0; j < d->vision.n_deepstack; j++)
            if (unit == unit_merger(d, 1 + j))
                append_phrase(w, "deepstack merger %d", j);
    }
}

/* The traces of all ranks; if the other ranks are simulated, only this rank's own. */
typedef struct traces {
    const trace *of;
    int count, first_rank;
    int64_t accumulation;
} traces;

typedef bool rank_choice(const trace *t, int64_t of);

static bool stores_value(const trace *t, int64_t of)
{
    return t->value == of;
}

static bool made_output(const trace *t, int64_t of)
{
    return t->output == of && !t->arrived;
}

static bool was_given(const trace *t, int64_t of)
{
    return t->output == of && t->arrived;
}

static bool lost(const trace *t, int64_t of)
{
    (void)of;
    return t->loss_is_bad;
}

static bool holds_gradient(const trace *t, int64_t of)
{
    return t->gradient == of;
}

static int count_ranks(const traces *all, rank_choice *is, int64_t of)
{
    int n = 0;
    for (int r = 0; r < all->count; r++)
        n += is(&all->of[r], of);
    return n;
}

/* Lists the ranks for which `is` holds, with the samples of each if wanted. */
static void say_ranks(words *w, const traces *all, rank_choice *is, int64_t of, bool with_samples)
{
    int told = 0;
    for (int r = 0; r < all->count && told < RANKS_TOLD; r++) {
        const trace *t = &all->of[r];
        if (!is(t, of))
            continue;
        append_phrase(w, "%srank %d", told++ ? ", " : "", all->first_rank + r);
        if (!with_samples)
            continue;
        append_phrase(w, " (samples");
        for (int64_t i = 0; i < t->n_samples && i < SAMPLES_TOLD; i++)
            append_phrase(w, " %" PRIu64, t->sample[i]);
        append_phrase(w, "%s)", t->n_samples > SAMPLES_TOLD ? " .." : t->n_samples ? "" : " none");
    }
    if (count_ranks(all, is, of) > told)
        append_phrase(w, " and %d more", count_ranks(all, is, of) - told);
}

/* The first unit whose output some rank found not finite; -1: no rank did. */
static int64_t first_unit(const traces *all)
{
    int64_t first = -1;
    for (int r = 0; r < all->count; r++)
        if (all->of[r].output >= 0 && (first < 0 || all->of[r].output < first))
            first = all->of[r].output;
    return first;
}

/* The last unit whose gradient some rank found not finite; -1: no rank did. */
static int64_t last_unit(const traces *all)
{
    int64_t last = -1;
    for (int r = 0; r < all->count; r++)
        last = all->of[r].gradient > last ? all->of[r].gradient : last;
    return last;
}

/* The parameter, in the first such unit, whose values some rank found not finite; -1: no rank did.
 */
static int64_t first_param(const session *s, const traces *all)
{
    const param *list = s->params->list;
    int64_t first = -1;
    for (int r = 0; r < all->count; r++) {
        const int64_t own = all->of[r].value;
        if (own >= 0 && (first < 0 || list[own].unit < list[first].unit))
            first = own;
    }
    return first;
}

static void say_forward(words *w, const session *s, const traces *all, bool looked)
{
    const int64_t unit = first_unit(all);
    const bool head = looked && unit < 0 && all->accumulation == 1;
    if (unit >= 0 && !count_ranks(all, made_output, unit)) {
        append_phrase(w, "what the pipeline stage before sent to ");
        say_ranks(w, all, was_given, unit, true);
        append_phrase(w, " after ");
        say_unit(w, &s->dims, (int)unit);
        append_phrase(w, " is not finite; that stage no longer keeps the micro-batch");
    } else if (unit >= 0 || head) {
        append_phrase(w, "the forward pass is not finite from ");
        say_unit(w, &s->dims, head ? unit_head(&s->dims) : (int)unit);
        append_phrase(w, " on: ");
        say_ranks(w, all, head ? lost : made_output, unit, true);
    } else {
        append_phrase(w, "the loss is not finite: ");
        say_ranks(w, all, lost, 0, true);
        append_phrase(
            w, looked ? "; it went wrong in the head, or in an earlier micro-batch, of which no "
                        "outputs are kept"
                      : "; the layer is not known, because the next step was already under way");
    }
}

static void say_all(words *w, const session *s, const traces *all, bool looked)
{
    const int64_t value = first_param(s, all), gradient = last_unit(all);
    if (value >= 0) {
        append_phrase(w, "values of ");
        say_unit(w, &s->dims, s->params->list[value].unit);
        append_phrase(w, " (%s) are not finite, stored by ", s->params->list[value].name);
        say_ranks(w, all, stores_value, value, false);
        append_phrase(w, "; ");
    }
    if (first_unit(all) >= 0 || count_ranks(all, lost, 0)) {
        say_forward(w, s, all, looked);
    } else if (gradient >= 0) {
        append_phrase(w, "every loss is finite, and in the backward pass ");
        say_unit(w, &s->dims, (int)gradient);
        append_phrase(w, " is the first whose gradient is not, held by ");
        say_ranks(w, all, holds_gradient, gradient, all->count == 1);
    } else {
        append_phrase(w, "every loss is finite; the layer is not known, because the next step was "
                         "already under way");
    }
}

/* Gathers the traces of all ranks and writes the text. Simulated ranks have none, so a rank among
 * them writes about itself alone. */
static status share_traces(const session *s, const trace *own, words *w, bool looked)
{
    const comm *all = mesh_comm(&s->mesh, MESH_WORLD);
    const bool alone = all->size == 1 || world_simulated(s->world);
    traces told = {own, 1, s->mesh.rank, s->accumulation};
    if (alone) {
        say_all(w, s, &told, looked);
        return ST_OK;
    }
    trace *of = calloc((size_t)all->size, sizeof *of);
    if (!of)
        return FAIL(ST_NO_MEMORY, "no memory for the findings of %d ranks", all->size);
    status st =
        comm_host_all_gather(all, (comm_at){"find what is not finite", -1}, own, of, sizeof *own);
    told = (traces){of, all->size, 0, s->accumulation};
    if (st == ST_OK)
        say_all(w, s, &told, looked);
    free(of);
    return st;
}

status nonfinite_find(session *s, const step_report *r, double own_loss, device_batch *const *batch,
                      char *out, size_t size)
{
    trace own = {.loss_is_bad = !isfinite(own_loss),
                 .value = -1,
                 .output = -1,
                 .gradient = -1,
                 .n_samples = r->n_samples};
    words w = {.to = out, .size = size};
    for (int64_t i = 0; i < r->n_samples && i < SAMPLES_TOLD; i++)
        own.sample[i] = r->sample[i];
    out[0] = '\0';
    TRY(s->device->backend->wait(s->stream));
    TRY(find_params(s, batch != NULL, &own));
    if (batch)
        TRY(find_output(s, batch, &own));
    return share_traces(s, &own, &w, batch != NULL);
}
