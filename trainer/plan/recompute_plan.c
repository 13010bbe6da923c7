/* SPDX-License-Identifier: Apache-2.0 */
/* recompute_plan.c: ranks the outputs that may be kept by seconds saved per byte, and keeps them in
 * that order while the plan still fits the device. */
#include "trainer/plan/recompute_plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/model/exchange/exchange.h"
#include "trainer/plan/layout_plan.h"
#include "trainer/plan/rates.h"
#include "trainer/plan/row_work.h"

enum { MACS = 2, ACT = 2 /* bytes of bf16 */, N_KINDS = 5, TOWERS = 2 };

/* The outputs that `op` may keep, by their names in activation_checkpoint.save. */
static const struct {
    const char *name;
    unsigned kind;
} kinds[N_KINDS] = {{"qkv", RECOMPUTE_QKV},
                    {"attention", RECOMPUTE_ATTENTION},
                    {"proj", RECOMPUTE_PROJ},
                    {"fc1", RECOMPUTE_FC1},
                    {"fc2", RECOMPUTE_FC2}};
static const unsigned products =
    RECOMPUTE_QKV | RECOMPUTE_ATTENTION | RECOMPUTE_PROJ | RECOMPUTE_FC1 | RECOMPUTE_FC2;

int64_t recompute_plan_kept(const recompute *tower, int64_t count, unsigned kind)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += !(recompute_of(tower, i) & kind);
    return sum;
}

/* Appends to a text of RECOMPUTE_TEXT_MAX. */
static void append_words(char *text, const char *words)
{
    snprintf(text + strlen(text), RECOMPUTE_TEXT_MAX - strlen(text), "%s", words);
}

const char *recompute_plan_text(const recompute *tower, char text[RECOMPUTE_TEXT_MAX])
{
    char number[48];
    bool none = true;
    snprintf(text, RECOMPUTE_TEXT_MAX, "%s", tower->what == 0 ? "none" : "full");
    if (tower->what == RECOMPUTE_ALL && tower->every > 1)
        snprintf(text, RECOMPUTE_TEXT_MAX, "selective: of layers %lld, %lld, ..",
                 (long long)tower->every, (long long)(2 * tower->every));
    if (tower->what == 0 || tower->what == RECOMPUTE_ALL)
        return text;
    snprintf(text, RECOMPUTE_TEXT_MAX, "selective: keeps ");
    for (int i = 0; i < N_KINDS; i++)
        if (!(tower->what & tower->partly & kinds[i].kind) || tower->layers == 0) {
            append_words(text, tower->what & kinds[i].kind ? "" : none ? "" : ", ");
            append_words(text, tower->what & kinds[i].kind ? "" : kinds[i].name);
            none = none && (tower->what & kinds[i].kind);
        } else {
            snprintf(number, sizeof number, "%s%s in %lld layers", none ? "" : ", ", kinds[i].name,
                     (long long)tower->layers);
            append_words(text, number);
            none = false;
        }
    if (none)
        append_words(text, "router outputs only");
    return text;
}

/* Reads the kinds named in a list, whose words conf_check has verified. */
static unsigned named(const char *list)
{
    unsigned found = 0;
    for (const char *at = list; *at;) {
        at += strspn(at, ", ");
        size_t count = strcspn(at, ", ");
        for (int i = 0; i < N_KINDS; i++)
            if (strlen(kinds[i].name) == count && strncmp(at, kinds[i].name, count) == 0)
                found |= kinds[i].kind;
        at += count;
    }
    return found;
}

/* Seconds that it takes to compute this kind of output, for one token in a decoder layer or for one
 * patch in a vision block. */
static double seconds_of(const conf *options, const layout *degrees, const model_dims *dims,
                         bool vision, unsigned kind)
{
    const rates speeds = rates_h200();
    const row_kind mean = row_kind_of(options, dims);
    const double hidden = (double)(vision ? dims->vision.hidden : dims->text.hidden);
    const double wide = vision ? hidden : (double)(dims->text.heads * dims->text.head_dim);
    const double narrow = vision ? hidden : (double)(dims->text.kv_heads * dims->text.head_dim);
    const bool is_moe = !vision && dims_layer_is_moe(dims, dims->text.layers - 1);
    const bool shared = exchange_is_needed(degrees);
    const double slots = is_moe ? (double)dims->text.top_k : 1;
    const double width = (double)(vision   ? dims->vision.intermediate
                                  : is_moe ? dims->text.expert_width
                                           : dims->text.intermediate);
    const double product = speeds.of[is_moe ? RATE_EXPERTS : RATE_DENSE];
    const double fc1 = MACS * slots * hidden * width * (vision ? 1 : 2) / product;
    switch (kind) {
    case RECOMPUTE_QKV:
        return MACS * hidden * (wide + 2 * narrow) / speeds.of[RATE_DENSE];
    case RECOMPUTE_ATTENTION:
        if (vision)
            return 2 * MACS * wide * mean.grid[1] * mean.grid[2] / speeds.of[RATE_VISION_ATTENTION];
        return MACS * wide * (double)(mean.document + 1) / speeds.of[RATE_ATTENTION];
    case RECOMPUTE_PROJ:
        return MACS * hidden * wide / speeds.of[RATE_DENSE];
    case RECOMPUTE_FC1:
        return is_moe && shared ? 0 : fc1; /* experts that ranks share never keep it */
    default:
        if (!is_moe || !shared)
            return is_moe ? fc1 / 2 : 0;
        /* Tokens must be sent to their experts once more. */
        return 1.5 * fc1 + 2 * slots * hidden * ACT / speeds.of[RATE_LINK];
    }
}

