/* plan_facts.c: what can be asked of a plan once it is made: budgets, bounds, causes, buckets. */
#include "prepd/plan/planner.h"

/* The default patch budget lets every token of a row be a visual token,
 * which takes four patches. */
enum { PATCHES_PER_TOKEN = 4 };

int plan_version(const conf *options)
{
    return conf_shares_images(options) ? PLAN_VERSION : PLAN_ALONE_VERSION;
}

bool plan_balances(const plan *planned)
{
    return plan_version(planned->conf) >= PLAN_VERSION;
}

uint64_t plan_rows(const plan *planned, const row_range *range)
{
    return range ? range->end_row : planned->whole.end_row;
}

bool plan_endless(const plan *planned)
{
    return planned->kind != PLAN_SAMPLES && planned->last_window == UINT64_MAX;
}

int64_t plan_token_budget(const plan *planned)
{
    return planned->token_budget;
}

int64_t plan_patches_of(const conf *options)
{
    return options->data_patch_budget ? options->data_patch_budget
                                      : PATCHES_PER_TOKEN * options->training_seq_len;
}

int64_t plan_patch_budget(const plan *planned)
{
    return planned->patch_budget;
}

const char *plan_cause(const plan *planned, int64_t index)
{
    int64_t at = id_map_get(&planned->cause_of, index);
    return at < 0 ? NULL : text_pool_at(&planned->causes, at);
}

int64_t plan_refused(const plan *planned)
{
    return planned->data->adapter->samples(planned->data) - planned->n_usable;
}

const shape_bucket *plan_buckets(const plan *planned, int *out_n)
{
    *out_n = planned->n_buckets;
    return planned->buckets;
}

uint64_t plan_epoch_rows(const plan *planned)
{
    return planned->kind == PLAN_SAMPLES ? planned->whole.end_row
                                         : planned->whole.first_row[planned->n_windows];
}
