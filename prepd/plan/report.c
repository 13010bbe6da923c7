/* SPDX-License-Identifier: Apache-2.0 */
/* report.c: what `prepd plan` prints about epoch 0. */

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/compare.h"
#include "common/base/words.h"
#include "prepd/plan/planner.h"
#include "proto/row/assign.h"

/* How many rows the usual packer would make of the same units, for comparison in the
 * report. That packer keeps a buffer of the next samples, from which a row takes, in order,
 * whatever still fits. */

/* Samples that a common loader keeps in its buffer, from which greedy packing chooses. */
enum { BUFFER = 204 };

typedef struct greedy {
    plan *planned;
    uint64_t next, count; /* units read so far, and units of the epoch; lane after lane */
    int lane;
    uint64_t position;
    int64_t held[BUFFER];
    int n_held;
} greedy;

static status refill(greedy *state)
{
    plan *planned = state->planned;
    while (state->n_held < BUFFER && state->next < state->count) {
        uint64_t unit;
        while (state->position == planned->lanes[state->lane].per_epoch) {
            state->lane++;
            state->position = 0;
        }
        TRY(mixture_lane_at(&planned->lanes[state->lane], planned->seed,
                            planned->conf->data_shuffle, state->position++, &unit));
        state->held[state->n_held++] = (int64_t)unit;
        state->next++;
    }
    return ST_OK;
}

/* Moves what fits from the buffer into the row, whose room is *tokens and *patches. True if
 * anything did fit. */
static bool take_fitting(greedy *state, int64_t *tokens, int64_t *patches)
{
    int kept = 0;
    for (int k = 0; k < state->n_held; k++) {
        const plan_unit *one = &state->planned->units[state->held[k]];
        if (one->tokens <= *tokens && one->patches <= *patches) {
            *tokens -= one->tokens;
            *patches -= one->patches;
        } else {
            state->held[kept++] = state->held[k];
        }
    }
    const bool any = kept < state->n_held;
    state->n_held = kept;
    return any;
}

/* How many rows epoch 0 would have if it were packed greedily from a buffer of the next samples. */
static status plan_greedy_rows(plan *planned, int64_t *out_rows)
{
    greedy state = {.planned = planned, .count = planned->epoch_units};
    int64_t rows = 0;
    TRY(refill(&state));
    while (state.n_held > 0) {
        int64_t tokens = planned->token_budget, patches = planned->patch_budget;
        while (take_fitting(&state, &tokens, &patches))
            TRY(refill(&state));
        rows++;
    }
    *out_rows = rows;
    return ST_OK;
}

/* What `prepd plan` says about prefixes: how many there are, and what a sample costs
 * with them, beside data.group none and shared_image over the same index. */

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

/* With data.group shared_prefix, prints its prefixes, and what a sample costs beside other values.
 */
static status plan_report_sharing(plan *planned, FILE *to)
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

/* What `prepd plan` prints about epoch 0. */

enum { REPORT_RANKS = 8 };

static int64_t cost_of(const row_stat *stat)
{
    return assign_cost(&(row_measure){stat->tokens, stat->patches, stat->squares});
}

static double compute_percent(int64_t some, int64_t whole)
{
    return whole ? 100.0 * (double)some / (double)whole : 0.0;
}

static double padding(int64_t filled, int64_t capacity)
{
    return capacity ? 100.0 - compute_percent(filled, capacity) : 0.0;
}

/* A lower bound on what the most expensive rank costs, whichever rank gets which of the `count`
 * rows, in equal numbers. It is not below the mean, nor below the most expensive row together with
 * the cheapest rows. Sorts `cost`. */
static double least_possible(int64_t *cost, int64_t count, int ranks, int64_t total)
{
    qsort(cost, (size_t)count, sizeof *cost, compare_ints);
    int64_t most = cost[count - 1];
    for (int64_t k = 0; k + 1 < count / ranks; k++)
        most += cost[k];
    double mean = (double)total / ranks;
    return (double)most > mean ? (double)most : mean;
}