/* A kind of output that may be kept in a tower. */
typedef struct choice {
    bool vision;
    unsigned kind;
    double worth; /* seconds saved per byte kept */
} choice;

static int worthier(const void *left, const void *right)
{
    const choice *first = left, *second = right;
    if (first->worth != second->worth)
        return first->worth > second->worth ? -1 : 1;
    return first->kind < second->kind ? -1 : first->kind > second->kind;
}

static status list_choices(const plan_input *in, bool text, bool vision, choice *list, int *out_n)
{
    const model_dims *dims = in->dims;
    const bool open[TOWERS] = {text, vision && dims->vision.depth > 0};
    const model_options options = {.cap = {.tokens = in->conf->training_seq_len, .patches = 4096},
                                   .training = true};
    int count = 0;
    for (int tower = 0; tower < TOWERS; tower++)
        for (int i = 0; i < N_KINDS && open[tower]; i++) {
            const int64_t things = tower ? options.cap.patches : options.cap.tokens;
            int64_t bytes[TOWERS];
            TRY(model_kinds_bytes(dims, &options, in->device->sizes, kinds[i].kind, &bytes[0],
                                  &bytes[1]));
            double seconds = seconds_of(in->conf, in->layout, dims, tower == 1, kinds[i].kind);
            if (bytes[tower] > 0 && seconds > 0)
                list[count++] = (choice){tower == 1, kinds[i].kind,
                                         seconds * (double)things / (double)bytes[tower]};
        }
    qsort(list, (size_t)count, sizeof *list, worthier);
    *out_n = count;
    return ST_OK;
}

static status fits_device(const plan_input *in, int64_t rows, const recomputes *recomputed,
                          bool *out)
{
    memory_plan plan;
    TRY(layout_plan_make(in, rows, recomputed, &plan));
    *out = layout_fits(in, &plan);
    return ST_OK;
}

/* Finds the most layers of a tower that can keep this kind. */
static status keep_partly(const plan_input *in, int64_t rows, const choice *one, recomputes *inout)
{
    recomputes more = *inout;
    recompute *tower = one->vision ? &more.vision : &more.text;
    int64_t low = 0, high = one->vision ? in->dims->vision.depth : in->dims->text.layers;
    bool fit;
    tower->partly = one->kind;
    while (low < high) {
        tower->layers = (low + high + 1) / 2;
        TRY(fits_device(in, rows, &more, &fit));
        if (fit)
            low = tower->layers;
        else
            high = tower->layers - 1;
    }
    tower->layers = low;
    if (low > 0)
        *inout = more;
    return ST_OK;
}

/* Keeps the most worthwhile of the outputs that the options leave open, while they fit. */
static status choose_recompute(const plan_input *in, int64_t rows, bool text, bool vision,
                               recomputes *inout)
{
    choice list[TOWERS * N_KINDS];
    int count;
    bool fit;
    TRY(fits_device(in, rows, inout, &fit));
    if (!fit)
        return ST_OK; /* it does not fit even now, so nothing more can be kept */
    TRY(list_choices(in, text, vision, list, &count));
    for (int i = 0; i < count; i++) {
        recomputes more = *inout;
        *(list[i].vision ? &more.vision.what : &more.text.what) &= ~list[i].kind;
        TRY(fits_device(in, rows, &more, &fit));
        if (!fit)
            return keep_partly(in, rows, &list[i], inout);
        *inout = more;
    }
    return ST_OK;
}

/* What the options say of one tower. *out_open: they leave the choice to the device. */
static recompute of_options(int mode, const char *option, const char *save, bool *out_open)
{
    *out_open = false;
    if (mode != AC_SELECTIVE)
        return (recompute){.what = mode == AC_FULL ? RECOMPUTE_ALL : 0};
    if (strcmp(option, "op") != 0)
        return (recompute){.what = RECOMPUTE_ALL, .every = atoll(option)};
    *out_open = strcmp(save, "auto") == 0;
    return (recompute){.what = RECOMPUTE_CHEAP | (products & ~named(save))};
}

/* What the options say of both towers,
 * and for which of them they leave the choice to the device. */
