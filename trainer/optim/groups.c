/* SPDX-License-Identifier: Apache-2.0 */
/* groups.c: implements groups.h. A rule marks the parameters it matches in the registry (frozen,
 * lr_factor, own_decay); the optimizer and the memory plan read those marks. */
#include "trainer/optim/groups.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/words.h"
#include "trainer/model/params/lora_params.h"
#include "trainer/model/params/quantised.h"

static const char *const names[GROUP_COUNT] = {"vision", "merger", "text", "router", "experts"};
static const char table_name[] = "model.visual.pos_embed.weight";

/* A rule of optimizer.groups, or a pattern that is to be frozen. */
typedef struct rule {
    char pattern[160];
    double lr, decay; /* below 0: the rule does not set it */
    bool frozen;
} rule;

static bool matches(const rule *wanted, const param *weight)
{
    for (int i = 0; i < GROUP_COUNT; i++)
        if (strcmp(wanted->pattern, names[i]) == 0)
            return (int)weight->group == i ||
                   (i == GROUP_VISION && strcmp(weight->name, table_name) == 0);
    return fnmatch(wanted->pattern, weight->name, 0) == 0;
}

static status apply_rule(const conf *options, const rule *wanted, const char *key, params *registry)
{
    int64_t count = 0;
    if (wanted->lr > 0 &&
        options->optimizer_lr <= 0) /* the rate is kept as a factor of optimizer.lr */
        return FAIL(
            ST_CONFIG,
            "%s: \"%s\" sets a learning rate while optimizer.lr is 0: set optimizer.lr to the "
            "rate, and give lr=0 or frozen to the groups that must not change",
            key, wanted->pattern);
    for (int64_t i = 0; i < registry->count; i++) {
        param *entry = &registry->list[i];
        if (!matches(wanted, entry))
            continue;
        count++;
        entry->frozen |= wanted->frozen;
        if (wanted->lr >= 0)
            entry->lr_factor = wanted->lr > 0 ? wanted->lr / options->optimizer_lr : 0;
        if (wanted->decay >= 0)
            entry->own_decay = wanted->decay;
    }
    return count ? ST_OK
                 : FAIL(ST_CONFIG,
                        "%s: \"%s\" matches no parameter of this model (trainer inspect lists "
                        "them) and "
                        "is not a group (vision, merger, text, router, experts)",
                        key, wanted->pattern);
}

static bool read_number(const char *word, const char *name, double *out)
{
    size_t length = strlen(name);
    char *end;
    if (strncmp(word, name, length) != 0)
        return false;
    *out = strtod(word + length, &end);
    return end != word + length && !*end && *out >= 0 && isfinite(*out);
}

/* Reads "PATTERN [lr=X] [decay=X] [frozen]"; the text is cut up in place. */
static status read_rule(char *text, rule *out)
{
    char *rest = NULL, *word = strtok_r(text, " \t\n", &rest);
    *out = (rule){.lr = -1, .decay = -1};
    snprintf(out->pattern, sizeof out->pattern, "%s", word ? word : "");
    while (word && (word = strtok_r(NULL, " \t\n", &rest))) {
        if (strcmp(word, "frozen") == 0)
            out->frozen = true;
        else if (!read_number(word, "lr=", &out->lr) && !read_number(word, "decay=", &out->decay))
            return FAIL(ST_CONFIG,
                        "optimizer.groups: \"%s\" after \"%s\" must be lr=X, decay=X or frozen",
                        word, out->pattern);
    }
    return ST_OK;
}

static status apply_rules(const conf *options, params *registry)
{
    char *text = strdup(options->optimizer_groups), *rest = NULL;
    status st = text ? ST_OK : FAIL(ST_NO_MEMORY, "out of memory for optimizer.groups");
    for (char *one = text ? strtok_r(text, ";", &rest) : NULL; one && st == ST_OK;
         one = strtok_r(NULL, ";", &rest)) {
        rule wanted;
        if (!one[strspn(one, " \t\n")])
            continue;
        st = read_rule(one, &wanted);
        if (st == ST_OK)
            st = apply_rule(options, &wanted, "optimizer.groups", registry);
    }
    free(text);
    return st;
}

static status freeze(const conf *options, params *registry)
{
    for (const char *at = options->freeze_pattern; *at;) {
        size_t count = strcspn(at, ", ");
        rule wanted = {.lr = -1, .decay = -1, .frozen = true};
        snprintf(wanted.pattern, sizeof wanted.pattern, "%.*s", (int)count, at);
        if (count)
            TRY(apply_rule(options, &wanted, "freeze.pattern", registry));
        at += count + (at[count] != 0);
    }
    return ST_OK;
}

