/* SPDX-License-Identifier: Apache-2.0 */
/* sections.c: the data sections (dispatch_state.h), their plans, and how a run ends.
 *
 * All consumers of a kind of stream share one plan, which depends on the index, the options and the
 * seed alone. What a consumer brings along (row, rank, quarantine list) stays in its consumer_seat.
 */
#include "prepd/serve/core/state/dispatch_state.h"

/* Pieces of planning in a turn of the loop (plan_prepare), few enough that no peer notices. It is a
 * number and not a time, so that what a turn does follows from what came before it alone. */
enum { PIECES_PER_TURN = 4 };

void dispatch_fail(dispatch *state, status st)
{
    if (state->stopping && state->outcome != ST_OK)
        return; /* the first cause counts */
    state->outcome = st;
    state->cause = *status_last();
    state->stopping = true;
}

status section_want(dispatch *state, source *section)
{
    if (section->wanted)
        return ST_OK;
    TRY(state->outside.want_section(state->outside.shell, section));
    section->wanted = true;
    return ST_OK;
}

status section_mix(source *section)
{
    const hash128 identity = section->data->adapter->identity(section->data);
    return hash_equal(identity, dataset_contents(section->data))
               ? ST_OK
               : index_mix(section->index, identity);
}

void section_clear(source *section)
{
    for (int kind = 0; kind < PLAN_KINDS; kind++)
        plan_free(&section->plans[kind].plan);
    bad_samples_done(&section->bad);
    bad_samples_done(&section->damaged);
    predecessors_free(&section->build.before);
    *section = (source){.of = section->of, .name = section->name};
}

/* --- plans, made in slices between the loop's other work --- */

void planning_turn(dispatch *state)
{
    state->pieces_left = PIECES_PER_TURN;
    state->plans_wait = false;
}

status planning_row(dispatch *state, consumer_seat *consumer, uint64_t row, bool *out_ready)
{
    const int64_t before = state->pieces_left;
    TRY(plan_prepare(consumer->plan, consumer->from, row, &state->pieces_left, out_ready));
    consumer->src->plans[consumer->kind].worked |= state->pieces_left < before;
    state->plans_wait |= !*out_ready;
    return ST_OK;
}

status planning_want(consumer_seat *consumer)
{
    source *src = consumer->src;
    shared_plan *shared = &src->plans[consumer->kind];
    if (shared->failed.code != ST_OK) {
        status_set(&shared->failed);
        return shared->failed.code;
    }
    if (!shared->plan)
        TRY(plan_begin(&src->options, src->data, src->index, consumer->kind, &shared->plan));
    if (!consumer->plan) {
        consumer->plan = shared->plan;
        plan_walkers(shared->plan, ++shared->walkers);
    }
    return ST_OK;
}

status planning_ready(dispatch *state, consumer_seat *consumer, bool *out_ready)
{
    const status st = planning_row(state, consumer, consumer->rows_later ? 0 : PLAN_ALL, out_ready);
    if (st != ST_OK)
        consumer->src->plans[consumer->kind].failed = *status_last();
    return st;
}

void dispatch_note_turn_time(dispatch *state, int64_t ns, int64_t cpu_ns)
{
    source *const sections[] = {&state->train, &state->eval};
    for (int k = 0; k < 2; k++)
        for (int kind = 0; kind < PLAN_KINDS; kind++) {
            shared_plan *shared = &sections[k]->plans[kind];
            shared->spent_ns += shared->worked ? cpu_ns : 0;
            shared->worked = false;
        }
    if (ns > state->counts.longest_turn_ns)
        state->counts.longest_turn_ns = ns;
}

void planning_leave(consumer_seat *consumer)
{
    if (!consumer->plan)
        return;
    shared_plan *shared = &consumer->src->plans[consumer->kind];
    plan_leave(shared->plan, &consumer->from);
    plan_walkers(shared->plan, --shared->walkers);
    consumer->plan = NULL;
    if (shared->walkers == 0 && shared->failed.code != ST_OK) {
        plan_free(
            &shared->plan); /* a failed plan is of no use; the next consumer begins a new one */
        *shared = (shared_plan){0};
    }
}
