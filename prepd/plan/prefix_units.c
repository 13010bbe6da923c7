/* SPDX-License-Identifier: Apache-2.0 */
/* prefix_units.c: units of samples that begin alike (data.group shared_prefix).
 *
 * The index says how many tokens each sample has in common with its predecessor (index.h), so the
 * samples that may share a beginning are chains. What all samples of a run of a chain have in
 * common is the least of what neighbours have in common. A refused sample may stand between two
 * others; what both have in common with it is then taken, which is never too much.
 *
 * Samples with pictures are one unit if they show the same ones at the same sizes and agree as far
 * as the last of them. Texts share only with their neighbours, and a text joins the unit before it
 * only if that does not make the row longer. The prefix is what all samples of a unit have in
 * common, but at most what comes before the token that precedes the first label: that token
 * predicts the label, and must be of the sample's own branch. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/compare.h"
#include "common/base/hash.h"
#include "prepd/plan/planner.h"

/* Samples that share a beginning. Tokens are counted as in index_beginning. */
typedef struct prefix_group {
    int64_t first, last; /* units */
    int64_t members;
    int32_t agrees; /* what all members have in common; INT32_MAX for a single one */
    int32_t label;  /* the lowest first label of a member */
    int32_t head;   /* the highest head of a member */
    int64_t akin;   /* the last group before it that shows the same images; -1 if there is none */
    int64_t host;   /* the group that has taken its members; -1 if it has them itself */
    bool ordinary;  /* its members share no prefix, only images; known when groups are laid */
} prefix_group;

struct prefixing {
    int64_t *unit_of;     /* [samples] the unit of a sample that is in the stream; -1 otherwise */
    int64_t *group_of;    /* [units] */
    int64_t *next;        /* [units] the next member of the same group; -1 for the last */
    prefix_group *groups; /* [n_groups], in the order of their first members */
    int64_t n_groups;
    id_map by_images; /* what find_key says of a group's first member -> position in `last` */
    int64_t *last;    /* [n_shown] the last group with that key; room for [units] */
    int64_t n_shown;
};

static int64_t sample_of(const plan *planned, int64_t unit)
{
    return planned->docs[planned->units[unit].first].sample;
}

status plan_begin_prefixes(plan *planned)
{
    const size_t units = (size_t)planned->n_units + 1;
    const int64_t samples = index_samples(planned->index);
    if (!index_has_beginnings(planned->index))
        return FAIL(ST_BAD_INPUT, "the index does not say how samples begin, which data.group "
                                  "shared_prefix needs");
    prefixing *work = planned->prefixing = (prefixing *)calloc(1, sizeof *work);
    if (work) {
        work->unit_of = (int64_t *)malloc(((size_t)samples + 1) * sizeof *work->unit_of);
        work->group_of = (int64_t *)malloc(units * sizeof *work->group_of);
        work->next = (int64_t *)malloc(units * sizeof *work->next);
        work->groups = (prefix_group *)malloc(units * sizeof *work->groups);
        work->last = (int64_t *)malloc(units * sizeof *work->last);
    }
    if (!work || !work->unit_of || !work->group_of || !work->next || !work->groups || !work->last)
        return FAIL(ST_NO_MEMORY, "no memory to join %" PRId64 " samples", planned->n_units);
    for (int64_t i = 0; i < samples; i++)
        work->unit_of[i] = -1;
    for (int64_t unit = 0; unit < planned->n_units; unit++)
        work->unit_of[sample_of(planned, unit)] = unit;
    return ST_OK;
}

void plan_stop_prefixes(plan *planned)
{
    prefixing *work = planned->prefixing;
    if (!work)
        return;
    free(work->unit_of);
    free(work->group_of);
    free(work->next);
    free(work->groups);
    free(work->last);
    id_map_done(&work->by_images);
    free(work);
    planned->prefixing = NULL;
}

/* The nearest sample of the chain before sample `at` that is in the stream, as a unit, and what
 * both have in common; -1 if there is none. */
static int64_t find_before(const plan *planned, int64_t at, int32_t *out_agrees)
{
    int64_t unit = -1;
    *out_agrees = INT32_MAX;
    while (unit < 0) {
        index_beginning record;
        index_beginning_get(planned->index, at, &record);
        if (record.before == 0)
            return -1;
        if (record.agrees < *out_agrees)
            *out_agrees = record.agrees;
        at -= record.before;
        unit = planned->prefixing->unit_of[at];
    }
    return unit;
}

/* How many text tokens the prefix of the members would have. */
static int32_t cut_of(int32_t agrees, int32_t label)
{
    return agrees < label - 1 ? agrees : label - 1;
}

/* Whether a text may join the group: what the row saves must not become less. */
static bool saves_enough(const plan *planned, const prefix_group *group, int32_t agrees,
                         int32_t label)
{
    const int64_t now = cut_of(group->agrees, group->label),
                  then = cut_of(min_i64(group->agrees, agrees), min_i64(group->label, label));
    return group->members < planned->conf->data_prefix_branches &&
           then >= planned->conf->data_prefix_min_tokens &&
           group->members * then >= (group->members - 1) * now;
}