/* Prints what waiting for the slowest rank costs: (most expensive rank / mean rank), its mean and
 * its worst over the whole steps of epoch 0, and a bound below which no assignment of these rows
 * can be. */
static status report_balance(const plan *planned, FILE *to)
{
    int64_t batch = planned->conf->training_global_batch_size, steps = planned->n_rows / batch;
    int ranks = batch < REPORT_RANKS ? (int)batch : REPORT_RANKS;
    if (steps == 0)
        return ST_OK;
    status st = ST_OK;
    int64_t *cost = (int64_t *)malloc((size_t)batch * sizeof *cost);
    int *rank_of = (int *)malloc((size_t)batch * sizeof *rank_of);
    double sum = 0, worst = 0, least = 0;
    if (!cost || !rank_of) {
        st = FAIL(ST_NO_MEMORY, "no memory for a step of %" PRId64 " rows", batch);
        goto done;
    }
    for (int64_t step = 0; step < steps; step++) {
        int64_t load[REPORT_RANKS] = {0}, total = 0, most = 0;
        for (int64_t k = 0; k < batch; k++)
            cost[k] = cost_of(&planned->rows[step * batch + k]);
        TRY_OR(done, assign_rows(cost, batch, ranks, rank_of));
        for (int64_t k = 0; k < batch; k++) {
            load[rank_of[k]] += cost[k];
            total += cost[k];
        }
        for (int rank = 0; rank < ranks; rank++)
            most = load[rank] > most ? load[rank] : most;
        double over = total ? (double)most * ranks / (double)total - 1.0 : 0.0;
        sum += over;
        least +=
            total ? least_possible(cost, batch, ranks, total) * ranks / (double)total - 1.0 : 0.0;
        worst = over > worst ? over : worst;
    }
    fprintf(
        to,
        "balance: over %d ranks the slowest is %.2f %% above the mean (worst step %.2f %%), and "
        "no assignment is below %.2f %%; %" PRId64 " steps of %" PRId64 " rows\n",
        ranks, 100.0 * sum / (double)steps, 100.0 * worst, 100.0 * least / (double)steps, steps,
        batch);
done:
    free(cost);
    free(rank_of);
    return st;
}

/* Prints how much of an epoch comes from each source of a mixture. */
static void report_sources(const plan *planned, FILE *to)
{
    const dataset_part *parts;
    if (!planned->data->adapter->parts)
        return;
    planned->data->adapter->parts(planned->data, &parts);
    for (int k = 0; k < planned->n_lanes; k++) {
        const mixture_lane *lane = &planned->lanes[k];
        fprintf(to,
                "source %s: %" PRId64 " samples; an epoch takes %" PRIu64 " (%.2f %% of it), each "
                "%.3f times\n",
                escape_text(parts[k].name).text, parts[k].count, lane->per_epoch,
                100.0 * (double)lane->per_epoch / (double)planned->epoch_units,
                (double)lane->per_epoch / (double)lane->n_units);
    }
}

