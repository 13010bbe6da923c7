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
    CHUNK = 1 << 18 /* elements looked at on the host at once */
};

/* What a rank has found; -1: nothing. */
typedef struct trace {
    int64_t loss_is_bad; /* of its own rows */
    int64_t value;       /* parameter of the first unit with a value that is not finite */
    int64_t output;      /* the first unit with such an output */
    int64_t arrived;     /* and it came so from another stage */
    int64_t gradient;    /* the last unit with such a gradient */
    int64_t n_samples;
    uint64_t sample[SAMPLES_TOLD];
} trace;

/* A sum of squares on the device: its list of one tensor, and its result. */
typedef struct probe {
    optim_tensor tensor;
    double total;
} probe;

/* x [n] acc. */
static status probe_array(stream *s, probe *dev, const void *x, int64_t n, bool *out_finite)
{
    const backend_vtable *v = s->dev->v;
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

/* Values in the order of a forward; gradients in that of a backward. */
static status probe_params(const session *s, probe *dev, bool gradients, int64_t *out)
{
    const params *p = s->params;
    const int n_units = unit_count(&s->dims);
    *out = -1;
    for (int k = 0; k < n_units; k++)
        for (int64_t i = 0; i < p->n; i++) {
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
    const backend_vtable *v = s->device->v;
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

/* Where outputs are read to. */
typedef struct reader {
    void *raw;     /* [CHUNK] act */
    double *value; /* [CHUNK] */
} reader;

static status read_output(const session *s, const reader *to, const model_output *o, bool *finite)
{
    const backend_vtable *v = s->device->v;
    const size_t size = st_dtype_size(v->act);
    *finite = true;
    for (int64_t at = 0; at < o->n && *finite; at += CHUNK) {
        const int64_t n = o->n - at < CHUNK ? o->n - at : CHUNK;
        TRY(v->to_host(s->stream, to->raw, (const char *)o->x + (size_t)at * size,
                       (size_t)n * size));
        TRY(v->wait(s->stream));
        convert_to_double(to->value, to->raw, v->act, n);
        for (int64_t i = 0; i < n; i++)
            *finite &= isfinite(to->value[i]) != 0;
    }
    return ST_OK;
}

/* The first of a flight's, if it is before what was found in another. */
static status find_in_flight(const session *s, const reader *to, const model_output *list, int n,
                             trace *t)
{
    bool finite;
    TRY(read_output(s, to, &list[n - 1], &finite)); /* tells whether there is one */
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
    reader to = {.raw = malloc(CHUNK * st_dtype_size(s->device->v->act)),
                 .value = malloc(CHUNK * sizeof *to.value)};
    model_output *list = calloc((size_t)unit_count(&s->dims), sizeof *list);
    status st = ST_OK;
    if (!to.raw || !to.value || !list)
        st = FAIL(ST_NO_MEMORY, "no memory to look at the outputs of layers");
    for (int f = 0; f < model_flights(s->model) && st == ST_OK; f++)
        if (batch[f])
            st = find_in_flight(s, &to, list, model_outputs(s->model, f, batch[f], list), t);
    free(list);
    free(to.value);
    free(to.raw);
    return st;
}

/* What is said, cut off where it gets too long. */
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

/* All ranks' traces; of a rank that is replayed alone its own. */
typedef struct traces {
    const trace *of;
    int n, first_rank;
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
    for (int r = 0; r < all->n; r++)
        n += is(&all->of[r], of);
    return n;
}

/* Those ranks that it is true of, and what they were given. */
static void say_ranks(words *w, const traces *all, rank_choice *is, int64_t of, bool with_samples)
{
    int told = 0;
    for (int r = 0; r < all->n && told < RANKS_TOLD; r++) {
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

/* Of the outputs that ranks found; -1: none did. */
static int64_t first_unit(const traces *all)
{
    int64_t first = -1;
    for (int r = 0; r < all->n; r++)
        if (all->of[r].output >= 0 && (first < 0 || all->of[r].output < first))
            first = all->of[r].output;
    return first;
}

/* Of the gradients that ranks found, on the way back; -1: none did. */
static int64_t last_unit(const traces *all)
{
    int64_t last = -1;
    for (int r = 0; r < all->n; r++)
        last = all->of[r].gradient > last ? all->of[r].gradient : last;
    return last;
}

/* Of the parameters whose values ranks found: that of the first unit; -1: none did. */
static int64_t first_param(const session *s, const traces *all)
{
    const param *list = s->params->list;
    int64_t first = -1;
    for (int r = 0; r < all->n; r++) {
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
        append_phrase(w, "what reached ");
        say_ranks(w, all, was_given, unit, true);
        append_phrase(w, " from the stage before, behind ");
        say_unit(w, &s->dims, (int)unit);
        append_phrase(w, ", is not finite; the stage has gone on from that micro-batch");
    } else if (unit >= 0 || head) {
        append_phrase(w, "the forward is not finite from ");
        say_unit(w, &s->dims, head ? unit_head(&s->dims) : (int)unit);
        append_phrase(w, " on: ");
        say_ranks(w, all, head ? lost : made_output, unit, true);
    } else {
        append_phrase(w, "the loss is not finite: ");
        say_ranks(w, all, lost, 0, true);
        append_phrase(
            w, looked
                   ? "; in the head, or in a micro-batch before the last, of which nothing is kept"
                   : "; the layer is not known, the next step was under way");
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
        append_phrase(w, "every loss is finite, and on the way back ");
        say_unit(w, &s->dims, (int)gradient);
        append_phrase(w, " is the first whose gradient is not, held by ");
        say_ranks(w, all, holds_gradient, gradient, all->n == 1);
    } else {
        append_phrase(w,
                      "every loss is finite; the layer is not known, the next step was under way");
    }
}

/* Nobody else is there of a rank that is replayed. */
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
        return FAIL(ST_NO_MEMORY, "no memory to ask %d ranks", all->size);
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
    TRY(s->device->v->wait(s->stream));
    TRY(find_params(s, batch != NULL, &own));
    if (batch)
        TRY(find_output(s, batch, &own));
    return share_traces(s, &own, &w, batch != NULL);
}