/* Sets *out to whether the unit may join the group that `before` is the last member of. */
static status may_join(plan *planned, int64_t unit, int64_t before, int32_t agrees,
                       const index_beginning *own, bool *out)
{
    const plan_unit *one = &planned->units[unit], *other = &planned->units[before];
    const prefix_group *group = &planned->prefixing->groups[planned->prefixing->group_of[before]];
    *out = false;
    if (group->last != before)
        return ST_OK;
    if (one->images == 0 && other->images == 0)
        *out = saves_enough(planned, group, agrees, own->first_label);
    else if (one->images > 0 && agrees >= own->head)
        return plan_same_images(planned, sample_of(planned, before), sample_of(planned, unit), out);
    return ST_OK;
}

/* A number that two samples have in common if they show the same images at the same sizes and come
 * from the same source and piece; other samples have it only by chance. */
static status find_key(plan *planned, int64_t mine, int64_t *out)
{
    const sample_place place = dataset_sample_place(planned->data, mine);
    planned_doc doc;
    bool is_cause;
    hasher *hash = NULL;
    TRY(hasher_new(&hash));
    const arena_mark mark = arena_save(&planned->scratch);
    const status st = plan_measure(planned, mine, &planned->scratch, &doc, &is_cause);
    hasher_add_u64(hash, (uint64_t)place.source);
    hasher_add_u64(hash, (uint64_t)place.piece);
    for (int32_t k = 0; st == ST_OK && k < doc.n_images; k++) {
        hasher_add_u64(hash, (uint64_t)doc.images[k]);
        hasher_add_u64(hash, (uint64_t)doc.grids[k].rows << 32 | (uint64_t)doc.grids[k].columns);
    }
    arena_release(&planned->scratch, mark);
    const hash128 key = hasher_value(hash);
    memcpy(out, key.bytes, sizeof *out);
    hasher_free(&hash);
    return st;
}

/* Finds the last group before a new one that shows the same images: *out is -1 if there is none.
 * Groups that share no text may still share the images. */
static status find_akin(plan *planned, int64_t unit, int64_t *out)
{
    prefixing *work = planned->prefixing;
    const int64_t mine = sample_of(planned, unit);
    int64_t key, at;
    bool is_new, same = false;
    *out = -1;
    if (planned->units[unit].images == 0)
        return ST_OK;
    TRY(find_key(planned, mine, &key));
    TRY(id_map_put(&work->by_images, key, work->n_shown, &at, &is_new));
    if (is_new) {
        work->last[work->n_shown++] = work->n_groups;
        return ST_OK;
    }
    const int64_t akin = work->last[at];
    TRY(plan_same_images(planned, sample_of(planned, work->groups[akin].first), mine, &same));
    if (!same) /* by chance */
        return ST_OK;
    work->last[at] = work->n_groups;
    *out = akin;
    return ST_OK;
}

status plan_join_prefix(plan *planned, int64_t unit)
{
    prefixing *work = planned->prefixing;
    const int64_t mine = sample_of(planned, unit);
    index_beginning own;
    int32_t agrees;
    bool joins = false;
    index_beginning_get(planned->index, mine, &own);
    const int64_t before = find_before(planned, mine, &agrees);
    if (before >= 0 && planned->docs[planned->units[unit].first].part == 0)
        TRY(may_join(planned, unit, before, agrees, &own, &joins));
    work->next[unit] = -1;
    if (!joins) {
        int64_t akin;
        TRY(find_akin(planned, unit, &akin));
        work->group_of[unit] = work->n_groups;
        work->groups[work->n_groups++] = (prefix_group){.first = unit,
                                                        .last = unit,
                                                        .members = 1,
                                                        .agrees = INT32_MAX,
                                                        .label = own.first_label,
                                                        .head = own.head,
                                                        .akin = akin,
                                                        .host = -1};
        return ST_OK;
    }
    prefix_group *group = &work->groups[work->group_of[before]];
    work->group_of[unit] = work->group_of[before];
    work->next[group->last] = unit;
    group->last = unit;
    group->members++;
    group->agrees = min_i64(group->agrees, agrees);
    group->label = min_i64(group->label, own.first_label);
    group->head = own.head > group->head ? own.head : group->head;
    return ST_OK;
}

/* What lay_groups writes. */
typedef struct laid_units {
    plan_unit *units;
    unit_doc *docs;
    int64_t n_units, n_docs;
} laid_units;

/* Tokens of the group's prefix, pads included; 0 if its members are ordinary documents. */
static int32_t prefix_of(const plan *planned, const prefix_group *group)
{
    const plan_unit *one = &planned->units[group->first];
    const int32_t cut = cut_of(group->agrees, group->label);
    if (group->ordinary || group->members < 2 || (one->images > 0 && cut < group->head))
        return 0;
    return cut + one->patches / 4;
}

