/* card_fit.c: see card_fit.h. */
#include "trainer/plan/card_fit.h"

#include "trainer/plan/plan_trial.h"
#include "trainer/plan/rates.h"
#include "trainer/plan/recompute_plan.h"

enum { MOST_ROWS = 4 };

typedef struct search {
    const conf *base;
    const model_dims *dims;
    const card_method *method;
    const plan_device *card;
    int64_t cards, experts; /* how many there are, and how many of them share experts */
} search;

static status set_options(conf *options, const card_setting *list)
{
    for (int i = 0; i < CARD_SETTINGS && list[i].key; i++)
        TRY(conf_set(options, list[i].key, list[i].value));
    return ST_OK;
}

static void set_layout(const search *of, conf *options)
{
    options->parallelism_world_size = options->parallelism_data_parallel_shard_degree = of->cards;
    options->parallelism_expert_parallel_degree = of->experts;
}

/* The rows of a micro-batch, and with them those of a step. */
static int64_t step_rows(const conf *options, int64_t rows)
{
    const int64_t together = rows * options->parallelism_world_size;
    return options->optimizer_in_backward || together > CARD_STEP_ROWS ? together : CARD_STEP_ROWS;
}

static status set_all(const search *of, const card_saving *saving, int64_t seq_len, conf *options)
{
    const bool moe = of->dims->text.experts > 0;
    TRY(set_options(options, moe ? of->method->experts : of->method->dense));
    TRY(set_options(options, saving->set));
    set_layout(of, options);
    options->checkpoint_enable = true;
    options->training_seq_len = seq_len;
    options->training_local_batch_size = 1;
    options->training_global_batch_size = step_rows(options, 1);
    return ST_OK;
}

static status begin_trial(const search *of, const card_saving *saving, int64_t seq_len,
                          plan_trial *out)
{
    status st = plan_trial_begin(of->base, out);
    if (st == ST_OK)
        st = set_all(of, saving, seq_len, &out->options);
    if (st == ST_OK)
        st = plan_trial_make(out, of->dims, of->card);
    if (st != ST_OK)
        plan_trial_end(out);
    return st;
}

/* Keeps these rows and this mode if they fit and are faster than what has been found. */
static status try_mode(plan_trial *one, const rates *speeds, int mode, bool *out_fits,
                       card_fit *best)
{
    const int64_t rows = one->options.training_local_batch_size;
    recomputes recomputed;
    memory_plan plan;
    cost price;
    TRY(recompute_plan_with(&one->in, rows, mode, &recomputed));
    TRY(layout_plan_make(&one->in, rows, &recomputed, &plan));
    *out_fits = layout_fits(&one->in, &plan);
    if (!*out_fits)
        return ST_OK;
    TRY(cost_of(&one->options, &one->degrees, one->in.dims, one->registry, speeds, &recomputed,
                &price));
    if (price.tokens_per_s <= best->tokens_per_s)
        return ST_OK;
    best->rows = rows;
    best->mode = mode;
    best->total = plan.total;
    best->host = memory_host(&plan);
    best->tokens_per_s = price.tokens_per_s;
    best->mfu = price.mfu;
    return ST_OK;
}

/* More rows at once are faster only where something is done once for all of them: on several cards,
 * which gather the weights for them, with updates in backward, and where the weights come from the
 * host. What is between recomputing all and nothing takes longest to plan, and is of use only where
 * nothing does not fit. */
static status find_fastest(plan_trial *one, card_fit *inout)
{
    const rates speeds = rates_of(one->in.device->card);
    const int64_t most = one->degrees.world > 1 || one->options.optimizer_in_backward ||
                                 one->registry->frozen_on_host
                             ? MOST_ROWS
                             : 1;
    bool fits = true;
    for (int64_t rows = 1; rows <= most && fits; rows *= 2) {
        bool whole = false;
        TRY(plan_trial_rows(one, rows, step_rows(&one->options, rows)));
        TRY(try_mode(one, &speeds, AC_FULL, &fits, inout));
        if (fits)
            TRY(try_mode(one, &speeds, AC_NONE, &whole, inout));
        if (fits && !whole)
            TRY(try_mode(one, &speeds, AC_SELECTIVE, &whole, inout));
    }
    return ST_OK;
}

