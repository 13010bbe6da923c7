/* report.c: what `prepd plan` prints about epoch 0. */
#include <inttypes.h>
#include <stdlib.h>

#include "common/base/compare.h"
#include "common/base/visible.h"
#include "prepd/plan/report.h"
#include "proto/assign.h"

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
                GREEDY_BUFFER, rows, compute_percent(sum.tokens, rows * planned->token_budget));
    }
    TRY(plan_report_sharing(planned, to));
    TRY(plan_report_classes(planned, to));
    report_sources(planned, to);
    report_buckets(planned, to);
    return report_balance(planned, to);
}
