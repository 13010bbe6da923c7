/* memory_change.c: see memory_change.h. Options that save memory are added one after another, each
 * to those before it, and the first sum that fits is named. */
#include "trainer/plan/memory_change.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "trainer/plan/memory_savings.h"
#include "trainer/plan/memory_search.h"
#include "trainer/plan/memory_text.h"
#include "trainer/plan/recompute_plan.h"

enum { ADAPTERS = 16 /* the rank of adapters that are proposed */ };
/* The highest memory.limit that is proposed: that of the configurations for one card. */
static const double HIGHEST_LIMIT = 0.97;

static void append_words(char out[CHANGE_TEXT_MAX], const char *words)
{
    snprintf(out + strlen(out), CHANGE_TEXT_MAX - strlen(out), "%s", words);
}

/* Adds the options that set the mode, without those that are set already. */
static void name_mode(const conf *options, int mode, char out[CHANGE_TEXT_MAX])
{
    if (mode == SEARCH_AS_CONFIGURED)
        return;
    const bool selective = mode == AC_SELECTIVE;
    if (options->activation_checkpoint_mode != mode)
        append_words(out, selective ? "activation_checkpoint.mode selective, "
                                    : "activation_checkpoint.mode full, ");
    if (selective && strcmp(options->activation_checkpoint_selective_ac_option, "op") != 0)
        append_words(out, "activation_checkpoint.selective_ac_option op, ");
    if (selective && strcmp(options->activation_checkpoint_save, "auto") != 0)
        append_words(out, "activation_checkpoint.save auto, ");
}

/* The most rows, up to `rows`, that divide a step. One row always does, and where a step is one
 * micro-batch any number. */
static int64_t that_divide(const plan_input *in, int64_t rows)
{
    const int64_t step = in->conf->training_global_batch_size / layout_consumers(in->layout);
    while (rows > 1 && step % rows != 0 && !in->conf->optimizer_in_backward)
        rows--;
    return rows;
}

/* Adds what was found with the options of `in`, those that are not of `asked`, and the bytes. */
static status name_change(const plan_input *in, const plan_input *asked, const memory_fit *found,
                          const char *saved, char out[CHANGE_TEXT_MAX])
{
    char words[160], text[MEMORY_BYTES_TEXT];
    memory_fit last = *found;
    last.rows = that_divide(in, found->rows);
    const int64_t step = last.rows * layout_consumers(in->layout);
    append_words(out, saved);
    append_words(out, saved[0] ? ", " : "");
    name_mode(in->conf, found->mode, out);
    snprintf(words, sizeof words,
             "training.local_batch_size %" PRId64 ", training.seq_len %" PRId64, last.rows,
             found->seq_len);
    append_words(out, words);
    if (in->conf->optimizer_in_backward && step != asked->conf->training_global_batch_size) {
        snprintf(words, sizeof words, ", training.global_batch_size %" PRId64, step);
        append_words(out, words);
    }
    if (found->patch_budget < memory_patch_budget(asked) && in->conf->data_patch_budget) {
        snprintf(words, sizeof words, ", data.patch_budget %" PRId64, found->patch_budget);
        append_words(out, words);
    }
    TRY(memory_fit_bytes(in, &last));
    snprintf(words, sizeof words, " (%s)", memory_bytes_text(last.total, text));
    append_words(out, words);
    return ST_OK;
}

/* Whether the rows are longer, or as long and more. */
static bool is_better(const memory_fit *one, const memory_fit *other)
{
    return one->seq_len != other->seq_len || other->rows == 0
               ? one->rows > 0 && (other->rows == 0 || one->seq_len > other->seq_len)
               : one->rows > other->rows;
}

