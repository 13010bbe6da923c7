/* SPDX-License-Identifier: Apache-2.0 */
/* slow_prefixes.c: data.group shared_prefix: which samples share their beginning, how long it is,
 * and the units that they become (prepd/plan/packing.md, "Shared prefixes"). */
#include "tests/sim/plan/slow_parts.h"

/* Samples that begin alike. Each has its own unit in `alone`, which stands for it here. */
typedef struct family {
    int64_t *member; /* [count] */
    int64_t count;
    int64_t agrees, label, head; /* as in index_beginning: the least, the lowest, the highest */
    bool ordinary;               /* its members share no more than pictures */
    int64_t host;                /* the family that has taken its members; -1: none */
} family;

typedef struct families {
    const slow_plan *plan;
    const slow_units *alone;
    family *all; /* [count] in the order of their first members */
    int64_t count;
    int64_t *of;      /* [alone] the family of each */
    int64_t *unit_of; /* [n_samples] the last unit of a sample; -1 */
} families;

static int64_t sample_of(const families *all, int64_t unit)
{
    return all->alone->all[unit].docs[0].sample;
}

static const slow_sample *facts_of(const families *all, int64_t unit)
{
    return &all->plan->data->samples[sample_of(all, unit)];
}

static void add_member(family *to, int64_t unit)
{
    to->member = realloc(to->member, (size_t)(to->count + 1) * sizeof *to->member);
    if (!to->member)
        abort();
    to->member[to->count++] = unit;
}

/* The nearest predecessor that is in the stream, as a unit, with what both begin with; -1. */
static int64_t predecessor(const families *all, int64_t unit, int64_t *out_agrees)
{
    int64_t at = sample_of(all, unit);
    *out_agrees = INT32_MAX;
    while (all->plan->data->samples[at].back > 0) {
        *out_agrees = slow_least(*out_agrees, all->plan->data->samples[at].agrees);
        at -= all->plan->data->samples[at].back;
        if (all->unit_of[at] >= 0)
            return all->unit_of[at];
    }
    return -1;
}

/* Text tokens of a prefix: what all begin with, but not the token before the first label. */
static int64_t cut(int64_t agrees, int64_t label)
{
    return slow_least(agrees, label - 1);
}

static bool saves(const families *all, const family *of, int64_t agrees, int64_t label)
{
    const conf *options = all->plan->options;
    const int64_t now = cut(of->agrees, of->label),
                  then = cut(slow_least(of->agrees, agrees), slow_least(of->label, label));
    return of->count < options->data_prefix_branches && then >= options->data_prefix_min_tokens &&
           of->count * then >= (of->count - 1) * now;
}

static bool may_join(const families *all, int64_t unit, int64_t before, int64_t agrees)
{
    const slow_sample *own = facts_of(all, unit), *other = facts_of(all, before);
    const family *of = &all->all[all->of[before]];
    if (of->member[of->count - 1] != before)
        return false; /* another has joined after it */
    if (own->n_shown == 0)
        return other->n_shown == 0 && saves(all, of, agrees, own->first_label);
    return agrees >= own->head &&
           slow_same_pictures(all->plan, sample_of(all, before), sample_of(all, unit));
}

static void join(families *all, int64_t unit)
{
    const slow_sample *own = facts_of(all, unit);
    int64_t agrees;
    const int64_t before = predecessor(all, unit, &agrees);
    if (all->alone->all[unit].docs[0].part > 0 || before < 0 ||
        !may_join(all, unit, before, agrees)) {
        all->of[unit] = all->count;
        all->all[all->count] =
            (family){.agrees = INT32_MAX, .label = own->first_label, .head = own->head, .host = -1};
        add_member(&all->all[all->count++], unit);
        return;
    }
    family *to = &all->all[all->of[before]];
    all->of[unit] = all->of[before];
    add_member(to, unit);
    to->agrees = slow_least(to->agrees, agrees);
    to->label = slow_least(to->label, own->first_label);
    to->head = own->head > to->head ? own->head : to->head;
}

/* Tokens of the family's prefix, with its pictures; 0: none. */
static int64_t prefix_of(const families *all, const family *of)
{
    const slow_unit *first = &all->alone->all[of->member[0]];
    const int64_t tokens = cut(of->agrees, of->label);
    if (of->ordinary || of->count < 2 ||
        (facts_of(all, of->member[0])->n_shown > 0 && tokens < of->head))
        return 0;
    return tokens + first->patches / 4;
}

