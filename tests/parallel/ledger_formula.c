/* SPDX-License-Identifier: Apache-2.0 */
/* ledger_formula.c: the implementation of ledger_formula.h. Each line of the formula is compared
 * with all calls in the ledger that have its name. */
#include "tests/parallel/ledger_formula.h"

#include <stdlib.h>
#include <string.h>

#include "tests/parallel/slots_watch.h"
#include "trainer/model/params/unit_order.h"

static int64_t count_received(const comm_ledger *ledger, const char *what)
{
    const comm_tally *list;
    int64_t bytes = 0;
    int count = comm_ledger_list(ledger, &list);
    for (int i = 0; i < count; i++)
        if (strcmp(list[i].what, what) == 0)
            bytes += list[i].step_bytes;
    return bytes;
}

/* Fills in the slots where no counts were seen, because the device itself moved the slots to their
 * experts: it takes them from two of the five lines, so that only the other three are checked. It
 * assumes that all layers are alike. */
static void guess_slots(const session *run, const comm_ledger *ledger, const received_work *work,
                        received_slots *slots)
{
    const stage_part part = stage_part_of(&run->dims, &run->mesh.layout, run->mesh.place.pipeline);
    const int64_t slot = run->dims.text.hidden * (int64_t)work->act;
    slots[part.end - 1] =
        (received_slots){.come = count_received(ledger, "send to experts again") / slot,
                         .go = count_received(ledger, "return gradients from experts") / slot};
}

/* Checks that everything sent has arrived: summed over the ranks that share experts, as many slots
 * came as went. */
static status check_directions(const session *run, const received_slots *slots)
{
    const comm *group = mesh_comm(&run->mesh, MESH_EXPERT);
    int64_t mine[2] = {0}, sum = 0;
    for (int64_t layer = 0; layer < run->dims.text.layers; layer++) {
        mine[0] += slots[layer].come;
        mine[1] += slots[layer].go;
    }
    int64_t *all = calloc((size_t)group->size, sizeof mine);
    if (!all)
        return FAIL(ST_NO_MEMORY, "no memory for %d ranks' slots", group->size);
    status st = comm_host_all_gather(group, (comm_at){"parity", -1}, mine, all, sizeof mine);
    for (int i = 0; i < group->size; i++)
        sum += all[2 * i] - all[2 * i + 1];
    free(all);
    if (st == ST_OK && sum != 0)
        st = FAIL(ST_BAD_INPUT, "%lld more slots came to experts than were sent", (long long)sum);
    return st;
}

static status compare_ledger(const session *run, const step_report *last, const comm_ledger *ledger,
                             received_slots *slots)
{
    received_line want[RECEIVED_LINES];
    bool heard;
    received_work work = step_received_work(run, last);
    work.slots = slots;
    TRY(slots_watched(run->dims.text.layers, run->accumulation, slots, &heard));
    if (!heard)
        guess_slots(run, ledger, &work, slots);
    TRY(check_directions(run, slots));
    int count = received_lines(run->params, &run->dims, &run->mesh, &work, want);
    for (int i = 0; i < count; i++) {
        int64_t got = count_received(ledger, want[i].what);
        if (got != want[i].bytes)
            return FAIL(ST_BAD_INPUT, "%s: the step received %lld bytes, but the formula says %lld",
                        want[i].what, (long long)got, (long long)want[i].bytes);
    }
    return ST_OK;
}

status ledger_formula_check(const session *run, const step_report *last, const comm_ledger *ledger)
{
    received_slots *slots = calloc((size_t)run->dims.text.layers, sizeof *slots);
    if (!slots)
        return FAIL(ST_NO_MEMORY, "no memory for slots of %lld layers",
                    (long long)run->dims.text.layers);
    status st = compare_ledger(run, last, ledger, slots);
    free(slots);
    return st;
}
