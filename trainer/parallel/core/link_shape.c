/* SPDX-License-Identifier: Apache-2.0 */
/* link_shape.c: the ranks agree on the shape of a micro-batch. Each says what its own rows need, as
 * a few numbers; rank 0 answers with the largest of each. A rank says nothing of the next
 * micro-batch before it has heard the answer for this one, so there is one question at a time.
 * Rank 0 sees who does not come, and ends the job by name. */
#include <string.h>

#include "trainer/parallel/core/link_state.h"

enum { SHAPE_BYTES = 8 + LINK_NEEDS };

static void put_shape(link_core *core, uint8_t out[SHAPE_BYTES])
{
    store_u64(out, (uint64_t)core->shapes);
    memcpy(out + 8, core->need, LINK_NEEDS);
}

static void add_need(link_core *core, const uint8_t need[LINK_NEEDS])
{
    for (int i = 0; i < LINK_NEEDS; i++)
        if (need[i] > core->need[i])
            core->need[i] = need[i];
}

/* Ends the question. The answer stays in core->agreed, since it is taken after this event. */
static void agree(link_core *core)
{
    memcpy(core->agreed, core->need, LINK_NEEDS);
    memset(core->need, 0, LINK_NEEDS);
    core->shapes++;
    core->needs = 0;
    core->asks = false;
    link_answer(core,
                (link_action){.kind = LINK_AGREED, .bytes = core->agreed, .size = LINK_NEEDS});
}

/* Rank 0: whether the others wait for some ranks to say theirs. */
static bool is_open(const link_core *core)
{
    return core->rank == 0 && core->phase == LINK_RUNNING && !core->over && core->needs > 0;
}

/* Whether all that have not said theirs can be heard. Of one that cannot, nothing is known of its
 * work: it comes back, or its silence ends the job. */
static bool are_heard(const link_core *core)
{
    bool heard = true;
    for (int i = 0; i < core->n_peers; i++)
        heard &= core->peer[i].said || link_is_heard(core, &core->peer[i]);
    return heard;
}

/* While a rank waits for rows, the time does not run. */
void shape_time(link_core *core)
{
    if (!is_open(core))
        return;
    if (core->now.waits || link_peers_wait(core, NULL))
        core->need_until_ns = core->now.ns + core->now.call_ns;
    else if (core->now.ns > core->need_until_ns && are_heard(core))
        loss_by_absence(core);
}

/* Afterwards it is looked at with every beat. */
int64_t shape_due(const link_core *core)
{
    const bool waits = is_open(core) && core->need_until_ns >= core->now.ns;
    return waits ? core->need_until_ns + 1 : INT64_MAX;
}

/* Rank 0 has heard one rank more. A rank that has asked may have hung up since: after rank 0 has
 * given up, or because it has left. */
static void count_need(link_core *core)
{
    if (core->needs == 0)
        core->need_until_ns = core->now.ns + core->now.call_ns;
    if (++core->needs < core->size)
        return;
    put_shape(core, core->shape);
    for (int i = 0; i < core->n_peers; i++) {
        core->peer[i].said = false;
        if (core->peer[i].conn >= 0)
            link_send(core, core->peer[i].conn, CONTROL_SHAPE, core->shape, sizeof core->shape);
    }
    agree(core);
}

void shape_ask(link_core *core, const uint8_t need[LINK_NEEDS])
{
    if (core->over || core->phase != LINK_RUNNING)
        return;
    core->asks = true;
    add_need(core, need);
    if (core->rank == 0) {
        count_need(core);
        return;
    }
    put_shape(core, core->shape);
    link_send(core, core->peer[0].conn, CONTROL_SHAPE, core->shape, sizeof core->shape);
}

bool shape_message(link_core *core, link_peer *peer, const uint8_t *bytes, size_t size)
{
    if (core->over) /* the job has ended, so there is no answer for all */
        return true;
    if (size != SHAPE_BYTES || load_u64(bytes) != (uint64_t)core->shapes || peer->said ||
        (core->rank != 0 && !core->asks))
        return false;
    add_need(core, bytes + 8);
    if (core->rank != 0) {
        agree(core);
        return true;
    }
    peer->said = true;
    count_need(core);
    return true;
}
