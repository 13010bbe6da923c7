/* sharing.c: what `prepd plan` says about prefixes: how many there are, and what a sample costs
 * with them, beside data.group none and shared_image over the same index. */
#include <inttypes.h>

#include "prepd/plan/report.h"
#include "proto/assign.h"

/* What all units together hold, once each. */
static row_stat sum_units(const plan *planned)
{
    row_stat sum = {0};
    for (int64_t k = 0; k < planned->n_units; k++)
        plan_add_unit(planned, &planned->units[k], &sum);
    return sum;
}

/* Sums the units that the same samples make under another data.group. */
static status sum_under(const plan *planned, int group, row_stat *out)
{
    conf options = *planned->conf;
    plan *other;
    status st = ST_OK;
    options.data_group = group;
    TRY(plan_begin(&options, planned->data, planned->index, PLAN_PACKED, &other));
    while (st == ST_OK && other->stage < STAGE_LANES)
        st = plan_make_units(other);
    if (st == ST_OK)
        *out = sum_units(other);
    plan_free(&other);
    return st;
}

static void print_cost(FILE *to, const char *group, const row_stat *sum, int64_t samples)
{
    const double each = 1.0 / (double)samples;
    const int64_t mflop = assign_cost(&(row_measure){sum->tokens, sum->patches, sum->squares});
    fprintf(to, "  %-14s %12.2f %12.2f %12.4f\n", group, (double)sum->tokens * each,
            (double)sum->patches * each, (double)mflop * each / 1e6);
}

/* Prints how many branches a prefix has. */
static void print_prefixes(const plan *planned, const row_stat *sum, FILE *to)
{
    int64_t tokens = 0, most = 0, branches = 0;
    for (int64_t k = 0; k < planned->n_units; k++) {
        const plan_unit *one = &planned->units[k];
        const int32_t prefix = plan_unit_prefix(planned, one);
        if (prefix == 0)
            continue;
        tokens += prefix;
        branches += one->n_docs - 1;
        most = one->n_docs - 1 > most ? one->n_docs - 1 : most;
    }
    fprintf(to,
            "prefixes: %" PRId64 " (%.2f tokens each), with %.2f branches each and at most %" PRId64
            "; documents without a prefix: %" PRId64 "\n",
            sum->prefixes, sum->prefixes ? (double)tokens / (double)sum->prefixes : 0.0,
            sum->prefixes ? (double)branches / (double)sum->prefixes : 0.0, most,
            sum->documents - sum->prefixes - branches);
}

status plan_report_sharing(plan *planned, FILE *to)
{
    row_stat none, images, own;
    if (planned->conf->data_group != GROUP_SHARED_PREFIX)
        return ST_OK;
    own = sum_units(planned);
    TRY(sum_under(planned, GROUP_NONE, &none));
    TRY(sum_under(planned, GROUP_SHARED_IMAGE, &images));
    print_prefixes(planned, &own, to);
    fprintf(to,
            "cost of a sample by data.group (TFLOP: predicted for training Qwen3-VL-30B-A3B)\n");
    fprintf(to, "  %-14s %12s %12s %12s\n", "", "tokens", "patches", "TFLOP");
    print_cost(to, "none", &none, planned->n_usable);
    print_cost(to, "shared_image", &images, planned->n_usable);
    print_cost(to, "shared_prefix", &own, planned->n_usable);
    return ST_OK;
}
