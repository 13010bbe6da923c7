/* SPDX-License-Identifier: Apache-2.0 */
/* slow_units.c: from samples to units: what a sample measures, or that it cannot be in a row; texts
 * cut into parts; and samples that show the same pictures side by side (data.group). */
#include <string.h>

#include "tests/sim/plan/slow_parts.h"

static const int64_t ANY = INT64_MAX / 2;

/* Shrinks the pictures to `room` patches together, each to its share of what they had. */
static bool shrink(const slow_plan *plan, const slow_sample *own, int64_t room, slow_measure *inout)
{
    int64_t left = room;
    const int64_t before = inout->patches;
    inout->patches = 0;
    for (int32_t i = 0; i < own->n_shown; i++) {
        const int64_t share = slow_least(slow_patches(inout->grids[i]) * room / before, left);
        if (!slow_grid_of(&plan->data->pictures[own->shows[i]], plan->options, share,
                          &inout->grids[i]))
            return false;
        left -= slow_patches(inout->grids[i]);
        inout->patches += slow_patches(inout->grids[i]);
    }
    return true;
}

static slow_measure measure(const slow_plan *plan, const slow_sample *own)
{
    slow_measure out = {.grids = slow_memory(own->n_shown, sizeof *out.grids)};
    const bool splits = own->plain && own->n_shown == 0;
    out.usable = !own->refused && (splits || own->text_tokens <= plan->budget);
    for (int32_t i = 0; i < own->n_shown && out.usable; i++) {
        const slow_picture *shown = &plan->data->pictures[own->shows[i]];
        out.usable = !shown->refused && slow_grid_of(shown, plan->options, ANY, &out.grids[i]);
        out.patches += slow_patches(out.grids[i]);
    }
    const int64_t room = slow_least(plan->patch_budget, 4 * (plan->budget - own->text_tokens));
    if (out.usable && own->n_shown > 0 && out.patches > room)
        out.usable =
            plan->options->data_oversize != OVERSIZE_REFUSE && shrink(plan, own, room, &out);
    out.tokens = own->text_tokens + out.patches / 4;
    return out;
}

bool slow_same_pictures(const slow_plan *plan, int64_t one, int64_t other)
{
    const slow_sample *first = &plan->data->samples[one], *second = &plan->data->samples[other];
    bool same = first->n_shown == second->n_shown;
    for (int32_t i = 0; same && i < first->n_shown; i++)
        same = first->shows[i] == second->shows[i] &&
               plan->measure[one].grids[i].rows == plan->measure[other].grids[i].rows &&
               plan->measure[one].grids[i].columns == plan->measure[other].grids[i].columns;
    return same;
}

slow_unit *slow_units_add(slow_units *units)
{
    if ((units->count & (units->count - 1)) == 0)
        units->all = realloc(units->all, (size_t)(2 * units->count + 1) * sizeof *units->all);
    if (!units->all)
        abort();
    units->all[units->count] = (slow_unit){0};
    return &units->all[units->count++];
}

void slow_unit_add(slow_unit *unit, slow_part doc)
{
    if ((unit->n_docs & (unit->n_docs - 1)) == 0)
        unit->docs = realloc(unit->docs, (size_t)(2 * unit->n_docs + 1) * sizeof *unit->docs);
    if (!unit->docs)
        abort();
    unit->docs[unit->n_docs++] = doc;
    unit->tokens += doc.tokens;
}

void slow_units_free(slow_units *units)
{
    for (int64_t i = 0; i < units->count; i++)
        free(units->all[i].docs);
    free(units->all);
    *units = (slow_units){0};
}

/* A unit for each sample, or for each part of a text that is longer than a row. */
static slow_units each_alone(const slow_plan *plan)
{
    slow_units units = {0};
    for (int64_t i = 0; i < plan->data->n_samples; i++) {
        const slow_measure *own = &plan->measure[i];
        for (int64_t from = 0; own->usable && from < own->tokens; from += plan->budget) {
            slow_unit *unit = slow_units_add(&units);
            slow_unit_add(unit, (slow_part){i, from / plan->budget,
                                            slow_least(own->tokens - from, plan->budget)});
            unit->patches = own->patches;
        }
    }
    return units;
}

/* data.group shared_image: a sample joins the last unit that begins with the same first picture, if
 * that shows the same pictures and has room. */
static slow_units by_picture(const slow_plan *plan, const slow_units *alone)
{
    slow_units units = {0};
    for (int64_t i = 0; i < alone->count; i++) {
        const slow_part doc = alone->all[i].docs[0];
        const slow_sample *own = &plan->data->samples[doc.sample];
        slow_unit *to = NULL;
        for (int64_t k = units.count - 1; k >= 0 && !to && own->n_shown > 0; k--) {
            const slow_sample *other = &plan->data->samples[units.all[k].docs[0].sample];
            if (other->n_shown > 0 && other->shows[0] == own->shows[0])
                to = &units.all[k];
        }
        if (!to || to->tokens + doc.tokens > plan->budget ||
            !slow_same_pictures(plan, to->docs[0].sample, doc.sample)) {
            to = slow_units_add(&units);
            to->patches = alone->all[i].patches;
        }
        slow_unit_add(to, doc);
    }
    return units;
}

/* Cuts a unit of more than half a row into nearly equal ones: each document goes to the one in
 * which its middle lies. */
static void split(const slow_plan *plan, const slow_unit *whole, slow_units *out)
{
    const int64_t half = plan->budget / 2;
    int64_t pieces = 1, before = 0, last = -1;
    slow_unit *to = NULL;
    if (whole->n_docs > 1 && whole->tokens > half && whole->prefix == 0)
        pieces = slow_least((whole->tokens + half - 1) / half, whole->n_docs);
    for (int64_t i = 0; i < whole->n_docs; i++) {
        const int64_t tokens = whole->docs[i].tokens,
                      piece = pieces * (2 * before + tokens) / (2 * whole->tokens);
        if (!to || piece != last) {
            to = slow_units_add(out);
            to->patches = whole->patches;
            to->prefix = whole->prefix;
        }
        slow_unit_add(to, whole->docs[i]);
        before += tokens;
        last = piece;
    }
}

void slow_plan_units(slow_plan *plan)
{
    plan->measure = slow_memory(plan->data->n_samples, sizeof *plan->measure);
    for (int64_t i = 0; i < plan->data->n_samples; i++)
        plan->measure[i] = measure(plan, &plan->data->samples[i]);
    slow_units alone = each_alone(plan), joined;
    if (plan->kind == SLOW_SAMPLES || !conf_shares_images(plan->options)) {
        plan->units = alone;
        return;
    }
    joined = plan->options->data_group == GROUP_SHARED_IMAGE ? by_picture(plan, &alone)
                                                             : slow_prefixes(plan, &alone);
    slow_units_free(&alone);
    for (int64_t i = 0; i < joined.count; i++)
        split(plan, &joined.all[i], &plan->units);
    slow_units_free(&joined);
}