/* Names what fits with options that save memory, if that is better than `than`. */
static status name_savings(const plan_input *in, savings *all, const memory_fit *than,
                           char out[CHANGE_TEXT_MAX])
{
    memory_fit found = {0};
    bool more = true;
    plan_trial trial = {0};
    status st = ST_OK;
    while (st == ST_OK && more && found.rows < in->conf->training_local_batch_size) {
        st = savings_add(all, &trial, &more);
        if (st == ST_OK && more)
            st = memory_find_rows(&trial.in, &found);
    }
    if (st == ST_OK && trial.registry && found.rows == 0)
        st = memory_find_length(&trial.in, &found);
    if (st == ST_OK && is_better(&found, than)) {
        append_words(out, out[0] ? "; or " : "what fits: ");
        st = name_change(&trial.in, in, &found, all->text, out);
    }
    plan_trial_end(&trial);
    return st;
}

/* Says what the smallest micro-batch lacks with all that saves memory, if training is asked for. */
static status name_lacking(const plan_input *in, char out[CHANGE_TEXT_MAX])
{
    char takes[MEMORY_BYTES_TEXT], lacks[MEMORY_BYTES_TEXT];
    const double limit = in->conf->memory_limit * in->device->usable;
    memory_fit least = {0};
    savings all;
    plan_trial trial = {0};
    bool more = !in->evaluates;
    TRY(savings_begin(in, &all));
    status st = ST_OK;
    while (st == ST_OK && more)
        st = savings_add(&all, &trial, &more);
    if (st == ST_OK)
        st = memory_find_least(trial.registry ? &trial.in : in, &least);
    plan_trial_end(&trial);
    snprintf(out, CHANGE_TEXT_MAX,
             "no batch of this model fits on this device: one row of %" PRId64
             " tokens takes %s%s%s, which is %s too much",
             least.seq_len, memory_bytes_text(least.total, takes), all.text[0] ? " with " : "",
             all.text, memory_bytes_text(least.total - (int64_t)limit, lacks));
    savings_end(&all);
    return st;
}

/* Names what fits with adapters instead of all that is trained. */
static status name_adapters(const plan_input *in, char out[CHANGE_TEXT_MAX])
{
    const memory_fit none = {0};
    savings all;
    TRY(savings_begin(in, &all));
    status st = savings_adapters(&all, ADAPTERS) ? name_savings(in, &all, &none, out) : ST_OK;
    savings_end(&all);
    if (st != ST_CONFIG)
        return st;
    status_clear(); /* they do not go with the other options */
    return ST_OK;
}

/* Names a higher memory.limit if the input fits with it as it is. On a CPU the rest is other
 * programs'. */
static status name_limit(const plan_input *in, char out[CHANGE_TEXT_MAX])
{
    char words[64], text[MEMORY_BYTES_TEXT];
    conf wider = *in->conf;
    plan_input trial = *in;
    recomputes recomputed;
    memory_plan plan;
    trial.conf = &wider;
    wider.memory_limit = HIGHEST_LIMIT;
    if (plan_device_is_cpu(in->device) || in->conf->memory_limit >= HIGHEST_LIMIT)
        return ST_OK;
    TRY(recompute_plan_of(&trial, wider.training_local_batch_size, &recomputed));
    TRY(layout_plan_make(&trial, wider.training_local_batch_size, &recomputed, &plan));
    if (!layout_fits(&trial, &plan))
        return ST_OK;
    snprintf(words, sizeof words, "what fits: memory.limit %.2f (%s)", HIGHEST_LIMIT,
             memory_bytes_text(plan.total, text));
    append_words(out, words);
    return ST_OK;
}

status memory_smallest_change(const plan_input *in, char out[CHANGE_TEXT_MAX])
{
    memory_fit found;
    savings all;
    out[0] = 0;
    TRY(name_limit(in, out));
    TRY(memory_find_rows(in, &found));
    if (found.rows == 0)
        TRY(memory_find_length(in, &found));
    if (found.rows) {
        append_words(out, out[0] ? "; or " : "what fits: ");
        TRY(name_change(in, in, &found, "", out));
    }
    if (!in->evaluates) {
        TRY(savings_begin(in, &all));
        status st = name_savings(in, &all, &found, out);
        savings_end(&all);
        TRY(st);
    }
    if (!out[0] && !in->evaluates)
        TRY(name_adapters(in, out));
    return out[0] ? ST_OK : name_lacking(in, out);
}
