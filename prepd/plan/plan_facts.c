/* plan_facts.c: what can be asked of a plan once it is made: budgets, bounds, causes, buckets. */
#include "prepd/plan/planner.h"

/* The default patch budget lets every token of a row be a visual token, which takes four patches.
 */
enum { PATCHES_PER_TOKEN = 4 };

uint64_t plan_rows(const plan *p, const row_range *s)
{
    return s ? s->end_row : p->whole.end_row;
}

bool plan_endless(const plan *p)
{
    return p->kind == PLAN_PACKED && p->last_window == UINT64_MAX;
}

int64_t plan_token_budget(const plan *p)
{
    return p->token_budget;
}

int64_t plan_patches_of(const conf *c)
{
    return c->data_patch_budget ? c->data_patch_budget : PATCHES_PER_TOKEN * c->training_seq_len;
}

int64_t plan_patch_budget(const plan *p)
{
    return p->patch_budget;
}

const char *plan_cause(const plan *p, int64_t i)
{
    int64_t at = id_map_get(&p->cause_of, i);
    return at < 0 ? NULL : text_pool_at(&p->causes, at);
}

int64_t plan_refused(const plan *p)
{
    return p->data->adapter->samples(p->data) - p->n_usable;
}

const shape_bucket *plan_buckets(const plan *p, int *out_n)
{
    *out_n = p->n_buckets;
    return p->buckets;
}

uint64_t plan_epoch_rows(const plan *p)
{
    return p->kind == PLAN_SAMPLES ? p->whole.end_row : p->whole.first_row[p->n_windows];
}
