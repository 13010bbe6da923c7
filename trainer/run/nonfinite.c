/* SPDX-License-Identifier: Apache-2.0 */
/* nonfinite.c: finds where a gradient that is not finite came from.
 *
 * Each rank fills a trace: its loss, the first unit whose values or outputs are not finite, and the
 * last unit whose gradient is not, since a backward pass begins at the last unit. The traces are
 * gathered, and every rank writes the same text from them. Units are counted in the order of the
 * forward pass (model/params/unit_order.h). */
#include "trainer/run/step_parts.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/words.h"
#include "trainer/model/dims/convert.h"
#include "trainer/model/qwen3vl.h"
#include "trainer/model/params/unit_order.h"

enum {
    RANKS_NAMED = 4,
    SAMPLES_NAMED = 8,
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
    uint64_t sample[SAMPLES_NAMED];
} trace;

/* Device memory for a sum of squares over one tensor: the list of tensors, and the result. */
typedef struct probe {
    optim_tensor tensor;
    double total;
} probe;

/* Says whether `array`, `count` elements of the accumulation type, is finite: its sum of squares is
 * then finite as well. */
static status probe_array(stream *queue, probe *on_device, const void *array, int64_t count,
                          bool *out_finite)
{
    const backend_vtable *backend = queue->dev->backend;
    probe host = {.tensor = {.n = count, .g = array}};
    const sum_squares_args args = {
        .list = {&on_device->tensor, 1, 0, (count + OPTIM_CHUNK - 1) / OPTIM_CHUNK},
        .total = &on_device->total};
    TRY(backend->to_device(queue, on_device, &host, sizeof host));
    TRY(op_sum_squares(queue, &args));
    TRY(backend->to_host(queue, &host.total, &on_device->total, sizeof host.total));
    TRY(backend->wait(queue));
    *out_finite = isfinite(host.total);
    return ST_OK;
}

/* Host memory into which values and outputs are read. */
typedef struct reader {
    void *raw;     /* [CHUNK] in their own type */
    double *value; /* [CHUNK] */
} reader;

static status read_array(const session *run, const reader *to, const void *array, st_dtype dtype,
                         int64_t count, bool *out_finite)
{
    const backend_vtable *backend = run->device->backend;
    const size_t size = st_dtype_size(dtype);
    *out_finite = true;
    for (int64_t at = 0; at < count && *out_finite; at += CHUNK) {
        const int64_t part = count - at < CHUNK ? count - at : CHUNK;
        TRY(backend->to_host(run->stream, to->raw, (const char *)array + (size_t)at * size,
                             (size_t)part * size));
        TRY(backend->wait(run->stream));
        convert_to_double(to->value, to->raw, dtype, part);
        for (int64_t i = 0; i < part; i++)
            *out_finite &= isfinite(to->value[i]) != 0;
    }
    return ST_OK;
}

/* What values and gradients are looked at with. */
typedef struct looking {
    probe *on_device;
    reader host;
} looking;

/* Says whether a row's gradient, or what is stored of its value, is finite. The sum of squares is
 * there for the accumulation type alone, so other arrays are read by the host. Frozen values, which
 * may be most of the model, are read once in a run: they do not change. */
static status look_at(const session *run, const looking *with, const param *entry, bool gradient,
                      bool *out_finite)
{
    st_dtype dtype = run->device->backend->acc;
    const void *array = gradient ? entry->own_grad : param_best(entry, &dtype);
    *out_finite = true;
    if (!array || entry->own_n == 0 || (entry->frozen && run->frozen_is_finite))
        return ST_OK;
    if (dtype == run->device->backend->acc)
        return probe_array(run->stream, with->on_device, array, entry->own_n, out_finite);
    return read_array(run, &with->host, array, dtype, entry->own_n, out_finite);
}

/* Finds the first parameter that is not finite: values in the order of the forward pass, gradients
 * in that of the backward pass. */
static status find_param(const session *run, const looking *with, bool gradients, int64_t *out)
{
    const params *registry = run->params;
    const int n_units = unit_count(&run->dims);
    *out = -1;
    for (int k = 0; k < n_units; k++)
        for (int64_t i = 0; i < registry->count; i++) {
            const param *entry = &registry->list[i];
            bool finite;
            if (entry->unit != (gradients ? n_units - 1 - k : k))
                continue;
            TRY(look_at(run, with, entry, gradients, &finite));
            if (!finite) {
                *out = i;
                return ST_OK;
            }
        }
    return ST_OK;
}

