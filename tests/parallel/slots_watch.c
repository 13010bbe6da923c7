/* slots_watch.c: the implementation of slots_watch.h. It replaces the engine's all-gather by one
 * that also reads the counts that ranks gather before they exchange slots. */
#include "tests/parallel/slots_watch.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/parallel/comm_ledger.h"

enum { LAYERS = 64 };

static const comm_engine *engine;
static comm_engine watching;
static struct {
    int64_t calls, come, go;
} heard[LAYERS];

/* borders [size, n]: where each rank's slots for each expert begin. */
static void note_slots(const comm *c, int64_t layer, const int32_t *borders, int64_t n)
{
    const int64_t own = (n - 1) / c->size;
    heard[layer].calls++;
    for (int other = 0; other < c->size; other++) {
        if (other == c->rank)
            continue;
        const int32_t *theirs = borders + other * n + c->rank * own;
        const int32_t *mine = borders + c->rank * n + other * own;
        heard[layer].come += theirs[own] - theirs[0];
        heard[layer].go += mine[own] - mine[0];
    }
}

static status listen(const comm *c, stream *s, const void *recv, int64_t count)
{
    const int64_t layer = comm_ledger_now(c->ledger).layer;
    const size_t bytes = (size_t)(count * c->size) * sizeof(int32_t);
    if (layer < 0 || layer >= LAYERS)
        return FAIL(ST_INTERNAL, "counts of experts of layer %lld", (long long)layer);
    int32_t *host = malloc(bytes);
    if (!host)
        return FAIL(ST_NO_MEMORY, "no memory for counts of experts");
    status st = s->dev->backend->to_host(s, host, recv, bytes);
    if (st == ST_OK)
        st = s->dev->backend->wait(s);
    if (st == ST_OK)
        note_slots(c, layer, host, count);
    free(host);
    return st;
}

static status all_gather(const comm *c, stream *s, const void *send, void *recv, int64_t count,
                         st_dtype dtype)
{
    TRY(engine->all_gather(c, s, send, recv, count, dtype));
    /* The counts are the only integers that ranks which share experts gather. */
    const bool counts = dtype == DT_I32 && strcmp(c->name, mesh_group_name(MESH_EXPERT)) == 0;
    return counts ? listen(c, s, recv, count) : ST_OK;
}

void slots_watch(world *w)
{
    if (!w->engine)
        return;
    engine = w->engine;
    watching = *engine;
    watching.all_gather = all_gather;
    w->engine = &watching;
}

void slots_watch_clear(void)
{
    memset(heard, 0, sizeof heard);
}

status slots_watched(int64_t layers, int64_t micro_steps, received_slots *out, bool *out_heard)
{
    *out_heard = false;
    for (int64_t l = 0; l < layers && l < LAYERS; l++) {
        out[l] = (received_slots){0};
        if (heard[l].calls == 0)
            continue;
        const int64_t passes = heard[l].calls / micro_steps;
        *out_heard = true;
        if (heard[l].calls % micro_steps || heard[l].come % passes || heard[l].go % passes)
            return FAIL(
                ST_BAD_INPUT,
                "layer %lld: slots were counted %lld times in %lld micro-steps: %lld came, %lld "
                "went",
                (long long)l, (long long)heard[l].calls, (long long)micro_steps,
                (long long)heard[l].come, (long long)heard[l].go);
        out[l] = (received_slots){heard[l].come / passes, heard[l].go / passes};
    }
    return ST_OK;
}
