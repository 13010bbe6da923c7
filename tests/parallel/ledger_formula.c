#include "tests/parallel/ledger_formula.h"

#include <stdlib.h>
#include <string.h>

static int64_t counted(const comm_ledger *l, const char *what)
{
    const comm_tally *list;
    int64_t bytes = 0;
    int n = comm_ledger_list(l, &list);
    for (int i = 0; i < n; i++)
        if (strcmp(list[i].what, what) == 0)
            bytes += list[i].step_bytes;
    return bytes;
}

/* Slots between this rank and others from the router's own counts, which are those of the last
 * micro-step: of [layers, E] of every rank that shares the experts. */
static void count_slots(const session *s, const int32_t *count, received_work *w)
{
    const comm *c = mesh_comm(&s->mesh, MESH_EXPERT);
    const text_dims *t = &s->dims.text;
    const int64_t own = t->experts / c->size, n = t->layers * t->experts;
    for (int from = 0; from < c->size; from++)
        for (int64_t i = 0; i < n; i++) {
            int owner = (int)(i % t->experts / own);
            if (owner == from)
                continue;
            w->slots_come += owner == c->rank ? count[from * n + i] : 0;
            w->slots_go += from == c->rank ? count[from * n + i] : 0;
        }
}

static status routed(const session *s, received_work *w)
{
    const comm *c = mesh_comm(&s->mesh, MESH_EXPERT);
    const int64_t n = s->dims.text.layers * s->dims.text.experts;
    int32_t *mine = calloc((size_t)(n * (c->size + 1)), sizeof *mine), *all = mine + n;
    if (!mine)
        return FAIL(ST_NO_MEMORY, "no memory for the counts of experts");
    size_t bytes = (size_t)n * sizeof *mine;
    status st = s->device->v->to_host(s->stream, mine, model_expert_count(s->model), bytes);
    if (st == ST_OK)
        st = s->device->v->wait(s->stream);
    if (st == ST_OK)
        st = comm_host_all_gather(c, (comm_at){"parity", -1}, mine, all, (int64_t)bytes);
    if (st == ST_OK)
        count_slots(s, all, w);
    free(mine);
    return st;
}

/* Where the routers' counts do not tell (several micro-steps; tokens of all tensor ranks): from two
 * of the five lines, so that the others are checked. */
static void guess_slots(const session *s, const comm_ledger *l, received_work *w)
{
    const int64_t slot = s->dims.text.hidden * (int64_t)w->act;
    w->slots_come = counted(l, "send to experts again") / slot;
    w->slots_go = counted(l, "return gradients from experts") / slot;
}

/* What is sent has come somewhere: over the ranks that share experts both directions are one sum.
 */
static status check_directions(const session *s, const received_work *w)
{
    const comm *c = mesh_comm(&s->mesh, MESH_EXPERT);
    int64_t mine[2] = {w->slots_come, w->slots_go}, sum = 0;
    int64_t *all = calloc((size_t)c->size, sizeof mine);
    if (!all)
        return FAIL(ST_NO_MEMORY, "no memory for %d ranks' slots", c->size);
    status st = comm_host_all_gather(c, (comm_at){"parity", -1}, mine, all, sizeof mine);
    for (int i = 0; i < c->size; i++)
        sum += all[2 * i] - all[2 * i + 1];
    free(all);
    if (st == ST_OK && sum != 0)
        st = FAIL(ST_BAD_INPUT, "%lld more slots came to experts than were sent", (long long)sum);
    return st;
}

status ledger_formula_check(const session *s, const step_report *last, const comm_ledger *l)
{
    received_line want[RECEIVED_LINES];
    const bool exact = s->accumulation == 1 && s->mesh.layout.expert_tensor == 1;
    received_work w = step_received_work(s, last);
    if (params_trained(s->params) < s->params->total)
        return ST_OK;
    if (exact)
        TRY(routed(s, &w));
    else
        guess_slots(s, l, &w);
    TRY(check_directions(s, &w));
    int n = received_lines(s->params, &s->dims, &s->mesh, &w, want);
    for (int i = 0; i < n; i++) {
        int64_t got = counted(l, want[i].what);
        if (got != want[i].bytes)
            return FAIL(ST_BAD_INPUT, "%s: %lld bytes a step, by the formula %lld", want[i].what,
                        (long long)got, (long long)want[i].bytes);
    }
    return ST_OK;
}
