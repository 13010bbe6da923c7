/* ledger_formula.c: the implementation of ledger_formula.h. Each line of the formula is compared
 * with all calls in the ledger that have its name. */
#include "tests/parallel/ledger_formula.h"

#include <stdlib.h>
#include <string.h>

#include "tests/parallel/slots_watch.h"
#include "trainer/model/unit_order.h"

static int64_t count_received(const comm_ledger *l, const char *what)
{
    const comm_tally *list;
    int64_t bytes = 0;
    int n = comm_ledger_list(l, &list);
    for (int i = 0; i < n; i++)
        if (strcmp(list[i].what, what) == 0)
            bytes += list[i].step_bytes;
    return bytes;
}

/* Fills in the slots where no counts were seen, because the device itself moved the slots to their
 * experts: it takes them from two of the five lines, so that only the other three are checked. It
 * assumes that all layers are alike. */
static void guess_slots(const session *s, const comm_ledger *l, const received_work *w,
                        received_slots *slots)
{
    const stage_part part = stage_part_of(&s->dims, &s->mesh.layout, s->mesh.place.pipeline);
    const int64_t slot = s->dims.text.hidden * (int64_t)w->act;
    slots[part.end - 1] =
        (received_slots){.come = count_received(l, "send to experts again") / slot,
                         .go = count_received(l, "return gradients from experts") / slot};
}

/* Checks that everything sent has arrived: summed over the ranks that share experts, as many slots
 * came as went. */
static status check_directions(const session *s, const received_slots *slots)
{
    const comm *c = mesh_comm(&s->mesh, MESH_EXPERT);
    int64_t mine[2] = {0}, sum = 0;
    for (int64_t l = 0; l < s->dims.text.layers; l++) {
        mine[0] += slots[l].come;
        mine[1] += slots[l].go;
    }
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

static status compare_ledger(const session *s, const step_report *last, const comm_ledger *l,
                             received_slots *slots)
{
    received_line want[RECEIVED_LINES];
    bool heard;
    received_work w = step_received_work(s, last);
    w.slots = slots;
    TRY(slots_watched(s->dims.text.layers, s->accumulation, slots, &heard));
    if (!heard)
        guess_slots(s, l, &w, slots);
    TRY(check_directions(s, slots));
    int n = received_lines(s->params, &s->dims, &s->mesh, &w, want);
    for (int i = 0; i < n; i++) {
        int64_t got = count_received(l, want[i].what);
        if (got != want[i].bytes)
            return FAIL(ST_BAD_INPUT, "%s: the step received %lld bytes, but the formula says %lld",
                        want[i].what, (long long)got, (long long)want[i].bytes);
    }
    return ST_OK;
}

status ledger_formula_check(const session *s, const step_report *last, const comm_ledger *l)
{
    received_slots *slots = calloc((size_t)s->dims.text.layers, sizeof *slots);
    if (!slots)
        return FAIL(ST_NO_MEMORY, "no memory for slots of %lld layers",
                    (long long)s->dims.text.layers);
    status st = compare_ledger(s, last, l, slots);
    free(slots);
    return st;
}
