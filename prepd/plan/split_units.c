/* split_units.c: makes several units of one that takes more than half a row.
 *
 * A picture with very many questions would fill a row alone. Such a row has far fewer patches than
 * others, and a unit that nearly fills a row leaves nothing to even that out (balance.c). So its
 * documents become units of nearly the same length, each with the pictures: a picture more to
 * encode costs less than waiting for the dearer rows in all the steps that such a row is in. */
#include <inttypes.h>
#include <stdlib.h>

#include "prepd/plan/planner.h"

/* Into how many units this one is split. One with a prefix was laid in its parts at once, each with
 * the prefix (prefix_units.c). */
static int64_t parts_of(const plan *planned, const plan_unit *unit)
{
    const int64_t most = planned->token_budget / UNITS_OF_A_ROW;
    if (unit->n_docs < 2 || unit->tokens <= most || plan_unit_prefix(planned, unit) > 0)
        return 1;
    const int64_t parts = (unit->tokens - 1) / most + 1;
    return parts < unit->n_docs ? parts : unit->n_docs;
}

static void add_doc(const plan *planned, plan_unit *unit, int64_t doc)
{
    index_sample record;
    const unit_doc *added = &planned->docs[doc];
    index_sample_get(planned->index, added->sample, &record);
    unit->n_docs++;
    unit->tokens += added->tokens;
    unit->targets += record.targets < added->tokens ? record.targets : added->tokens;
}

/* Writes the units that `whole` becomes and returns how many. A document belongs to the one in
 * which its middle lies. */
static int64_t split_unit(const plan *planned, const plan_unit *whole, int64_t parts,
                          plan_unit *out)
{
    int64_t count = 0, before = 0, last = -1;
    for (int64_t doc = whole->first; doc < whole->first + whole->n_docs; doc++) {
        const int64_t tokens = planned->docs[doc].tokens;
        const int64_t nth = (2 * before + tokens) * parts / (2 * whole->tokens);
        if (nth != last) {
            out[count] = *whole;
            out[count].first = doc;
            out[count].n_docs = out[count].tokens = out[count].targets = 0;
            count++;
        }
        add_doc(planned, &out[count - 1], doc);
        before += tokens;
        last = nth;
    }
    return count;
}

status plan_split_units(plan *planned)
{
    int64_t room = 0, count = 0;
    for (int64_t k = 0; k < planned->n_units; k++)
        room += parts_of(planned, &planned->units[k]);
    if (room == planned->n_units)
        return ST_OK;
    plan_unit *units = (plan_unit *)malloc((size_t)room * sizeof *units);
    if (!units)
        return FAIL(ST_NO_MEMORY, "no memory for %" PRId64 " units", room);
    for (int64_t k = 0; k < planned->n_units; k++) {
        const plan_unit *one = &planned->units[k];
        const int64_t parts = parts_of(planned, one);
        if (parts > 1)
            count += split_unit(planned, one, parts, &units[count]);
        else
            units[count++] = *one;
    }
    free(planned->units);
    planned->units = units;
    planned->n_units = count;
    return ST_OK;
}
