/* verbs_plan.c: trainer plan: prints what a configuration costs before it is run. It reads the
 * arguments; trainer/plan does the arithmetic. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "common/program/verb.h"
#include "common/base/visible.h"
#include "trainer/plan/cards_page.h"
#include "trainer/plan/cost.h"
#include "trainer/plan/plan_print.h"
#include "trainer/optim/groups.h"
#include "trainer/plan/recompute_plan.h"
#include "trainer/plan/restart.h"
#include "trainer/plan/sweep.h"
#include "trainer/run/session.h"
#include "trainer/cli/verbs.h"

enum { MAX_ITEMS = 65536, BEST_LAYOUTS = 15, RANKS_MAX = 65536 };

/* What the verb cannot do without. */
static const conf_need needs[] = {
    {"model.path", NULL, "name a Hugging Face folder or a preset (trainer inspect lists them)"},
    {0},
};

/* The arguments of this verb that are no options. */
typedef struct request {
    const char *documents, *grids, *measured, *device;
    plan_device named; /* what `device` names, if it is given */
    int64_t sweep;     /* ranks; 0: no */
    bool cards, full;
} request;

/* Reads positive integers: items separated by commas, each of per_item (1 or 3) numbers separated
 * by x. */
static status read_list(const char *flag, const char *text, int per_item, int64_t *out,
                        int64_t *out_n)
{
    int64_t count = 0;
    const char *at = text;
    for (;;) {
        for (int i = 0; i < per_item; i++) {
            char *end;
            long long value = strtoll(at, &end, 10);
            bool separated = i + 1 < per_item ? *end == 'x' : *end == ',' || *end == 0;
            if (end == at || value <= 0 || value > 100000000 || !separated)
                return FAIL(ST_USAGE, "%s: expected %s, got \"%s\" at byte %td", flag,
                            per_item == 3 ? "TxHxW,TxHxW,.. in patches" : "L,L,.. in tokens", text,
                            at - text);
            if (count == MAX_ITEMS * 3)
                return FAIL(ST_USAGE, "%s: more than %d entries", flag, MAX_ITEMS);
            out[count++] = value;
            at = *end ? end + 1 : end;
        }
        if (!*at)
            break;
    }
    *out_n = count / per_item;
    return ST_OK;
}

static void print_flops(const flops *sum)
{
    /* A backward pass costs twice the forward pass, for the gradients of inputs and of weights. The
     * patch embedding needs no gradient of its input, the pixels. */
    const struct {
        const char *name;
        int64_t forward, training;
    } rows[] = {
        {"text linear", sum->text_linear, 3 * sum->text_linear},
        {"text attention", sum->text_attention, 3 * sum->text_attention},
        {"head", sum->head, 3 * sum->head},
        {"patch embedding", sum->patch_embed, 2 * sum->patch_embed},
        {"vision blocks", sum->vision_blocks, 3 * sum->vision_blocks},
        {"vision attention", sum->vision_attention, 3 * sum->vision_attention},
        {"mergers", sum->mergers, 3 * sum->mergers},
        {"total", sum->forward, sum->training},
    };
    printf("%-18s %22s %22s\n", "FLOPs", "forward", "training");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        printf("%-18s %22" PRId64 " %22" PRId64 "\n", rows[i].name, rows[i].forward,
               rows[i].training);
    printf("head at every position, nothing frozen; a run counts its head at targets alone\n");
}

static status plan_flops(const model_dims *dims, const char *documents, const char *grids)
{
    int64_t *numbers = calloc(MAX_ITEMS * 3 + 3, sizeof *numbers);
    int32_t *grid = calloc(MAX_ITEMS * 3 + 3, sizeof *grid);
    status st = ST_OK;
    int64_t n_grids = 0, n_documents = 0;
    if (!numbers || !grid) {
        st = FAIL(ST_NO_MEMORY, "no memory for the lists of --documents and --grids");
        goto done;
    }
    if (grids) {
        TRY_OR(done, read_list("--grids", grids, 3, numbers, &n_grids));
        for (int64_t i = 0; i < 3 * n_grids; i++)
            grid[i] = (int32_t)numbers[i];
        for (int64_t i = 0; i < n_grids; i++)
            if (grid[3 * i + 1] % 2 || grid[3 * i + 2] % 2) {
                st = FAIL(ST_USAGE, "--grids: %dx%dx%d: height and width in patches must be even",
                          grid[3 * i], grid[3 * i + 1], grid[3 * i + 2]);
                goto done;
            }
        if (dims->vision.depth == 0) {
            st = FAIL(ST_USAGE, "--grids: %s has no vision tower", dims->name);
            goto done;
        }
    }
    if (documents)
        TRY_OR(done, read_list("--documents", documents, 1, numbers, &n_documents));
    int64_t tokens = 0, pairs = 0;
    for (int64_t i = 0; i < n_documents; i++) {
        tokens += numbers[i];
        pairs += document_pairs(numbers[i]);
    }
    flops sum;
    dims_flops(dims, tokens, tokens, pairs, grid, n_grids, &sum);
    print_flops(&sum);
done:
    free(numbers);
    free(grid);
    return st;
}

