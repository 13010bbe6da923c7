/* unit_facts.c: what a unit holds, and what it costs. */
#include "prepd/plan/planner.h"
#include "proto/assign.h"

int32_t plan_unit_prefix(const plan *planned, const plan_unit *unit)
{
    const unit_doc *first = &planned->docs[unit->first];
    return first->part < 0 ? first->tokens : 0;
}

int64_t plan_unit_squares(const plan *planned, const plan_unit *unit)
{
    const int64_t prefix = plan_unit_prefix(planned, unit);
    int64_t squares = 0;
    for (int32_t j = 0; j < unit->n_docs; j++) {
        const unit_doc *doc = &planned->docs[unit->first + j];
        const int64_t tokens = doc->tokens, before = doc->part < 0 ? 0 : prefix;
        squares += tokens * tokens + 2 * tokens * before;
    }
    return squares;
}

int64_t plan_unit_cost(const plan *planned, const plan_unit *unit)
{
    return assign_cost(
        &(row_measure){unit->tokens, unit->patches, plan_unit_squares(planned, unit)});
}

void plan_add_unit(const plan *planned, const plan_unit *unit, row_stat *stat)
{
    const int64_t prefix = plan_unit_prefix(planned, unit);
    stat->tokens += unit->tokens;
    stat->patches += unit->patches;
    stat->targets += unit->targets;
    stat->images += unit->images;
    stat->frames += unit->frames;
    stat->frame = unit->frame > stat->frame ? unit->frame : stat->frame;
    /* The pads of a prefix are there once; those of a shared picture in every document. */
    stat->visual += unit->patches / 4 * (prefix > 0 ? 1 : unit->n_docs);
    stat->documents += unit->n_docs;
    stat->prefixes += prefix > 0;
    stat->squares += plan_unit_squares(planned, unit);
    for (int32_t j = 0; j < unit->n_docs; j++) {
        const unit_doc *doc = &planned->docs[unit->first + j];
        const int64_t whole = doc->tokens + (doc->part < 0 ? 0 : prefix);
        stat->longest = whole > stat->longest ? whole : stat->longest;
    }
}
