/* SPDX-License-Identifier: Apache-2.0 */
/* memory_search.c: bisects the rows of a micro-batch, then shortens the rows, and names what was
 * found. */
#include "trainer/plan/memory_search.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "trainer/plan/recompute_plan.h"

enum { MOST_ROWS = 4096, MIN_SEQ_LEN = 16 /* the least that training.seq_len takes */ };

/* A micro-batch. */
typedef struct memory_fit {
    int mode;     /* of activation checkpointing, or SEARCH_AS_CONFIGURED */
    int64_t rows; /* 0: none was found */
    int64_t seq_len, patch_budget;
    int64_t total; /* bytes; of fit_bytes and find_least */
} memory_fit;

status memory_search_recompute(const plan_input *in, int64_t rows, int mode, recomputes *out)
{
    return mode == SEARCH_AS_CONFIGURED ? recompute_plan_of(in, rows, out)
                                        : recompute_plan_with(in, rows, mode, out);
}

/* Stages of a pipeline are cut by the mode too. */
static status plan_rows_of(const plan_input *in, int mode, int64_t rows, memory_plan *out)
{
    recomputes recomputed;
    conf options = *in->conf;
    plan_input changed = *in;
    changed.conf = &options;
    if (mode != SEARCH_AS_CONFIGURED)
        recompute_plan_set(&options, mode);
    TRY(recompute_plan_of(&changed, rows, &recomputed));
    return layout_plan_make(&changed, rows, &recomputed, out);
}

static status rows_fit(const plan_input *in, int mode, int64_t rows, bool *out)
{
    memory_plan plan;
    TRY(plan_rows_of(in, mode, rows, &plan));
    *out = layout_fits(in, &plan);
    return ST_OK;
}

status memory_most_rows(const plan_input *in, int mode, int64_t *out)
{
    int64_t low = 0, high = MOST_ROWS;
    while (low < high) {
        const int64_t rows = (low + high + 1) / 2;
        bool fits;
        TRY(rows_fit(in, mode, rows, &fits));
        if (fits)
            low = rows;
        else
            high = rows - 1;
    }
    *out = low;
    return ST_OK;
}

static int64_t row_tokens(const plan_input *in)
{
    return in->seq_len ? in->seq_len : in->conf->training_seq_len;
}

static int64_t row_patches(const plan_input *in)
{
    return in->seq_len                   ? in->patch_budget
           : in->conf->data_patch_budget ? in->conf->data_patch_budget
                                         : 4 * row_tokens(in);
}

/* Finds the mode with which most rows of the input's length fit, up to as many as are configured.
 * The configured mode comes before others that fit as many. */
static status find_rows(const plan_input *in, memory_fit *out)
{
    static const int modes[] = {SEARCH_AS_CONFIGURED, AC_SELECTIVE, AC_FULL};
    const int64_t wanted = in->conf->training_local_batch_size;
    const size_t tries = in->evaluates ? 1 : sizeof modes / sizeof *modes;
    memory_fit best = {.seq_len = row_tokens(in), .patch_budget = row_patches(in)};
    for (size_t i = 0; i < tries && best.rows < wanted; i++) {
        int64_t most = wanted;
        bool fits;
        TRY(rows_fit(in, modes[i], wanted, &fits));
        if (!fits) {
            TRY(memory_most_rows(in, modes[i], &most));
            /* The wanted number of rows was planned with the stream's shapes, and others are
             * planned without them, so the search may come back with the number that has just
             * failed. */
            most = most < wanted ? most : wanted - 1;
        }
        if (most > best.rows) {
            best.rows = most;
            best.mode = modes[i];
        }
    }
    *out = best;
    return ST_OK;
}

/* The input with other rows. */
typedef struct cut_input {
    conf options; /* shares its texts with those of the input */
    plan_input in;
} cut_input;

static void cut_rows(const plan_input *in, int64_t seq_len, int64_t patch_budget, cut_input *out)
{
    out->options = *in->conf;
    out->options.training_seq_len = seq_len;
    if (in->conf->data_patch_budget)
        out->options.data_patch_budget = patch_budget;
    out->in = *in;
    out->in.conf = &out->options;
    out->in.shapes = (memory_shapes){0};
    out->in.seq_len = out->in.patch_budget = 0;
}

static int least_mode(const plan_input *in)
{
    return in->evaluates ? SEARCH_AS_CONFIGURED : AC_FULL;
}

