/* groups.c: implements groups.h. A rule marks the parameters it matches in the registry (frozen,
 * lr_factor, own_decay); the optimizer and the memory plan read those marks. */
#include "trainer/optim/groups.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/digits.h"
#include "trainer/model/lora_params.h"

static const char *const names[GROUP_COUNT] = {"vision", "merger", "text", "router", "experts"};
static const char table_name[] = "model.visual.pos_embed.weight";

/* A rule of optimizer.groups, or a pattern that is to be frozen. */
typedef struct rule {
    char pattern[160];
    double lr, decay; /* below 0: the rule does not set it */
    bool frozen;
} rule;

static bool matches(const rule *r, const param *p)
{
    for (int g = 0; g < GROUP_COUNT; g++)
        if (strcmp(r->pattern, names[g]) == 0)
            return (int)p->group == g || (g == GROUP_VISION && strcmp(p->name, table_name) == 0);
    return fnmatch(r->pattern, p->name, 0) == 0;
}

static status apply_rule(const conf *c, const rule *r, const char *key, params *p)
{
    int64_t n = 0;
    if (r->lr > 0 && c->optimizer_lr <= 0) /* the rate is kept as a factor of optimizer.lr */
        return FAIL(
            ST_CONFIG,
            "%s: \"%s\" sets a learning rate while optimizer.lr is 0: set optimizer.lr to the "
            "rate, and give lr=0 or frozen to the groups that must not change",
            key, r->pattern);
    for (int64_t i = 0; i < p->count; i++) {
        param *q = &p->list[i];
        if (!matches(r, q))
            continue;
        n++;
        q->frozen |= r->frozen;
        if (r->lr >= 0)
            q->lr_factor = r->lr > 0 ? r->lr / c->optimizer_lr : 0;
        if (r->decay >= 0)
            q->own_decay = r->decay;
    }
    return n ? ST_OK
             : FAIL(
                   ST_CONFIG,
                   "%s: \"%s\" matches no parameter of this model (trainer inspect lists them) and "
                   "is not a group (vision, merger, text, router, experts)",
                   key, r->pattern);
}

static bool read_number(const char *word, const char *name, double *out)
{
    size_t n = strlen(name);
    char *end;
    if (strncmp(word, name, n) != 0)
        return false;
    *out = strtod(word + n, &end);
    return end != word + n && !*end && *out >= 0 && isfinite(*out);
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

static status apply_rules(const conf *c, params *p)
{
    char *text = strdup(c->optimizer_groups), *rest = NULL;
    status st = text ? ST_OK : FAIL(ST_NO_MEMORY, "out of memory for optimizer.groups");
    for (char *one = text ? strtok_r(text, ";", &rest) : NULL; one && st == ST_OK;
         one = strtok_r(NULL, ";", &rest)) {
        rule r;
        if (!one[strspn(one, " \t\n")])
            continue;
        st = read_rule(one, &r);
        if (st == ST_OK)
            st = apply_rule(c, &r, "optimizer.groups", p);
    }
    free(text);
    return st;
}

static status freeze(const conf *c, params *p)
{
    const bool flags[GROUP_COUNT] = {c->freeze_vision, c->freeze_merger, c->freeze_text,
                                     c->freeze_router, c->freeze_experts};
    for (int g = 0; g < GROUP_COUNT; g++) {
        rule r = {.lr = -1, .decay = -1, .frozen = true};
        snprintf(r.pattern, sizeof r.pattern, "%s", names[g]);
        if (flags[g])
            TRY(apply_rule(c, &r, "freeze", p));
    }
    for (const char *at = c->freeze_pattern; *at;) {
        size_t n = strcspn(at, ", ");
        rule r = {.lr = -1, .decay = -1, .frozen = true};
        snprintf(r.pattern, sizeof r.pattern, "%.*s", (int)n, at);
        if (n)
            TRY(apply_rule(c, &r, "freeze.pattern", p));
        at += n + (at[n] != 0);
    }
    return ST_OK;
}

status groups_apply(const conf *c, params *p)
{
    if (c->lora_rank)
        TRY(lora_add(p, c->lora_rank, c->lora_alpha, c->lora_targets));
    TRY(apply_rules(c, p));
    TRY(freeze(c, p));
    if (params_trained(p) == 0)
        return FAIL(
            ST_CONFIG,
            "every parameter is frozen, so there is nothing to train (freeze.*, optimizer.groups)");
    return ST_OK;
}

static double decay_of(const conf *c, const param *p)
{
    return p->own_decay >= 0 ? p->own_decay : p->decay ? c->optimizer_weight_decay : 0;
}

static bool alike(const conf *c, const param *a, const param *b)
{
    return a->group == b->group && a->frozen == b->frozen &&
           (a->frozen || (a->lr_factor == b->lr_factor && decay_of(c, a) == decay_of(c, b)));
}

void groups_print(const conf *c, const params *p, FILE *to)
{
    fprintf(to, "%-8s %8s %18s  %-10s %s\n", "group", "tensors", "parameters", "rate", "decay");
    for (int g = 0; g < GROUP_COUNT; g++)
        for (int64_t i = 0; i < p->count; i++) {
            const param *first = &p->list[i];
            int64_t tensors = 0, count = 0;
            bool seen = (int)first->group != g;
            for (int64_t j = 0; j < i && !seen; j++)
                seen = alike(c, &p->list[j], first);
            if (seen)
                continue;
            for (int64_t j = i; j < p->count; j++)
                if (alike(c, &p->list[j], first)) {
                    tensors++;
                    count += p->list[j].count;
                }
            char digits[DIGITS_TEXT];
            fprintf(to, "%-8s %8lld %18s  ", names[g], (long long)tensors,
                    digits_with_commas(count, digits));
            if (first->frozen)
                fprintf(to, "frozen\n");
            else
                fprintf(to, "%-10.4g %g\n", c->optimizer_lr * first->lr_factor, decay_of(c, first));
        }
    char all[DIGITS_TEXT], trained[DIGITS_TEXT];
    fprintf(to, "%s of %s parameters are trained\n", digits_with_commas(params_trained(p), trained),
            digits_with_commas(p->total, all));
}

/* The first index N of PREFIX.N. with a trained parameter; n if there is none. */
static int64_t find_lowest_layer(const params *p, const char *prefix, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        char stem[96];
        int size = snprintf(stem, sizeof stem, "%s%lld.", prefix, (long long)i);
        for (int64_t j = 0; j < p->count; j++)
            if (!p->list[j].frozen && strncmp(p->list[j].name, stem, (size_t)size) == 0)
                return i;
    }
    return n;
}