lora_kind groups_lora(const conf *options)
{
    return (lora_kind){.rank = options->lora_rank,
                       .alpha = options->lora_alpha,
                       .rslora = options->lora_scaling == LORA_RSLORA,
                       .dora = options->lora_dora};
}

/* Says which rows have moments in 8 bits and master values in BF16. Vectors and routers are small
 * and change what everything else does, so theirs stay in float32. */
static void choose_states(const conf *options, params *registry)
{
    for (int64_t i = 0; i < registry->count; i++) {
        param *row = &registry->list[i];
        const bool matrix = !row->frozen && row->n_dims > 1 && row->group != GROUP_ROUTER;
        row->coded = matrix && options->optimizer_states == STATES_INT8;
        row->act_master = matrix && options->training_master == MASTER_BF16;
    }
    registry->convert_states = options->checkpoint_convert_states;
}

status groups_apply(const conf *options, params *registry)
{
    static const weight_form form[] = {[LORA_BASE_BF16] = WEIGHT_PLAIN,
                                       [LORA_BASE_INT8] = WEIGHT_INT8,
                                       [LORA_BASE_NF4] = WEIGHT_NF4};
    if (options->lora_rank)
        TRY(lora_add(registry, groups_lora(options), options->lora_targets));
    TRY(apply_rules(options, registry));
    TRY(freeze(options, registry));
    registry->in_backward = options->optimizer_in_backward;
    registry->moments_on_host =
        options->memory_host == HOST_MOMENTS || options->memory_host == HOST_BOTH;
    registry->frozen_on_host =
        options->memory_host == HOST_FROZEN || options->memory_host == HOST_BOTH;
    choose_states(options, registry);
    if (options->lora_base != LORA_BASE_BF16)
        TRY(quantised_choose(registry, form[options->lora_base]));
    if (params_trained(registry) == 0)
        return FAIL(ST_CONFIG, "every parameter is frozen, so there is nothing to train "
                               "(freeze.pattern, optimizer.groups)");
    return ST_OK;
}

static double decay_of(const conf *options, const param *weight)
{
    return weight->own_decay >= 0 ? weight->own_decay
           : weight->decay        ? options->optimizer_weight_decay
                                  : 0;
}

static bool alike(const conf *options, const param *weight, const param *bias)
{
    return weight->group == bias->group && weight->frozen == bias->frozen &&
           (weight->frozen || (weight->lr_factor == bias->lr_factor &&
                               decay_of(options, weight) == decay_of(options, bias)));
}

void groups_print(const conf *options, const params *registry, FILE *to)
{
    fprintf(to, "%-8s %8s %18s  %-10s %s\n", "group", "tensors", "parameters", "rate", "decay");
    for (int k = 0; k < GROUP_COUNT; k++)
        for (int64_t i = 0; i < registry->count; i++) {
            const param *first = &registry->list[i];
            int64_t tensors = 0, count = 0;
            bool seen = (int)first->group != k;
            for (int64_t j = 0; j < i && !seen; j++)
                seen = alike(options, &registry->list[j], first);
            if (seen)
                continue;
            for (int64_t j = i; j < registry->count; j++)
                if (alike(options, &registry->list[j], first)) {
                    tensors++;
                    count += registry->list[j].count;
                }
            char digits[DIGITS_TEXT];
            fprintf(to, "%-8s %8lld %18s  ", names[k], (long long)tensors,
                    digits_with_commas(count, digits));
            if (first->frozen)
                fprintf(to, "frozen\n");
            else
                fprintf(to, "%-10.4g %g\n", options->optimizer_lr * first->lr_factor,
                        decay_of(options, first));
        }
    char all[DIGITS_TEXT], trained[DIGITS_TEXT];
    fprintf(to, "%s of %s parameters are trained\n",
            digits_with_commas(params_trained(registry), trained),
            digits_with_commas(registry->total, all));
}

/* The first index N of PREFIX.N. with a trained parameter; `length` if there is none. */
static int64_t find_lowest_layer(const params *registry, const char *prefix, int64_t length)
{
    for (int64_t i = 0; i < length; i++) {
        char stem[96];
        int size = snprintf(stem, sizeof stem, "%s%lld.", prefix, (long long)i);
        for (int64_t j = 0; j < registry->count; j++)
            if (!registry->list[j].frozen &&
                strncmp(registry->list[j].name, stem, (size_t)size) == 0)
                return i;
    }
    return length;
}