static void report_buckets(const plan *planned, FILE *to)
{
    int64_t held = 0, held_patches = 0, held_targets = 0, tokens = 0, patches = 0, targets = 0;
    fprintf(to,
            "buckets: %d (capacities; rows of epoch 0, their share, and how full their tokens and "
            "patches are)\n",
            planned->n_buckets);
    fprintf(to, "  %8s %8s %8s %9s %8s %8s %8s %8s %10s %7s %7s %7s\n", "tokens", "patches",
            "targets", "documents", "longest", "images", "frames", "frame", "rows", "share",
            "tokens", "patches");
    for (int k = 0; k < planned->n_buckets; k++) {
        const shape_bucket *bound = &planned->buckets[k];
        fprintf(to,
                "  %8" PRId64 " %8" PRId64 " %8" PRId64 " %9" PRId64 " %8" PRId64 " %8" PRId64
                " %8" PRId64 " %8" PRId64 " %10" PRId64 " %6.2f%% %6.2f%% %6.2f%%\n",
                bound->tokens, bound->patches, bound->targets, bound->documents, bound->longest,
                bound->images, bound->frames, bound->frame, bound->rows,
                compute_percent(bound->rows, planned->n_rows),
                compute_percent(bound->row_tokens, bound->rows * bound->tokens),
                compute_percent(bound->row_patches, bound->rows * bound->patches));
        held += bound->rows * bound->tokens;
        held_patches += bound->rows * bound->patches;
        held_targets += bound->rows * bound->targets;
        tokens += bound->row_tokens;
        patches += bound->row_patches;
        targets += bound->row_targets;
    }
    fprintf(to,
            "padding to buckets: %.2f %% of the tokens, %.2f %% of the patches, %.2f %% of the "
            "targets\n",
            padding(tokens, held), padding(patches, held_patches), padding(targets, held_targets));
}

status plan_report(plan *planned, FILE *to)
{
    int64_t samples = planned->data->adapter->samples(planned->data),
            refused = plan_refused(planned);
    row_stat sum = {0};
    char digest[HASH_TEXT];
    hash_print(index_digest(planned->index), digest);
    fprintf(to, "index: %s\n", digest);
    fprintf(to, "samples: %" PRId64 ", refused: %" PRId64 "\n", samples, refused);
    if (planned->kind == PLAN_SAMPLES)
        return ST_OK;
    for (int64_t k = 0; k < planned->n_rows; k++) {
        sum.tokens += planned->rows[k].tokens;
        sum.patches += planned->rows[k].patches;
        sum.documents += planned->rows[k].documents;
        sum.images += planned->rows[k].images;
        sum.visual += planned->rows[k].visual;
    }
    fprintf(to,
            "rows: %" PRId64 " per epoch of %" PRId64 " tokens and at most %" PRId64
            " patches, windows: %" PRIu64 "\n",
            planned->n_rows, planned->token_budget, planned->patch_budget, planned->n_windows);
    if (planned->whole.end_row != UINT64_MAX)
        fprintf(to,
                "stream: %" PRIu64 " rows, %" PRIu64 " of them empty to complete the last step\n",
                planned->whole.end_row, planned->whole.end_row - planned->whole.full_rows);
    fprintf(to, "steps: %.2f per epoch of %" PRId64 " rows\n",
            (double)planned->n_rows / (double)planned->conf->training_global_batch_size,
            planned->conf->training_global_batch_size);
    fprintf(to,
            "documents: %" PRId64 " (%.2f a row, %" PRId64 " to %" PRId64 " tokens long), images: "
            "%" PRId64 "\n",
            sum.documents, (double)sum.documents / (double)planned->n_rows, planned->shortest,
            planned->longest, sum.images);
    fprintf(to, "tokens: %" PRId64 ", %.1f %% of them visual, fill: %.2f %%\n", sum.tokens,
            compute_percent(sum.visual, sum.tokens),
            compute_percent(sum.tokens, planned->n_rows * planned->token_budget));
    fprintf(to, "patches: %" PRId64 ", fill: %.2f %%\n", sum.patches,
            compute_percent(sum.patches, planned->n_rows * planned->patch_budget));
    if (planned->conf->data_pack) {
        int64_t rows;
        TRY(plan_greedy_rows(planned, &rows));
        fprintf(to, "greedy packing over a buffer of %d samples: %" PRId64 " rows, fill: %.2f %%\n",
                BUFFER, rows, compute_percent(sum.tokens, rows * planned->token_budget));
    }
    TRY(plan_report_sharing(planned, to));
    report_sources(planned, to);
    report_buckets(planned, to);
    return report_balance(planned, to);
}