/* Chooses the device that memory is planned for, which all ranks share if it is a CPU: that of
 * --device, that whose rates --measured has, or that of this machine (*out_here). */
static status choose_device(const conf *options, const request *asked, const rates *speeds,
                            int ranks, plan_device *out, bool *out_here)
{
    char why[PLAN_DEVICE_WHY] = "";
    *out_here = false;
    if (asked->device) {
        *out = asked->named;
        plan_device_share(out, plan_device_is_cpu(out) ? ranks : 1);
        plan_device_print_card(out, stdout);
        return ST_OK;
    }
    TRY(plan_device_here(options, ranks, out, why));
    *out_here = !why[0];
    if (speeds->memory > 0 && !plan_device_is_cpu(out)) {
        if (*out_here && out->memory < 1.2 * speeds->memory && speeds->memory < 1.2 * out->memory)
            out->memory = out->usable = speeds->memory; /* measured here, or on such a card */
        else
            *out = plan_device_sized(speeds->memory);
        *out_here = false;
        snprintf(out->name, sizeof out->name, "GPU of %.100s", asked->measured);
        why[0] = 0;
    }
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
    restart_plan restart;
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
    if (plan_device_is_cpu(in->device)) /* its values are trained and frozen ones in one block */
        return ST_OK;
    TRY(restart_plan_make(in, &recomputed, speeds, &restart));
    restart_print(in->conf, &restart, price.step, stdout);
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
    bool here;
    TRY(layout_of(options, &limits, &ranks));
    printf("%s: %" PRId64 " parameters in %" PRId64 " stored tensors\n",
           escape_text(dims->name).text, registry->total, registry->count);
    TRY(choose_device(options, asked, speeds, (int)ranks.world, &on, &here));
    on.host_ranks = ranks_here(&ranks, &on, speeds);
    const plan_input in = {
        .conf = options, .layout = &ranks, .dims = dims, .params = registry, .device = &on};
    if (!asked->sweep)
        TRY(layout_print(&in, asked->full ? PLAN_FULL : PLAN_CHOICES, stdout, NULL));
    if (here && !asked->sweep)
        TRY(restart_print_room(&in, on.host_ranks, stdout));
    rates known = *speeds;
    choose_rates(asked, &on, &known);
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
        groups_print(options, registry, stdout);
        st = plan_layout(options, asked, dims, registry, &speeds);
    }
    params_free(&registry);
    return st;
}

static status read_request(int argc, char **argv, request *asked)
{
    const char *sweep;
    TRY(verb_take(&argc, argv, "--documents", &asked->documents));
    TRY(verb_take(&argc, argv, "--grids", &asked->grids));
    TRY(verb_take(&argc, argv, "--measured", &asked->measured));
    TRY(verb_take(&argc, argv, "--device", &asked->device));
    TRY(verb_take(&argc, argv, "--sweep", &sweep));
    if (asked->cards &&
        (asked->documents || asked->grids || asked->measured || asked->device || sweep))
        return FAIL(ST_USAGE, "--cards has cards of its own and shipped rates: leave out "
                              "--device, --measured, --sweep, --documents and --grids");
    if (sweep)
        TRY(verb_number("--sweep", sweep, 1, RANKS_MAX, &asked->sweep));
    if (asked->device) /* an unknown one is refused before anything is printed */
        TRY(plan_device_named(asked->device, &asked->named));
    return verb_all_taken(argc, argv);
}

/* The page of what fits: of the model that is named, or of all published ones. */
static status plan_cards(const conf *options)
{
    model_dims dims;
    if (!options->model_path[0])
        return cards_page_write(options, NULL, stdout);
    TRY(session_dims(options, &dims));
    return cards_page_write(options, &dims, stdout);
}

static status plan_model(const conf *options, const request *asked)
{
    model_dims dims;
    TRY(session_dims(options, &dims));
    return asked->documents || asked->grids ? plan_flops(&dims, asked->documents, asked->grids)
                                            : plan_memory(options, asked, &dims);
}

status verb_plan(int argc, char **argv)
{
    conf options;
    request asked = {.cards = verb_take_flag(&argc, argv, "--cards"),
                     .full = verb_take_flag(&argc, argv, "--full")};
    TRY(verb_load(&options, &argc, argv, asked.cards ? NULL : needs));
    log_init("trainer", options.log_level, options.log_json);
    status st;
    TRY_OR(done, read_request(argc, argv, &asked));
    TRY_OR(done, asked.cards ? plan_cards(&options) : plan_model(&options, &asked));
done:
    conf_done(&options);
    return st;
}