static status find_params(session *run, const reader *host, bool with_gradients, trace *traced)
{
    const backend_vtable *backend = run->device->backend;
    int64_t gradient = -1;
    looking with = {.host = *host};
    TRY(backend->alloc(run->device, sizeof *with.on_device, (void **)&with.on_device));
    status st = find_param(run, &with, false, &traced->value);
    run->frozen_is_finite |= st == ST_OK && traced->value < 0;
    if (st == ST_OK && with_gradients)
        st = find_param(run, &with, true, &gradient);
    backend->release(run->device, with.on_device);
    traced->gradient = gradient < 0 ? -1 : run->params->list[gradient].unit;
    return st;
}

static status read_output(const session *run, const reader *to, const model_output *output,
                          bool *out_finite)
{
    return read_array(run, to, output->x, run->device->backend->act, output->count, out_finite);
}

/* Finds the first output of a flight that is not finite, and keeps it if its unit comes before the
 * one found in another flight. */
static status find_in_flight(const session *run, const reader *to, const model_output *list,
                             int count, trace *traced)
{
    bool finite;
    TRY(read_output(run, to, &list[count - 1],
                    &finite)); /* if the last is finite, so are all before it */
    for (int i = 0; i < count && !finite; i++) {
        bool this_one;
        TRY(read_output(run, to, &list[i], &this_one));
        if (this_one)
            continue;
        if (traced->output < 0 || list[i].unit < traced->output) {
            traced->output = list[i].unit;
            traced->arrived = list[i].arrived;
        }
        return ST_OK;
    }
    return ST_OK;
}

static status find_output(const session *run, const reader *to, device_batch *const *batch,
                          trace *traced)
{
    model_output *list = calloc((size_t)unit_count(&run->dims), sizeof *list);
    status st = list ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for a list of outputs");
    for (int flight_of = 0; flight_of < model_flights(run->model) && st == ST_OK; flight_of++)
        if (batch[flight_of])
            st = find_in_flight(run, to, list,
                                model_outputs(run->model, flight_of, batch[flight_of], list),
                                traced);
    free(list);
    return st;
}

/* The text being written; what does not fit is cut off. */
typedef struct finding {
    char *to;
    size_t size, used;
} finding;

#define ADD(text, ...)                                                                             \
    ((text)->used = words_add((text)->to, (text)->size, (text)->used, __VA_ARGS__))

static void add_unit(finding *text, const model_dims *dims, int unit)
{
    char name[UNIT_NAME];
    unit_name(dims, unit, name);
    ADD(text, "%s", name);
}

/* The traces of all ranks. */
typedef struct traces {
    const trace *of;
    int count, first_rank;
    int64_t accumulation;
} traces;

typedef bool rank_choice(const trace *traced, int64_t of);

static bool stores_value(const trace *traced, int64_t of)
{
    return traced->value == of;
}

static bool made_output(const trace *traced, int64_t of)
{
    return traced->output == of && !traced->arrived;
}

static bool was_given(const trace *traced, int64_t of)
{
    return traced->output == of && traced->arrived;
}

static bool lost(const trace *traced, int64_t of)
{
    (void)of;
    return traced->loss_is_bad;
}

static bool holds_gradient(const trace *traced, int64_t of)
{
    return traced->gradient == of;
}

static int count_ranks(const traces *all, rank_choice *is, int64_t of)
{
    int count = 0;
    for (int i = 0; i < all->count; i++)
        count += is(&all->of[i], of);
    return count;
}

/* Lists the ranks for which `is` holds, with the samples of each if wanted. */
static void add_ranks(finding *text, const traces *all, rank_choice *is, int64_t of,
                      bool with_samples)
{
    int named = 0;
    for (int j = 0; j < all->count && named < RANKS_NAMED; j++) {
        const trace *traced = &all->of[j];
        if (!is(traced, of))
            continue;
        ADD(text, "%srank %d", named++ ? ", " : "", all->first_rank + j);
        if (!with_samples)
            continue;
        ADD(text, " (samples");
        for (int64_t i = 0; i < traced->n_samples && i < SAMPLES_NAMED; i++)
            ADD(text, " %" PRIu64, traced->sample[i]);
        ADD(text, "%s)",
            traced->n_samples > SAMPLES_NAMED ? " .."
            : traced->n_samples               ? ""
                                              : " none");
    }
    if (count_ranks(all, is, of) > named)
        ADD(text, " and %d more", count_ranks(all, is, of) - named);
}

/* The first unit whose output some rank found not finite; -1: no rank did. */
static int64_t first_unit(const traces *all)
{
    int64_t first = -1;
    for (int i = 0; i < all->count; i++)
        if (all->of[i].output >= 0 && (first < 0 || all->of[i].output < first))
            first = all->of[i].output;
    return first;
}

/* The last unit whose gradient some rank found not finite; -1: no rank did. */
static int64_t last_unit(const traces *all)
{
    int64_t last = -1;
    for (int i = 0; i < all->count; i++)
        last = all->of[i].gradient > last ? all->of[i].gradient : last;
    return last;
}

