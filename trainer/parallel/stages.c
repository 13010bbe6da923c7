/* stages.c: see stages.h. */
#include "trainer/parallel/stages.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { HALVINGS = 64 };

static int64_t at_least_one(int64_t n)
{
    return n > 1 ? n : 1;
}

/* Stages from `from` on. From the last one on, each takes the layers that it has time for: so the
 * first of them, which hold the most micro-batches, get no more than they must. False where the
 * first can not. */
static bool fill(const stage_costs *c, int from, double time, layout *l)
{
    const int64_t begin = layout_first_layer(l, from);
    const int64_t least = begin + (from == 0 ? at_least_one(c->first_layers) : 1);
    int64_t end = c->layers;
    for (int64_t stage = l->pipeline - 1; stage > from; stage--) {
        double used = stage == l->pipeline - 1 ? c->behind : 0;
        int64_t first = end - 1; /* one at least */
        used += c->layer[first];
        if (used > time)
            return false;
        while (first - 1 >= least + stage - 1 - from && used + c->layer[first - 1] <= time)
            used += c->layer[--first];
        l->stage_end[stage - 1] = (int32_t)first;
        end = first;
    }
    double used = (from == 0 ? c->before : 0) + (from + 1 == l->pipeline ? c->behind : 0);
    for (int64_t i = begin; i < end; i++)
        used += c->layer[i];
    return used <= time;
}

static void balance_from(const stage_costs *c, int from, layout *l)
{
    double low = 0, high = c->before + c->behind;
    for (int64_t i = 0; i < c->layers; i++)
        high += c->layer[i];
    high *= 2; /* whatever the order of sums */
    for (int i = 0; i < HALVINGS; i++) {
        double middle = (low + high) / 2;
        if (fill(c, from, middle, l))
            high = middle;
        else
            low = middle;
    }
    fill(c, from, high, l);
}

/* Behind a stage that is the slowest whatever the others do, those are balanced among themselves:
 * else the last would take all that there is time for, and its memory. */
void stages_balance(const stage_costs *c, layout *l)
{
    for (int from = 0; from + 1 < l->pipeline; from++)
        balance_from(c, from, l);
}

status stages_read(const char *text, int64_t layers, int64_t first_layers, layout *l)
{
    static const char key[] = "parallelism.pipeline_parallel_split_points";
    int64_t n = 0, before = at_least_one(first_layers) - 1;
    for (const char *at = text; *at;) {
        int64_t layer;
        int used = 0;
        at += strspn(at, ", ");
        if (!*at)
            break;
        if (sscanf(at, "layers.%" SCNd64 "%n", &layer, &used) != 1 ||
            (at[used] && !strchr(", ", at[used])))
            return FAIL(ST_CONFIG, "%s: \"%s\" is no layers.N", key, at);
        if (n + 1 >= l->pipeline)
            return FAIL(ST_CONFIG, "%s: \"%s\" begins more than %" PRId64 " stages", key, text,
                        l->pipeline);
        if (layer <= before || layer >= layers)
            return FAIL(ST_CONFIG,
                        "%s: stage %" PRId64 " can begin with layers.%" PRId64 " to layers.%" PRId64
                        ", not layers.%" PRId64 " (of %" PRId64
                        " layers the first stage takes at least %" PRId64
                        "; each other begins behind the one before)",
                        key, n + 1, before + 1, layers - 1, layer, layers,
                        at_least_one(first_layers));
        l->stage_end[n++] = (int32_t)layer;
        before = layer;
        at += used;
    }
    if (n + 1 != l->pipeline)
        return FAIL(ST_CONFIG, "%s: \"%s\" begins %" PRId64 " stages, and there are %" PRId64, key,
                    text, n + 1, l->pipeline);
    return ST_OK;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t stage_flights(int stage, int stages, int64_t n)
{
    return smaller(stages - stage, n);
}

int64_t stage_passes(int stage, int stages, int64_t n)
{
    return stage == stages - 1 ? n : 2 * n;
}

stage_pass stage_pass_at(int stage, int stages, int64_t n, int64_t i)
{
    if (stage == stages - 1)
        return (stage_pass){PASS_BOTH, i};
    const int64_t ahead = smaller(stages - 1 - stage, n); /* forwards before the first backward */
    if (i < ahead)
        return (stage_pass){PASS_FORWARD, i};
    if (i >= 2 * n - ahead)
        return (stage_pass){PASS_BACKWARD, i - n};
    const int64_t turn = (i - ahead) / 2;
    return (i - ahead) % 2 == 0 ? (stage_pass){PASS_FORWARD, ahead + turn}
                                : (stage_pass){PASS_BACKWARD, turn};
}
