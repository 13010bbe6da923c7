/* memory_search.c: bisects the rows of a micro-batch, and then halves the rows' length. */
#include "trainer/plan/memory_search.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "trainer/plan/recompute_plan.h"

enum { MOST_ROWS = 4096, MIN_SEQ_LEN = 16 /* the least that training.seq_len takes */ };

status memory_search_recompute(const plan_input *in, int64_t rows, int mode, recomputes *out)
{
    return mode == SEARCH_AS_CONFIGURED ? recompute_plan_of(in, rows, out)
                                        : recompute_plan_with(in, rows, mode, out);
}

static status rows_fit(const plan_input *in, int mode, int64_t rows, bool *out)
{
    recomputes recomputed;
    memory_plan plan;
    TRY(memory_search_recompute(in, rows, mode, &recomputed));
    TRY(layout_plan_make(in, rows, &recomputed, &plan));
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

/* A change that fits. */
typedef struct smaller {
    int mode;
    int64_t rows; /* 0: none was found */
    int64_t seq_len, patch_budget;
} smaller;

/* Finds the mode with which most rows fit, up to as many as are wanted. The configured mode comes
 * before others that fit as many. */
static status fewer_rows(const plan_input *in, smaller *out)
{
    static const int modes[] = {SEARCH_AS_CONFIGURED, AC_SELECTIVE, AC_FULL};
    const int64_t wanted = in->conf->training_local_batch_size;
    const size_t tries = in->evaluates ? 1 : sizeof modes / sizeof *modes;
    out->rows = 0;
    for (size_t i = 0; i < tries && out->rows < wanted; i++) {
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
        if (most > out->rows) {
            out->rows = most;
            out->mode = modes[i];
        }
    }
    return ST_OK;
}

/* Halves the length of rows until a micro-batch of one row fits. */
static status shorter_rows(const plan_input *in, smaller *out)
{
    plan_input cut = *in;
    const int mode = in->evaluates ? SEARCH_AS_CONFIGURED : AC_FULL;
    bool fits = false;
    cut.shapes = (memory_shapes){0};
    cut.seq_len = out->seq_len;
    cut.patch_budget = out->patch_budget;
    while (!fits && cut.seq_len / 2 >= MIN_SEQ_LEN) {
        cut.seq_len /= 2;
        cut.patch_budget /= 2;
        TRY(rows_fit(&cut, mode, 1, &fits));
    }
    if (fits)
        *out = (smaller){mode, 1, cut.seq_len, cut.patch_budget};
    return ST_OK;
}

/* The most rows, up to `rows`, that divide a step. One row always does. */
static int64_t that_divide(const plan_input *in, int64_t rows)
{
    const int64_t step =
        in->conf->training_global_batch_size / (in->layout->replicate * in->layout->shard);
    while (rows > 1 && step % rows != 0)
        rows--;
    return rows;
}

static void append_words(char out[SEARCH_TEXT_MAX], const char *words)
{
    snprintf(out + strlen(out), SEARCH_TEXT_MAX - strlen(out), "%s", words);
}

/* Adds the options that set the mode, without those that are set already. */
static void add_mode(const conf *options, int mode, char out[SEARCH_TEXT_MAX])
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
    if (options->activation_checkpoint_vision_mode != AC_VISION_SAME)
        append_words(out, "activation_checkpoint.vision_mode same, ");
    if (selective && strcmp(options->activation_checkpoint_vision_save, "auto") != 0)
        append_words(out, "activation_checkpoint.vision_save auto, ");
}

status memory_smallest_change(const plan_input *in, char out[SEARCH_TEXT_MAX])
{
    const conf *options = in->conf;
    const int64_t seq = in->seq_len ? in->seq_len : options->training_seq_len;
    const int64_t patches = in->seq_len                  ? in->patch_budget
                            : options->data_patch_budget ? options->data_patch_budget
                                                         : 4 * seq;
    smaller found = {.seq_len = seq, .patch_budget = patches};
    char numbers[160];
    TRY(fewer_rows(in, &found));
    if (found.rows == 0)
        TRY(shorter_rows(in, &found));
    if (found.rows == 0) {
        snprintf(out, SEARCH_TEXT_MAX, "no batch of this model fits on this device");
        return ST_OK;
    }
    snprintf(out, SEARCH_TEXT_MAX, "what fits: ");
    add_mode(options, found.mode, out);
    snprintf(numbers, sizeof numbers,
             "training.local_batch_size %" PRId64 ", training.seq_len %" PRId64,
             that_divide(in, found.rows), found.seq_len);
    append_words(out, numbers);
    if (found.seq_len < seq && options->data_patch_budget) {
        snprintf(numbers, sizeof numbers, ", data.patch_budget %" PRId64, found.patch_budget);
        append_words(out, numbers);
    }
    return ST_OK;
}