static bool is_trained(const params *registry, const char *name)
{
    const param *entry = params_find(registry, name);
    return entry && !entry->frozen;
}

/* The multiply-adds that adapters add per multiply-add of the decoder's matrices. Of a layer's
 * experts only the chosen ones work. */
static double adapters_share(const params *registry, const model_dims *dims)
{
    const double chosen =
        (double)dims->text.top_k / (double)(dims->text.experts ? dims->text.experts : 1);
    char layers[64];
    int length = snprintf(layers, sizeof layers, "%slayers.", registry->text_prefix);
    double matrices = 0, adapters = 0;
    for (int64_t i = 0; i < registry->count; i++) {
        const param *entry = &registry->list[i];
        double work = (double)entry->count * (entry->n_dims == 3 ? chosen : 1);
        if (entry->n_dims > 1 && strncmp(entry->name, layers, (size_t)length) == 0)
            *(entry->adapter ? &adapters : &matrices) += work;
    }
    return matrices > 0 ? adapters / matrices : 0;
}

void groups_share(const params *registry, const model_dims *dims, training_share *out)
{
    double all[GROUP_COUNT] = {0}, trained[GROUP_COUNT] = {0};
    char head[96], embed[96], layers[64];
    *out = (training_share){0};
    snprintf(embed, sizeof embed, "%sembed_tokens.weight", registry->text_prefix);
    snprintf(head, sizeof head, "%s", dims->text.tied ? embed : "lm_head.weight");
    snprintf(layers, sizeof layers, "%slayers.", registry->text_prefix);
    for (int64_t i = 0; i < registry->count; i++) {
        const param *entry = &registry->list[i];
        if (entry->n_dims < 2 || entry->adapter || strcmp(entry->name, embed) == 0 ||
            strcmp(entry->name, head) == 0 || strcmp(entry->name, table_name) == 0 ||
            entry->n_dims == 5)
            continue;
        all[entry->group] += (double)entry->count;
        trained[entry->group] += entry->frozen ? 0 : (double)entry->count;
    }
    for (int j = 0; j < GROUP_COUNT; j++)
        out->wgrad[j] = all[j] > 0 ? trained[j] / all[j] : 0;
    out->adapters = adapters_share(registry, dims);
    out->head_wgrad = is_trained(registry, head);
    out->patch_wgrad = is_trained(registry, "model.visual.patch_embed.proj.weight");
    bool into_tower = out->patch_wgrad > 0 || is_trained(registry, table_name);
    int64_t depth = dims->vision.depth;
    if (depth > 0) {
        int64_t low = into_tower ? 0 : find_lowest_layer(registry, "model.visual.blocks.", depth);
        out->vision_dgrad = (double)(depth - low) / (double)depth;
    }
    out->merger_dgrad =
        params_trains(registry, GROUP_MERGER) || params_trains(registry, GROUP_VISION);
    int64_t count = dims->text.layers, low = find_lowest_layer(registry, layers, count);
    if (out->merger_dgrad > 0 || is_trained(registry, embed))
        low = 0;
    out->text_dgrad = (double)(count - low) / (double)count;
}

int64_t groups_training_flops(const flops *sum, const training_share *share)
{
    double router = (double)sum->text_router, experts = (double)sum->text_experts;
    double rest = (double)sum->text_linear - router - experts;
    /* Forward, gradient of the input, gradient of the weights. */
    double adapters = 3 * (double)sum->text_linear * share->adapters;
    double back = rest * (share->wgrad[GROUP_TEXT] + share->text_dgrad) +
                  router * (share->wgrad[GROUP_ROUTER] + share->text_dgrad) +
                  experts * (share->wgrad[GROUP_EXPERTS] + share->text_dgrad) +
                  (double)sum->text_attention * 2 * share->text_dgrad +
                  (double)sum->head * (share->head_wgrad + 1) +
                  (double)sum->patch_embed * share->patch_wgrad +
                  (double)sum->vision_blocks * (share->wgrad[GROUP_VISION] + share->vision_dgrad) +
                  (double)sum->vision_attention * 2 * share->vision_dgrad +
                  (double)sum->mergers * (share->wgrad[GROUP_MERGER] + share->merger_dgrad);
    return sum->forward + llround(back + adapters);
}