static recomputes configured(const conf *options, bool *out_text, bool *out_vision)
{
    return (recomputes){.text = of_options(options->activation_checkpoint_mode,
                                           options->activation_checkpoint_selective_ac_option,
                                           options->activation_checkpoint_save, out_text),
                        .vision = of_options(options->activation_checkpoint_mode,
                                             options->activation_checkpoint_selective_ac_option,
                                             "auto", out_vision)};
}

bool recompute_is_open(const conf *options)
{
    bool text, vision;
    configured(options, &text, &vision);
    return text || vision;
}

status recompute_plan_of(const plan_input *in, int64_t rows, recomputes *out)
{
    bool text, vision;
    recomputes again = configured(in->conf, &text, &vision);
    if (in->evaluates) /* there is no backward */
        again = (recomputes){0};
    else if (text || vision)
        TRY(choose_recompute(in, rows, text, vision, &again));
    *out = again;
    return ST_OK;
}

void recompute_plan_set(conf *options, int mode)
{
    options->activation_checkpoint_mode = mode;
    options->activation_checkpoint_selective_ac_option = "op";
    options->activation_checkpoint_save = "auto";
}

status recompute_plan_with(const plan_input *in, int64_t rows, int mode, recomputes *out)
{
    conf other = *in->conf;
    plan_input changed = *in;
    changed.conf = &other;
    recompute_plan_set(&other, mode);
    return recompute_plan_of(&changed, rows, out);
}

int64_t recompute_plan_first_reached(int64_t layers, double reached)
{
    return layers - (int64_t)llround(reached * (double)layers);
}

static int64_t layers_recomputed(const recompute *again, int64_t layers, double reached,
                                 unsigned kind)
{
    int64_t sum = 0;
    for (int64_t i = recompute_plan_first_reached(layers, reached); i < layers; i++)
        sum += (recompute_of(again, i) & kind) != 0;
    return sum;
}

double recompute_plan_share(const recompute *tower, int64_t count, double reached, unsigned kind)
{
    return count > 0 ? (double)layers_recomputed(tower, count, reached, kind) / (double)count : 0;
}

/* Adds the multiply-adds with which a layer recomputes `what` for one token. */
static void count_layer(const text_dims *text, bool is_moe, const layout *degrees, unsigned what,
                        int64_t *dense, int64_t *experts)
{
    const int64_t query = text->heads * text->head_dim, kv = text->kv_heads * text->head_dim;
    *dense += what & RECOMPUTE_QKV ? text->hidden * (query + 2 * kv) : 0;
    *dense += what & RECOMPUTE_PROJ ? text->hidden * query : 0;
    if (!is_moe) {
        *dense += what & RECOMPUTE_FC1 ? 2 * text->hidden * text->intermediate : 0;
        return;
    }
    *dense += what & RECOMPUTE_ROUTE ? text->hidden * text->experts : 0;
    *experts += expert_work_again(text, degrees, what);
}

void recompute_plan_count(const recomputes *recomputed, const layout *degrees,
                          const model_dims *dims, const training_share *share, const flops *forward,
                          int64_t tokens, int64_t patches, recompute_flops *out)
{
    const text_dims *text = &dims->text;
    const vision_dims *vision = &dims->vision;
    int64_t dense = 0, experts = 0, block;
    for (int64_t layer = recompute_plan_first_reached(text->layers, share->text_dgrad);
         layer < text->layers; layer++)
        count_layer(text, dims_layer_is_moe(dims, layer), degrees,
                    recompute_of(&recomputed->text, layer), &dense, &experts);
    *out =
        (recompute_flops){.dense = MACS * tokens * dense,
                          .experts = MACS * tokens * experts,
                          .attention = forward->text_attention / text->layers *
                                       layers_recomputed(&recomputed->text, text->layers,
                                                         share->text_dgrad, RECOMPUTE_ATTENTION)};
    if (vision->depth == 0)
        return;
#define RECOMPUTE_BLOCKS(kind)                                                                     \
    layers_recomputed(&recomputed->vision, vision->depth, share->vision_dgrad, kind)
    block = 3 * vision->hidden * vision->hidden * RECOMPUTE_BLOCKS(RECOMPUTE_QKV) +
            vision->hidden * vision->hidden * RECOMPUTE_BLOCKS(RECOMPUTE_PROJ) +
            vision->hidden * vision->intermediate * RECOMPUTE_BLOCKS(RECOMPUTE_FC1);
    out->dense += MACS * patches * block;
    out->vision_attention =
        forward->vision_attention / vision->depth * RECOMPUTE_BLOCKS(RECOMPUTE_ATTENTION);
#undef RECOMPUTE_BLOCKS
    if (share->merger_dgrad > 0 && recomputed->vision.every <= 1 &&
        (recomputed->vision.what & RECOMPUTE_FC1)) {
        const int64_t merged = vision->merge * vision->merge, wide = merged * vision->hidden;
        out->dense += MACS * (patches / merged) * (1 + vision->n_deepstack) * wide * wide;
    }
}