/* Adds a member to the last unit, as a branch or, without a prefix, as it is. */
static void add_member(const plan *planned, int64_t member, int32_t prefix, laid_units *laid)
{
    const plan_unit *one = &planned->units[member];
    plan_unit *unit = &laid->units[laid->n_units - 1];
    unit_doc doc = planned->docs[one->first];
    doc.tokens -= prefix;
    laid->docs[laid->n_docs++] = doc;
    unit->n_docs++;
    unit->tokens += doc.tokens;
    unit->targets += one->targets;
}

static void open_unit(const plan *planned, int64_t member, int32_t prefix, laid_units *laid)
{
    plan_unit *unit = &laid->units[laid->n_units++];
    *unit = planned->units[member];
    unit->first = laid->n_docs;
    unit->tokens = prefix;
    unit->n_docs = unit->targets = 0;
    if (prefix > 0) {
        laid->docs[laid->n_docs++] = (unit_doc){sample_of(planned, member), -1, prefix};
        unit->n_docs = 1;
    }
    add_member(planned, member, prefix, laid);
}

/* A unit of one branch becomes an ordinary document. */
static void close_unit(laid_units *laid)
{
    plan_unit *unit = &laid->units[laid->n_units - 1];
    unit_doc *docs = &laid->docs[unit->first];
    if (unit->n_docs != 2 || docs[0].part >= 0)
        return;
    docs[1].tokens += docs[0].tokens;
    docs[0] = docs[1];
    unit->n_docs = 1;
    laid->n_docs--;
}

/* The tokens after which a unit of the group is full, the prefix included. A group that needs more
 * than one unit gets units of nearly the same length, and of half a row at most, so that rows can
 * be made alike in cost (balance.c); of a whole row where half of one is too short for a branch. */
static int64_t full_at(const plan *planned, const prefix_group *group, int32_t prefix)
{
    int64_t branches = 0, longest = 0;
    for (int64_t member = group->first; member >= 0; member = planned->prefixing->next[member]) {
        const int64_t tokens = planned->units[member].tokens - prefix;
        branches += tokens;
        longest = tokens > longest ? tokens : longest;
    }
    int64_t room = planned->token_budget / UNITS_OF_A_ROW - prefix;
    if (room < longest)
        room = planned->token_budget - prefix;
    const int64_t units = (branches - 1) / room + 1;
    return prefix + (branches - 1) / units + 1;
}

/* Lays the group's prefix and members side by side, in several units if one would be too large;
 * each of these has the prefix. */
static void lay_group(const plan *planned, const prefix_group *group, laid_units *laid)
{
    const int32_t prefix = prefix_of(planned, group);
    const bool together = prefix > 0 || planned->units[group->first].images > 0;
    const int64_t full = prefix > 0 ? full_at(planned, group, prefix) : planned->token_budget;
    open_unit(planned, group->first, prefix, laid);
    for (int64_t member = planned->prefixing->next[group->first]; member >= 0;
         member = planned->prefixing->next[member]) {
        const int64_t tokens = laid->units[laid->n_units - 1].tokens;
        if (together && tokens < full &&
            tokens + planned->units[member].tokens - prefix <= planned->token_budget) {
            add_member(planned, member, prefix, laid);
            continue;
        }
        close_unit(laid);
        open_unit(planned, member, prefix, laid);
    }
    close_unit(laid);
}

/* Gives the members of an ordinary group to the last ordinary one before it that shows the same
 * images, so that these are sent and encoded once. */
static void host_group(const plan *planned, prefix_group *group)
{
    const prefixing *work = planned->prefixing;
    group->ordinary = planned->units[group->first].images > 0 && prefix_of(planned, group) == 0;
    int64_t host = group->ordinary ? group->akin : -1;
    while (host >= 0 && !work->groups[host].ordinary)
        host = work->groups[host].akin;
    if (host < 0)
        return;
    if (work->groups[host].host >= 0)
        host = work->groups[host].host;
    prefix_group *taker = &work->groups[host];
    work->next[taker->last] = group->first;
    taker->last = group->last;
    taker->members += group->members;
    group->host = host;
}

status plan_lay_prefixes(plan *planned)
{
    const prefixing *work = planned->prefixing;
    laid_units laid = {0};
    /* At most every sample has a prefix before it while a unit is being laid. */
    laid.docs = (unit_doc *)malloc((2 * (size_t)planned->n_docs + 1) * sizeof *laid.docs);
    laid.units = (plan_unit *)malloc(((size_t)planned->n_units + 1) * sizeof *laid.units);
    if (!laid.docs || !laid.units) {
        free(laid.docs);
        free(laid.units);
        return FAIL(ST_NO_MEMORY, "no memory to join %" PRId64 " samples", planned->n_docs);
    }
    for (int64_t k = 0; k < work->n_groups; k++)
        host_group(planned, &work->groups[k]);
    for (int64_t k = 0; k < work->n_groups; k++)
        if (work->groups[k].host < 0)
            lay_group(planned, &work->groups[k], &laid);
    free(planned->docs);
    free(planned->units);
    planned->docs = laid.docs;
    planned->n_docs = laid.n_docs;
    planned->units = laid.units;
    planned->n_units = laid.n_units;
    return ST_OK;
}