/* *out_over: bytes that a micro-batch of one row is above the limit when all of it is recomputed; 0
 * if it fits. */
static status least_bytes(const plan_trial *one, int64_t *out_over)
{
    recomputes all;
    memory_plan plan;
    TRY(recompute_plan_with(&one->in, 1, AC_FULL, &all));
    TRY(layout_plan_make(&one->in, 1, &all, &plan));
    const double limit = one->options.memory_limit * one->in.device->usable;
    *out_over = layout_fits(&one->in, &plan) ? 0 : plan.total - (int64_t)limit;
    return ST_OK;
}

/* Finds the fastest settings with this saving and adds them if they are faster than what has been
 * found; inout NULL: finds none. *out_over: what is lacking, 0 if they fit. */
static status try_saving(const search *of, const card_saving *saving, int64_t seq_len,
                         int64_t *out_over, card_fit *inout)
{
    const double before = inout ? inout->tokens_per_s : 0;
    plan_trial one;
    TRY(begin_trial(of, saving, seq_len, &one));
    status st = least_bytes(&one, out_over);
    if (st == ST_OK && *out_over == 0 && inout)
        st = find_fastest(&one, inout);
    if (inout && inout->tokens_per_s > before) {
        inout->cards = of->cards;
        inout->experts = of->experts;
        inout->saving = saving;
        inout->seq_len = seq_len;
    }
    plan_trial_end(&one);
    return st;
}

/* The same for every way to share the experts. *out_over: what is lacking with the best of them. */
static status try_groups(search *of, const card_saving *saving, int64_t seq_len, int64_t *out_over,
                         card_fit *inout)
{
    const int64_t most = of->dims->text.experts ? of->cards : 1;
    int64_t least = INT64_MAX, over;
    for (of->experts = 1; of->experts <= most; of->experts *= 2) {
        if (most > 1 && of->dims->text.experts % of->experts != 0)
            continue;
        TRY(try_saving(of, saving, seq_len, &over, inout));
        least = over < least ? over : least;
    }
    *out_over = least;
    return ST_OK;
}

/* 8,192, 6,144, 4,096, 3,072, .. */
static int64_t shorter_length(int64_t seq_len)
{
    return seq_len % 3 == 0 ? seq_len / 3 * 2 : seq_len / 4 * 3;
}

/* Takes the longest rows that fit with anything that saves, and of the savings the first with which
 * rows of that length fit. */
static status try_lengths(search *of, card_fit *inout)
{
    const card_method *method = of->method;
    const card_saving *last = &method->savings[method->n_savings - 1];
    int64_t seq = CARD_SEQ_LEN, over = 1;
    while (seq > CARD_SEQ_LEN_LEAST && over > 0) {
        TRY(try_groups(of, last, seq, &over, NULL));
        if (over > 0)
            seq = shorter_length(seq);
    }
    for (int i = 0; i < method->n_savings && !inout->cards; i++)
        TRY(try_groups(of, &method->savings[i], seq, &over, inout));
    return ST_OK;
}

status card_fit_find(const conf *base, const model_dims *dims, const card_method *method,
                     const plan_device *card, card_fit *out)
{
    const card_saving *last = &method->savings[method->n_savings - 1];
    search of = {.base = base, .dims = dims, .method = method, .card = card};
    card_fit found = {0};
    for (of.cards = 1; of.cards <= CARDS_MOST && !found.cards; of.cards *= 2) {
        int64_t over;
        TRY(try_groups(&of, last, CARD_SEQ_LEN_LEAST, &over, NULL));
        if (of.cards == 1)
            found.lacking = over;
        if (over == 0)
            TRY(try_lengths(&of, &found));
    }
    *out = found;
    return ST_OK;
}
