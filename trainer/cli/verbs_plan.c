/* verbs_plan.c: trainer plan: prints what a configuration costs before it is run. It reads the
 * arguments; trainer/plan does the arithmetic. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "common/program/verb.h"
#include "common/base/visible.h"
#include "trainer/plan/cost.h"
#include "trainer/plan/plan_print.h"
#include "trainer/optim/groups.h"
#include "trainer/plan/recompute_plan.h"
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
    int64_t sweep; /* ranks; 0: no */
} request;

/* Reads positive integers: items separated by commas, each of per_item (1 or 3) numbers separated
 * by x. */
static status read_list(const char *flag, const char *text, int per_item, int64_t *out,
                        int64_t *out_n)
{
    int64_t n = 0;
    const char *p = text;
    for (;;) {
        for (int i = 0; i < per_item; i++) {
            char *end;
            long long v = strtoll(p, &end, 10);
            bool separated = i + 1 < per_item ? *end == 'x' : *end == ',' || *end == 0;
            if (end == p || v <= 0 || v > 100000000 || !separated)
                return FAIL(ST_USAGE, "%s: expected %s, got \"%s\" at byte %td", flag,
                            per_item == 3 ? "TxHxW,TxHxW,.. in patches" : "L,L,.. in tokens", text,
                            p - text);
            if (n == MAX_ITEMS * 3)
                return FAIL(ST_USAGE, "%s: more than %d entries", flag, MAX_ITEMS);
            out[n++] = v;
            p = *end ? end + 1 : end;
        }
        if (!*p)
            break;
    }
    *out_n = n / per_item;
    return ST_OK;
}

static void print_flops(const flops *f)
{
    /* A backward pass costs twice the forward pass, for the gradients of inputs and of weights. The
     * patch embedding needs no gradient of its input, the pixels. */
    const struct {
        const char *name;
        int64_t forward, training;
    } rows[] = {
        {"text linear", f->text_linear, 3 * f->text_linear},
        {"text attention", f->text_attention, 3 * f->text_attention},
        {"head", f->head, 3 * f->head},
        {"patch embedding", f->patch_embed, 2 * f->patch_embed},
        {"vision blocks", f->vision_blocks, 3 * f->vision_blocks},
        {"vision attention", f->vision_attention, 3 * f->vision_attention},
        {"mergers", f->mergers, 3 * f->mergers},
        {"total", f->forward, f->training},
    };
    printf("%-18s %22s %22s\n", "FLOPs", "forward", "training");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        printf("%-18s %22" PRId64 " %22" PRId64 "\n", rows[i].name, rows[i].forward,
               rows[i].training);
}

static status plan_flops(const model_dims *d, const char *documents, const char *grids)
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
        if (d->vision.depth == 0) {
            st = FAIL(ST_USAGE, "--grids: %s has no vision tower", d->name);
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
    flops f;
    dims_flops(d, tokens, pairs, grid, n_grids, &f);
    print_flops(&f);
done:
    free(numbers);
    free(grid);
    return st;
}

/* Chooses the device that memory is planned for, which all ranks share if it is a CPU: the one of
 * --device, the one whose rates
 * --measured has, or the one of this machine. */
static status choose_device(const conf *c, const request *q, const rates *r, int ranks,
                            plan_device *out)
{
    char why[PLAN_DEVICE_WHY] = "";
    if (q->device) {
        TRY(plan_device_named(q->device, out));
        plan_device_share(out, plan_device_is_cpu(out) ? ranks : 1);
        return ST_OK;
    }
    TRY(plan_device_here(c, ranks, out, why));
    if (r->memory > 0 && !plan_device_is_cpu(out)) {
        out->memory = out->usable = r->memory;
        snprintf(out->name, sizeof out->name, "GPU of %.100s", q->measured);
        why[0] = 0;
    }
    printf("planned for the device %s%s%s%s\n", escape_text(out->name).text, why[0] ? " (" : "",
           why, why[0] ? ")" : "");
    return ST_OK;
}

/* Prints bytes, work and time of the layout, or with --sweep the best layouts. */
static status plan_cost(const plan_input *in, const request *q, const rates *r)
{
    cost k;
    recomputes recomputed;
    if (plan_device_is_cpu(in->device) && !q->measured) {
        printf(
            "time: not predicted, since no rates of a CPU are shipped; measure them with trainer "
            "bench ops --rates FILE, then give --measured FILE\n");
        return q->sweep ? FAIL(ST_USAGE, "--sweep for a CPU needs --measured FILE") : ST_OK;
    }
    rates_print(r, stdout);
    if (q->sweep)
        return sweep_layouts(in, q->sweep, r, BEST_LAYOUTS, stdout);
    TRY(recompute_plan_of(in, in->conf->training_local_batch_size, &recomputed));
    TRY(cost_of(in->conf, in->layout, in->dims, in->params, r, &recomputed, &k));
    cost_print(&k, in->layout, stdout);
    return ST_OK;
}

static status plan_layout(const conf *c, const request *q, const model_dims *d, const params *p,
                          const rates *r)
{
    const layout_limits limits = params_limits(d);
    plan_device on;
    layout ranks;
    TRY(layout_of(c, &limits, &ranks));
    printf("%s: %" PRId64 " parameters in %" PRId64 " stored tensors\n", escape_text(d->name).text,
           p->total, p->count);
    TRY(choose_device(c, q, r, (int)ranks.world, &on));
    const plan_input in = {.conf = c, .layout = &ranks, .dims = d, .params = p, .device = &on};
    if (!q->sweep)
        TRY(layout_print(&in, true, stdout, NULL));
    return plan_cost(&in, q, r);
}

static status plan_memory(const conf *c, const request *q, const model_dims *d)
{
    params *p;
    rates r = rates_h200();
    if (q->measured)
        TRY(rates_read(q->measured, &r));
    TRY(params_new(d, &p));
    status st = groups_apply(c, p);
    if (st == ST_OK) {
        groups_print(c, p, stdout);
        st = plan_layout(c, q, d, p, &r);
    }
    params_free(&p);
    return st;
}

static status read_request(int argc, char **argv, request *q)
{
    const char *sweep;
    *q = (request){0};
    TRY(verb_take(&argc, argv, "--documents", &q->documents));
    TRY(verb_take(&argc, argv, "--grids", &q->grids));
    TRY(verb_take(&argc, argv, "--measured", &q->measured));
    TRY(verb_take(&argc, argv, "--device", &q->device));
    TRY(verb_take(&argc, argv, "--sweep", &sweep));
    if (sweep)
        TRY(verb_number("--sweep", sweep, 1, RANKS_MAX, &q->sweep));
    return verb_all_taken(argc, argv);
}

status verb_plan(int argc, char **argv)
{
    conf c;
    request q;
    model_dims d;
    TRY(verb_load(&c, &argc, argv, needs));
    log_init("trainer", c.log_level, c.log_json);
    status st;
    TRY_OR(done, read_request(argc, argv, &q));
    TRY_OR(done, session_dims(&c, &d));
    if (q.documents || q.grids)
        TRY_OR(done, plan_flops(&d, q.documents, q.grids));
    else
        TRY_OR(done, plan_memory(&c, &q, &d));
done:
    conf_done(&c);
    return st;
}