static bool is_trained(const params *p, const char *name)
{
    const param *q = params_find(p, name);
    return q && !q->frozen;
}

/* The multiply-adds that adapters add per multiply-add of the decoder's matrices. Of a layer's
 * experts only the chosen ones work. */
static double adapters_share(const params *p, const model_dims *d)
{
    const double chosen = (double)d->text.top_k / (double)(d->text.experts ? d->text.experts : 1);
    char layers[64];
    int n = snprintf(layers, sizeof layers, "%slayers.", p->text_prefix);
    double matrices = 0, adapters = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const param *q = &p->list[i];
        double work = (double)q->count * (q->n_dims == 3 ? chosen : 1);
        if (q->n_dims > 1 && strncmp(q->name, layers, (size_t)n) == 0)
            *(q->adapter ? &adapters : &matrices) += work;
    }
    return matrices > 0 ? adapters / matrices : 0;
}

void groups_share(const params *p, const model_dims *d, training_share *out)
{
    double all[GROUP_COUNT] = {0}, trained[GROUP_COUNT] = {0};
    char head[96], embed[96], layers[64];
    *out = (training_share){0};
    snprintf(embed, sizeof embed, "%sembed_tokens.weight", p->text_prefix);
    snprintf(head, sizeof head, "%s", d->text.tied ? embed : "lm_head.weight");
    snprintf(layers, sizeof layers, "%slayers.", p->text_prefix);
    for (int64_t i = 0; i < p->count; i++) {
        const param *q = &p->list[i];
        if (q->n_dims < 2 || q->adapter || strcmp(q->name, embed) == 0 ||
            strcmp(q->name, head) == 0 || strcmp(q->name, table_name) == 0 || q->n_dims == 5)
            continue;
        all[q->group] += (double)q->count;
        trained[q->group] += q->frozen ? 0 : (double)q->count;
    }
    for (int g = 0; g < GROUP_COUNT; g++)
        out->wgrad[g] = all[g] > 0 ? trained[g] / all[g] : 0;
    out->adapters = adapters_share(p, d);
    out->head_wgrad = is_trained(p, head);
    out->patch_wgrad = is_trained(p, "model.visual.patch_embed.proj.weight");
    bool into_tower = out->patch_wgrad > 0 || is_trained(p, table_name);
    int64_t depth = d->vision.depth;
    if (depth > 0) {
        int64_t low = into_tower ? 0 : find_lowest_layer(p, "model.visual.blocks.", depth);
        out->vision_dgrad = (double)(depth - low) / (double)depth;
    }
    out->merger_dgrad = params_trains(p, GROUP_MERGER) || params_trains(p, GROUP_VISION);
    int64_t n = d->text.layers, low = find_lowest_layer(p, layers, n);
    if (out->merger_dgrad > 0 || is_trained(p, embed))
        low = 0;
    out->text_dgrad = (double)(n - low) / (double)n;
}

int64_t groups_training_flops(const flops *f, const training_share *s)
{
    double router = (double)f->text_router, experts = (double)f->text_experts;
    double rest = (double)f->text_linear - router - experts;
    /* Forward, gradient of the input, gradient of the weights. */
    double adapters = 3 * (double)f->text_linear * s->adapters;
    double back = rest * (s->wgrad[GROUP_TEXT] + s->text_dgrad) +
                  router * (s->wgrad[GROUP_ROUTER] + s->text_dgrad) +
                  experts * (s->wgrad[GROUP_EXPERTS] + s->text_dgrad) +
                  (double)f->text_attention * 2 * s->text_dgrad +
                  (double)f->head * (s->head_wgrad + 1) + (double)f->patch_embed * s->patch_wgrad +
                  (double)f->vision_blocks * (s->wgrad[GROUP_VISION] + s->vision_dgrad) +
                  (double)f->vision_attention * 2 * s->vision_dgrad +
                  (double)f->mergers * (s->wgrad[GROUP_MERGER] + s->merger_dgrad);
    return f->forward + llround(back + adapters);
}
