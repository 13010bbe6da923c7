/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_stages.c: implements pipeline_stages.h. Balancing is a binary search for the least time
 * in which every stage can do its layers; for a given time, layers are handed out greedily from the
 * last stage to the first. */
#include "trainer/parallel/pipeline_stages.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/compare.h"
#include "common/base/words.h"

enum { HALVINGS = 64 };

static int64_t at_least_one(int64_t first_layers)
{
    return first_layers > 1 ? first_layers : 1;
}

/* Hands out layers to the stages from `from` on, so that none takes longer than `time`. Each stage,
 * from the last one back, takes as many layers as it has time for, so that the first stages, which
 * hold the activations of the most micro-batches, get no more than they must. Returns false if the
 * time is not enough. */
static bool fill_stages(const stage_costs *costs, int from, double time, layout *degrees)
{
    const int64_t begin = layout_first_layer(degrees, from);
    const int64_t least = begin + (from == 0 ? at_least_one(costs->first_layers) : 1);
    int64_t end = costs->layers;
    for (int64_t stage = degrees->pipeline - 1; stage > from; stage--) {
        double used = stage == degrees->pipeline - 1 ? costs->after : 0;
        int64_t first = end - 1; /* at least one layer */
        used += costs->layer[first];
        if (used > time)
            return false;
        while (first - 1 >= least + stage - 1 - from && used + costs->layer[first - 1] <= time)
            used += costs->layer[--first];
        degrees->stage_end[stage - 1] = (int32_t)first;
        end = first;
    }
    double used =
        (from == 0 ? costs->before : 0) + (from + 1 == degrees->pipeline ? costs->after : 0);
    for (int64_t i = begin; i < end; i++)
        used += costs->layer[i];
    return used <= time;
}

/* Finds the least time for the stages from `from` on. */
static void balance_from(const stage_costs *costs, int from, layout *degrees)
{
    double low = 0, high = costs->before + costs->after;
    for (int64_t i = 0; i < costs->layers; i++)
        high += costs->layer[i];
    high *= 2; /* enough, in whatever order the sums are rounded */
    for (int i = 0; i < HALVINGS; i++) {
        double middle = (low + high) / 2;
        if (fill_stages(costs, from, middle, degrees))
            high = middle;
        else
            low = middle;
    }
    fill_stages(costs, from, high, degrees);
}

/* If one stage is the slowest whatever the others do, the stages after it are balanced among
 * themselves. Otherwise the last one would take all layers that the time allows, and their
 * memory. */
void stages_balance(const stage_costs *costs, layout *inout)
{
    for (int from = 0; from + 1 < inout->pipeline; from++)
        balance_from(costs, from, inout);
}

static const char *next_word(const char *at)
{
    return at + strspn(at, ", ");
}

int64_t stages_listed(const char *text)
{
    int64_t count = 0;
    for (const char *at = next_word(text); *at; at = next_word(at + strcspn(at, ", ")))
        count++;
    return count;
}

static const char POINTS[] = "parallelism.pipeline_parallel_split_points";

/* Reads the layers as they are written, in any order. */
static status read_points(const char *text, int64_t layer[LAYOUT_STAGES])
{
    int64_t count = 0;
    for (const char *at = next_word(text); *at; at = next_word(at + strcspn(at, ", "))) {
        int used = 0;
        if (sscanf(at, "layers.%" SCNd64 "%n", &layer[count++], &used) != 1 ||
            (at[used] && !strchr(", ", at[used])))
            return FAIL(ST_CONFIG, "%s: \"%s\" does not have the form layers.N", POINTS, at);
    }
    return ST_OK;
}

/* The first of `count` points that does not fit, or `count` if all do. Points must rise, since each
 * begins a stage. */
static int64_t first_unfit(const int64_t *layer, int64_t count, int64_t layers, int64_t least)
{
    for (int64_t i = 0; i < count; i++)
        if (layer[i] < (i ? layer[i - 1] + 1 : least) || layer[i] >= layers)
            return i;
    return count;
}

/* Moves the points as little as is needed to make them fit. */
static void move_points(int64_t *layer, int64_t count, int64_t layers, int64_t least)
{
    for (int64_t i = 0; i < count; i++) {
        const int64_t low = i ? layer[i - 1] + 1 : least;
        layer[i] = layer[i] < low ? low : layer[i];
    }
    for (int64_t i = count - 1; i >= 0; i--) {
        const int64_t high = i + 1 < count ? layer[i + 1] - 1 : layers - 1;
        layer[i] = layer[i] > high ? high : layer[i];
    }
}

static status refuse_points(const int64_t *given, int64_t count, int64_t at, int64_t layers,
                            int64_t least)
{
    int64_t layer[LAYOUT_STAGES];
    char fits[LAYOUT_STAGES * 32] = "";
    size_t used = 0;
    memcpy(layer, given, (size_t)count * sizeof *layer);
    move_points(layer, count, layers, least);
    for (int64_t i = 0; i < count; i++)
        used = words_add(fits, sizeof fits, used, "%slayers.%" PRId64, i ? ", " : "", layer[i]);
    return FAIL(ST_CONFIG,
                "%s: stage %" PRId64 " cannot begin with layers.%" PRId64 " (of the %" PRId64
                " layers the first stage must have at least %" PRId64
                ", and every stage must have one); these fit: %s",
                POINTS, at + 1, given[at], layers, least, fits);
}

status stages_read(const char *text, int64_t layers, int64_t first_layers, layout *inout)
{
    const int64_t count = stages_listed(text), least = at_least_one(first_layers);
    int64_t layer[LAYOUT_STAGES];
    if (count + 1 != inout->pipeline)
        return FAIL(ST_CONFIG, "%s: \"%s\" makes %" PRId64 " stages, but there are %" PRId64,
                    POINTS, text, count + 1, inout->pipeline);
    TRY(read_points(text, layer));
    const int64_t unfit = first_unfit(layer, count, layers, least);
    if (unfit < count)
        return refuse_points(layer, count, unfit, layers, least);
    for (int64_t i = 0; i < count; i++)
        inout->stage_end[i] = (int32_t)layer[i];
    return ST_OK;
}

int64_t stage_flights(int stage, int stages, int64_t batches)
{
    return min_i64(stages - stage, batches);
}

int64_t stage_passes(int stage, int stages, int64_t batches)
{
    return stage == stages - 1 ? batches : 2 * batches;
}

stage_pass stage_pass_at(int stage, int stages, int64_t batches, int64_t index)
{
    if (stage == stages - 1)
        return (stage_pass){PASS_BOTH, index};
    const int64_t ahead =
        min_i64(stages - 1 - stage, batches); /* forwards before the first backward */
    if (index < ahead)
        return (stage_pass){PASS_FORWARD, index};
    if (index >= 2 * batches - ahead)
        return (stage_pass){PASS_BACKWARD, index - batches};
    const int64_t turn = (index - ahead) / 2;
    return (index - ahead) % 2 == 0 ? (stage_pass){PASS_FORWARD, ahead + turn}
                                    : (stage_pass){PASS_BACKWARD, turn};
}