static bool akin(const families *all, const family *one, const family *other)
{
    const slow_sample *first = facts_of(all, one->member[0]),
                      *second = facts_of(all, other->member[0]);
    return first->source == second->source && first->piece == second->piece &&
           slow_same_pictures(all->plan, sample_of(all, one->member[0]),
                              sample_of(all, other->member[0]));
}

/* Members of a family without a prefix go to the last one before it of that kind that shows the
 * same pictures. */
static void find_host(families *all, int64_t nth)
{
    family *own = &all->all[nth];
    own->ordinary = facts_of(all, own->member[0])->n_shown > 0 && prefix_of(all, own) == 0;
    int64_t host = own->ordinary ? nth - 1 : -1;
    while (host >= 0 && !(all->all[host].ordinary && akin(all, &all->all[host], own)))
        host--;
    if (host < 0)
        return;
    own->host = all->all[host].host >= 0 ? all->all[host].host : host;
    for (int64_t i = 0; i < own->count; i++)
        add_member(&all->all[own->host], own->member[i]);
}

/* The tokens with which a unit of this family is full. */
static int64_t full_at(const families *all, const family *of, int64_t prefix)
{
    int64_t branches = 0, longest = 0;
    for (int64_t i = 0; i < of->count; i++) {
        const int64_t tokens = all->alone->all[of->member[i]].tokens - prefix;
        branches += tokens;
        longest = tokens > longest ? tokens : longest;
    }
    int64_t room = all->plan->budget / 2 - prefix;
    if (room < longest)
        room = all->plan->budget - prefix;
    const int64_t units = (branches + room - 1) / room;
    return prefix + (branches + units - 1) / units;
}

/* A prefix with a single branch is no prefix. */
static void close_unit(slow_units *out)
{
    slow_unit *last = out->count > 0 ? &out->all[out->count - 1] : NULL;
    if (!last || last->prefix == 0 || last->n_docs != 2)
        return;
    last->docs[1].tokens += last->prefix;
    last->docs[0] = last->docs[1];
    last->n_docs = 1;
    last->prefix = 0;
}

static void lay(const families *all, const family *of, slow_units *out)
{
    const int64_t prefix = prefix_of(all, of);
    const bool together = prefix > 0 || facts_of(all, of->member[0])->n_shown > 0;
    const int64_t full = prefix > 0 ? full_at(all, of, prefix) : all->plan->budget;
    slow_unit *to = NULL;
    for (int64_t i = 0; i < of->count; i++) {
        const slow_unit *own = &all->alone->all[of->member[i]];
        slow_part doc = own->docs[0];
        doc.tokens -= prefix;
        if (!to || !together || to->tokens >= full || to->tokens + doc.tokens > all->plan->budget) {
            close_unit(out);
            to = slow_units_add(out);
            to->patches = own->patches;
            to->prefix = prefix;
            if (prefix > 0)
                slow_unit_add(to, (slow_part){doc.sample, -1, prefix});
        }
        slow_unit_add(to, doc);
    }
    close_unit(out);
}

slow_units slow_prefixes(const slow_plan *plan, const slow_units *alone)
{
    slow_units out = {0};
    families all = {.plan = plan, .alone = alone};
    all.all = slow_memory(alone->count, sizeof *all.all);
    all.of = slow_memory(alone->count, sizeof *all.of);
    all.unit_of = slow_memory(plan->data->n_samples, sizeof *all.unit_of);
    for (int64_t i = 0; i < plan->data->n_samples; i++)
        all.unit_of[i] = -1;
    for (int64_t i = 0; i < alone->count; i++)
        all.unit_of[sample_of(&all, i)] = i;
    for (int64_t i = 0; i < alone->count; i++)
        join(&all, i);
    for (int64_t i = 0; i < all.count; i++)
        find_host(&all, i);
    for (int64_t i = 0; i < all.count; i++)
        if (all.all[i].host < 0)
            lay(&all, &all.all[i], &out);
    for (int64_t i = 0; i < all.count; i++)
        free(all.all[i].member);
    free(all.all);
    free(all.of);
    free(all.unit_of);
    return out;
}