/* The parameter, in the first such unit, whose values some rank found not finite;
 * -1: no rank did. */
static int64_t first_param(const session *run, const traces *all)
{
    const param *list = run->params->list;
    int64_t first = -1;
    for (int i = 0; i < all->count; i++) {
        const int64_t own = all->of[i].value;
        if (own >= 0 && (first < 0 || list[own].unit < list[first].unit))
            first = own;
    }
    return first;
}

static void add_forward(finding *text, const session *run, const traces *all, bool looked)
{
    const int64_t unit = first_unit(all);
    const bool head = looked && unit < 0 && all->accumulation == 1;
    if (unit >= 0 && !count_ranks(all, made_output, unit)) {
        ADD(text, "what the pipeline stage before sent to ");
        add_ranks(text, all, was_given, unit, true);
        ADD(text, " after ");
        add_unit(text, &run->dims, (int)unit);
        ADD(text, " is not finite; that stage no longer keeps the micro-batch");
    } else if (unit >= 0 || head) {
        ADD(text, "the forward pass is not finite from ");
        add_unit(text, &run->dims, head ? unit_head(&run->dims) : (int)unit);
        ADD(text, " on: ");
        add_ranks(text, all, head ? lost : made_output, unit, true);
    } else {
        ADD(text, "the loss is not finite: ");
        add_ranks(text, all, lost, 0, true);
        ADD(text, looked ? "; it went wrong in the head, or in an earlier micro-batch, of which no "
                           "outputs are kept"
                         : "; the layer is not known, because the next step was already under way");
    }
}

static void write_finding(finding *text, const session *run, const traces *all, bool looked)
{
    const int64_t value = first_param(run, all), gradient = last_unit(all);
    if (value >= 0) {
        ADD(text, "values of ");
        add_unit(text, &run->dims, run->params->list[value].unit);
        ADD(text, " (%s) are not finite, stored by ", run->params->list[value].name);
        add_ranks(text, all, stores_value, value, false);
        ADD(text, "; ");
    }
    if (first_unit(all) >= 0 || count_ranks(all, lost, 0)) {
        add_forward(text, run, all, looked);
    } else if (gradient >= 0) {
        ADD(text, "every loss is finite, and in the backward pass ");
        add_unit(text, &run->dims, (int)gradient);
        ADD(text, " is the first whose gradient is not, held by ");
        add_ranks(text, all, holds_gradient, gradient, all->count == 1);
    } else {
        ADD(text, "every loss is finite; the layer is not known, because the next step was "
                  "already under way");
    }
}

/* Gathers the traces of all ranks and writes the text. */
static status share_traces(const session *run, const trace *own, finding *text, bool looked)
{
    const comm *all = mesh_comm(&run->mesh, MESH_WORLD);
    traces known = {own, 1, run->mesh.rank, run->accumulation};
    if (all->size == 1) {
        write_finding(text, run, &known, looked);
        return ST_OK;
    }
    trace *of = calloc((size_t)all->size, sizeof *of);
    if (!of)
        return FAIL(ST_NO_MEMORY, "no memory for the findings of %d ranks", all->size);
    status st =
        comm_host_all_gather(all, (comm_at){"find what is not finite", -1}, own, of, sizeof *own);
    known = (traces){of, all->size, 0, run->accumulation};
    if (st == ST_OK)
        write_finding(text, run, &known, looked);
    free(of);
    return st;
}

status nonfinite_find(session *run, const step_report *report, double own_loss,
                      device_batch *const *batch, char *out, size_t size)
{
    trace own = {.loss_is_bad = !isfinite(own_loss),
                 .value = -1,
                 .output = -1,
                 .gradient = -1,
                 .n_samples = report->n_samples};
    finding text = {.to = out, .size = size};
    for (int64_t i = 0; i < report->n_samples && i < SAMPLES_NAMED; i++)
        own.sample[i] = report->sample[i];
    out[0] = '\0';
    TRY(run->device->backend->wait(run->stream));
    const reader host = {.raw = malloc(CHUNK * sizeof(double)),
                         .value = malloc(CHUNK * sizeof(double))};
    status st = host.raw && host.value ? ST_OK : FAIL(ST_NO_MEMORY, "no memory to look at values");
    if (st == ST_OK)
        st = find_params(run, &host, batch != NULL && !run->params->in_backward, &own);
    if (run->params->in_backward) /* gradients are gone by now, but the update has found it */
        own.gradient = report->stopped_at;
    if (st == ST_OK && batch)
        st = find_output(run, &host, batch, &own);
    free(host.value);
    free(host.raw);
    return st == ST_OK ? share_traces(run, &own, &text, batch != NULL) : st;
}