/* Finds the longest row that fits when all of it is recomputed, of the lengths 3/4, 1/2, 3/8 .. of
 * the input's. */
static status find_length(const plan_input *in, memory_fit *out)
{
    const int64_t seq = row_tokens(in), patches = row_patches(in);
    bool fits = false;
    cut_input cut;
    *out = (memory_fit){.seq_len = seq, .patch_budget = patches};
    for (int64_t of = 4; !fits; of *= 2)
        for (int64_t part = 3; part >= 2 && !fits; part--) {
            if (seq * part / of < MIN_SEQ_LEN)
                return ST_OK;
            cut_rows(in, seq * part / of, patches * part / of, &cut);
            TRY(rows_fit(&cut.in, least_mode(in), 1, &fits));
        }
    *out = (memory_fit){.mode = least_mode(in),
                        .rows = 1,
                        .seq_len = row_tokens(&cut.in),
                        .patch_budget = row_patches(&cut.in)};
    return ST_OK;
}

/* Fills in the bytes of a micro-batch. */
static status fit_bytes(const plan_input *in, memory_fit *inout)
{
    cut_input cut;
    memory_plan plan;
    const bool as_asked = inout->seq_len == row_tokens(in);
    cut_rows(in, inout->seq_len, inout->patch_budget, &cut);
    TRY(plan_rows_of(as_asked ? in : &cut.in, inout->mode, inout->rows, &plan));
    inout->total = plan.total;
    return ST_OK;
}

/* The shortest row, whether it fits or not, and its bytes. */
static status find_least(const plan_input *in, memory_fit *out)
{
    int64_t of = 1;
    while (row_tokens(in) / (2 * of) >= MIN_SEQ_LEN)
        of *= 2;
    *out = (memory_fit){.mode = least_mode(in),
                        .rows = 1,
                        .seq_len = row_tokens(in) / of,
                        .patch_budget = row_patches(in) / of};
    return fit_bytes(in, out);
}

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

/* Adds what was found, and the bytes. */
static status name_change(const plan_input *in, const memory_fit *found, char out[CHANGE_TEXT_MAX])
{
    char words[160], text[MEMORY_BYTES_TEXT];
    memory_fit last = *found;
    last.rows = that_divide(in, found->rows);
    const int64_t step = last.rows * layout_consumers(in->layout);
    name_mode(in->conf, found->mode, out);
    snprintf(words, sizeof words,
             "training.local_batch_size %" PRId64 ", training.seq_len %" PRId64, last.rows,
             found->seq_len);
    append_words(out, words);
    if (in->conf->optimizer_in_backward && step != in->conf->training_global_batch_size) {
        snprintf(words, sizeof words, ", training.global_batch_size %" PRId64, step);
        append_words(out, words);
    }
    if (found->patch_budget < row_patches(in) && in->conf->data_patch_budget) {
        snprintf(words, sizeof words, ", data.patch_budget %" PRId64, found->patch_budget);
        append_words(out, words);
    }
    TRY(fit_bytes(in, &last));
    snprintf(words, sizeof words, " (%s)", memory_bytes_text(last.total, text));
    append_words(out, words);
    return ST_OK;
}

/* Writes what the smallest micro-batch lacks. */
static status name_lacking(const plan_input *in, char out[CHANGE_TEXT_MAX])
{
    char takes[MEMORY_BYTES_TEXT], lacks[MEMORY_BYTES_TEXT];
    const double limit = in->conf->memory_limit * in->device->usable;
    memory_fit least = {0};
    TRY(find_least(in, &least));
    snprintf(out, CHANGE_TEXT_MAX,
             "no batch of this model fits on this device: one row of %" PRId64
             " tokens takes %s, which is %s too much",
             least.seq_len, memory_bytes_text(least.total, takes),
             memory_bytes_text(least.total - (int64_t)limit, lacks));
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
    out[0] = 0;
    TRY(name_limit(in, out));
    TRY(find_rows(in, &found));
    if (found.rows == 0)
        TRY(find_length(in, &found));
    if (found.rows) {
        append_words(out, out[0] ? "; or " : "what fits: ");
        TRY(name_change(in, &found, out));
    }
    if (!out[0])
        TRY(name_lacking(in, out));
    if (!in->evaluates && !plan_device_is_cpu(in->device))
        append_words(out, "; deploy/what-fits tries options that save memory");
    return ST_OK;
}
