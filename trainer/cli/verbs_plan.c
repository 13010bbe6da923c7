/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_plan.c: trainer plan: prints what a configuration costs before it is run. It reads the
 * arguments; trainer/plan does the arithmetic. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "common/program/verb.h"
#include "common/base/words.h"
#include "trainer/plan/cost.h"
#include "trainer/plan/plan_print.h"
#include "trainer/optim/groups.h"
#include "trainer/plan/recompute_plan.h"
#include "trainer/run/session.h"
#include "trainer/cli/verbs.h"

enum { BEST_LAYOUTS = 15, RANKS_MAX = 65536 };

/* What the verb cannot do without. */
static const conf_need needs[] = {
    {"model.path", NULL, "name a Hugging Face folder or a preset (trainer inspect lists them)"},
    {0},
};

/* The arguments of this verb that are no options. */
typedef struct request {
    const char *measured, *device;
    plan_device named; /* what `device` names, if it is given */
    int64_t sweep;     /* ranks; 0: no */
    bool json, full;
} request;

/* Chooses the device that memory is planned for, which all ranks share if it is a CPU: that of
 * --device, that whose rates --measured has, or that of this machine. */
static status choose_device(const conf *options, const request *asked, const rates *speeds,
                            int ranks, plan_device *out)
{
    char why[PLAN_DEVICE_WHY] = "";
    if (asked->device) {
        *out = asked->named;
        plan_device_share(out, plan_device_is_cpu(out) ? ranks : 1);
        if (!asked->json)
            plan_device_print_card(out, stdout);
        return ST_OK;
    }
    TRY(plan_device_here(options, ranks, out, why));
    if (speeds->memory > 0 && !plan_device_is_cpu(out)) {
        if (!why[0] && out->memory < 1.2 * speeds->memory && speeds->memory < 1.2 * out->memory)
            out->memory = out->usable = speeds->memory; /* measured here, or on such a card */
        else
            *out = plan_device_sized(speeds->memory);
        snprintf(out->name, sizeof out->name, "GPU of %.100s", asked->measured);
        why[0] = 0;
    }
    if (asked->json)
        return ST_OK;
    printf("planned for the device %s%s%s%s\n", escape_text(out->name).text, why[0] ? " (" : "",
           why, why[0] ? ")" : "");
    plan_device_print_card(out, stdout);
    return ST_OK;
}

/* The rates of the file, or of the card that is planned for. */
static void choose_rates(const request *asked, const plan_device *on, rates *inout)
{
    if (!asked->measured && on->card)
        *inout = rates_of(on->card);
    if (!plan_device_is_cpu(on))
        inout->sm = on->sm;
}

/* Prints bytes, work and time of the layout, or with --sweep the best layouts. */
static status plan_cost(const plan_input *in, const request *asked, const rates *speeds)
{
    cost price;
    recomputes recomputed;
    if (!in->device->card && !asked->measured) {
        const char *whose = plan_device_is_cpu(in->device) ? "a CPU" : "such a GPU";
        printf("time: not predicted, because no rates of %s are known; measure them with trainer "
               "bench ops --rates FILE, then give --measured FILE\n",
               whose);
        return asked->sweep ? FAIL(ST_USAGE, "--sweep for %s needs --measured FILE", whose) : ST_OK;
    }
    rates_print(speeds, stdout);
    if (asked->sweep)
        return sweep_layouts(in, asked->sweep, speeds, BEST_LAYOUTS, stdout);
    TRY(recompute_plan_of(in, in->conf->training_local_batch_size, &recomputed));
    TRY(cost_of(in->conf, in->layout, in->dims, in->params, speeds, &recomputed, &price));
    cost_print(&price, in->layout, stdout);
    return ST_OK;
}

/* How many ranks share this machine's memory: on a CPU all of them are planned to. */
static int ranks_here(const layout *ranks, const plan_device *on, const rates *speeds)
{
    const bool fewer = !plan_device_is_cpu(on) && ranks->world > speeds->per_node;
    return fewer ? speeds->per_node : (int)ranks->world;
}

static status plan_layout(const conf *options, const request *asked, const model_dims *dims,
                          const params *registry, const rates *speeds)
{
    const layout_limits limits = params_limits(dims);
    plan_device on;
    layout ranks;
    TRY(layout_of(options, &limits, &ranks));
    if (!asked->json)
        printf("%s: %" PRId64 " parameters in %" PRId64 " stored tensors\n",
               escape_text(dims->name).text, registry->total, registry->count);
    TRY(choose_device(options, asked, speeds, (int)ranks.world, &on));
    on.host_ranks = ranks_here(&ranks, &on, speeds);
    const plan_input in = {
        .conf = options, .layout = &ranks, .dims = dims, .params = registry, .device = &on};
    rates known = *speeds;
    choose_rates(asked, &on, &known);
    if (asked->json)
        return plan_json_print(&in, on.card || asked->measured ? &known : NULL, stdout);
    if (!asked->sweep)
        TRY(layout_print(&in, asked->full ? PLAN_FULL : PLAN_CHOICES, stdout, NULL));
    return plan_cost(&in, asked, &known);
}

static status plan_memory(const conf *options, const request *asked, const model_dims *dims)
{
    params *registry;
    rates speeds = rates_h200();
    if (asked->measured)
        TRY(rates_read(asked->measured, &speeds));
    TRY(params_new(dims, &registry));
    status st = groups_apply(options, registry);
    if (st == ST_OK) {
        if (!asked->json)
            groups_print(options, registry, stdout);
        st = plan_layout(options, asked, dims, registry, &speeds);
    }
    params_free(&registry);
    return st;
}

static status read_request(int argc, char **argv, request *asked)
{
    const char *sweep;
    TRY(verb_take(&argc, argv, "--measured", &asked->measured));
    TRY(verb_take(&argc, argv, "--device", &asked->device));
    TRY(verb_take(&argc, argv, "--sweep", &sweep));
    asked->json = verb_take_flag(&argc, argv, "--json");
    if (asked->json && sweep)
        return FAIL(ST_USAGE, "--json prints one plan: leave out --sweep");
    if (sweep)
        TRY(verb_number("--sweep", sweep, 1, RANKS_MAX, &asked->sweep));
    if (asked->device) /* an unknown one is refused before anything is printed */
        TRY(plan_device_named(asked->device, &asked->named));
    return verb_all_taken(argc, argv);
}

static status plan_model(const conf *options, const request *asked)
{
    model_dims dims;
    TRY(session_dims(options, &dims));
    return plan_memory(options, asked, &dims);
}

status verb_plan(int argc, char **argv)
{
    conf options;
    request asked = {.full = verb_take_flag(&argc, argv, "--full")};
    TRY(verb_load(&options, &argc, argv, needs));
    log_init("trainer", options.log_level, options.log_json);
    status st;
    TRY_OR(done, read_request(argc, argv, &asked));
    TRY_OR(done, plan_model(&options, &asked));
done:
    conf_done(&options);
    return st;
}
