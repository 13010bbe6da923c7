/* SPDX-License-Identifier: Apache-2.0 */
/* slots_watch.c: the implementation of slots_watch.h. It replaces the engine's all-gather by one
 * that also reads the counts that ranks gather before they exchange slots. */
#include "tests/parallel/slots_watch.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/parallel/comm/comm_ledger.h"

enum { LAYERS = 64 };

static const comm_engine *engine;
static comm_engine watching;
static struct {
    int64_t calls, come, go;
} heard[LAYERS];

/* borders [size, count]: where each rank's slots for each expert begin. */
static void note_slots(const comm *group, int64_t layer, const int32_t *borders, int64_t count)
{
    const int64_t own = (count - 1) / group->size;
    heard[layer].calls++;
    for (int other = 0; other < group->size; other++) {
        if (other == group->rank)
            continue;
        const int32_t *theirs = borders + other * count + group->rank * own;
        const int32_t *mine = borders + group->rank * count + other * own;
        heard[layer].come += theirs[own] - theirs[0];
        heard[layer].go += mine[own] - mine[0];
    }
}

static status listen(const comm *group, stream *queue, const void *recv, int64_t count)
{
    const int64_t layer = comm_ledger_now(group->ledger).layer;
    const size_t bytes = (size_t)(count * group->size) * sizeof(int32_t);
    if (layer < 0 || layer >= LAYERS)
        return FAIL(ST_INTERNAL, "counts of experts of layer %lld", (long long)layer);
    int32_t *host = malloc(bytes);
    if (!host)
        return FAIL(ST_NO_MEMORY, "no memory for counts of experts");
    status st = queue->dev->backend->to_host(queue, host, recv, bytes);
    if (st == ST_OK)
        st = queue->dev->backend->wait(queue);
    if (st == ST_OK)
        note_slots(group, layer, host, count);
    free(host);
    return st;
}

static status all_gather(const comm *group, stream *queue, const void *send, void *recv,
                         int64_t count, st_dtype dtype)
{
    TRY(engine->all_gather(group, queue, send, recv, count, dtype));
    /* The counts are the only integers that ranks which share experts gather. */
    const bool counts = dtype == DT_I32 && strcmp(group->name, mesh_group_name(MESH_EXPERT)) == 0;
    return counts ? listen(group, queue, recv, count) : ST_OK;
}

void slots_watch(world *job)
{
    if (!job->engine)
        return;
    engine = job->engine;
    watching = *engine;
    watching.all_gather = all_gather;
    job->engine = &watching;
}

void slots_watch_clear(void)
{
    memset(heard, 0, sizeof heard);
}

status slots_watched(int64_t layers, int64_t micro_steps, received_slots *out, bool *out_heard)
{
    *out_heard = false;
    for (int64_t layer = 0; layer < layers && layer < LAYERS; layer++) {
        out[layer] = (received_slots){0};
        if (heard[layer].calls == 0)
            continue;
        const int64_t passes = heard[layer].calls / micro_steps;
        *out_heard = true;
        if (heard[layer].calls % micro_steps || heard[layer].come % passes ||
            heard[layer].go % passes)
            return FAIL(
                ST_BAD_INPUT,
                "layer %lld: slots were counted %lld times in %lld micro-steps: %lld came, %lld "
                "went",
                (long long)layer, (long long)heard[layer].calls, (long long)micro_steps,
                (long long)heard[layer].come, (long long)heard[layer].go);
        out[layer] = (received_slots){heard[layer].come / passes, heard[layer].go / passes};
    }
    return ST_OK;
}
