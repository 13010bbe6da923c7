/* SPDX-License-Identifier: Apache-2.0 */
/* graph_replay.c: the list of pieces that were captured, and what becomes of a piece on its first,
 * second and later runs (graph_replay.h). */
#include "trainer/device/graph_replay.h"

#include <stdlib.h>
#include <string.h>

typedef struct entry {
    graph_replay_key key;
    graph *graph; /* NULL: it has run once and is not captured yet */
} entry;

struct replay {
    unsigned scope; /* a bit for each piece that is captured */
    entry *list;
    int64_t count, capacity;
    int64_t open;  /* the entry that is being captured; -1: none */
    int64_t inner; /* how many pieces have begun inside it and not ended */
    bool paused;
    graph_replay_watch watch;
};

static status read_scope(const char *text, unsigned *out)
{
    static const char *const word[] = {"step", "attn", "router", "experts", "vision"};
    unsigned scope = 0;
    if (strcmp(text, "off") == 0 || strcmp(text, "step") == 0) {
        *out = text[0] == 's' ? 1u << REPLAY_STEP : 0;
        return ST_OK;
    }
    for (const char *at = text; *at;) {
        size_t count = strcspn(at, ", "), i = REPLAY_ATTENTION;
        while (i < REPLAY_PIECES && (strlen(word[i]) != count || strncmp(at, word[i], count) != 0))
            i++;
        if (count > 0 && i == REPLAY_PIECES)
            return FAIL(
                ST_CONFIG,
                "cuda_graph.scope \"%s\": \"%.*s\" is not known; give off, step, or a list of "
                "attn, router, experts, vision",
                text, (int)count, at);
        if (count > 0)
            scope |= 1u << i;
        at += count + (at[count] != 0);
    }
    *out = scope;
    return ST_OK;
}

status graph_replay_new(stream *queue, const char *scope)
{
    unsigned pieces;
    TRY(read_scope(scope, &pieces));
    replay *watch = calloc(1, sizeof *watch);
    if (!watch)
        return FAIL(ST_NO_MEMORY, "no memory for captured steps");
    watch->scope = queue->dev->backend->capture_begin ? pieces : 0;
    watch->open = -1;
    queue->replay = watch;
    return ST_OK;
}

bool graph_replay_any(const stream *queue)
{
    return queue->replay && queue->replay->scope != 0;
}

void graph_replay_pause(stream *queue, bool paused)
{
    if (queue->replay)
        queue->replay->paused = paused;
}

void graph_replay_watched(stream *queue, const graph_replay_watch *watch)
{
    queue->replay->watch = *watch;
}

void graph_replay_free(stream *queue)
{
    replay *watch = queue->replay;
    if (!watch)
        return;
    for (int64_t i = 0; i < watch->count; i++)
        if (watch->list[i].graph)
            queue->dev->backend->graph_free(&watch->list[i].graph);
    free(watch->list);
    free(watch);
    queue->replay = NULL;
}

/* Finds the entry of a key. *out is -1 if the key is new; it is then added to the list. */
static status find_graph(replay *watch, const graph_replay_key *key, int64_t *out)
{
    for (int64_t i = 0; i < watch->count; i++) {
        if (memcmp(&watch->list[i].key, key, sizeof *key) == 0) {
            *out = i;
            return ST_OK;
        }
    }
    if (watch->count == watch->capacity) {
        int64_t capacity = watch->capacity ? 2 * watch->capacity : 16;
        entry *list = realloc(watch->list, (size_t)capacity * sizeof *list);
        if (!list)
            return FAIL(ST_NO_MEMORY, "no memory for captured steps");
        watch->list = list;
        watch->capacity = capacity;
    }
    watch->list[watch->count++] = (entry){.key = *key};
    *out = -1;
    return ST_OK;
}

status graph_replay_begin(stream *queue, const graph_replay_key *key, bool *out_done)
{
    replay *watch = queue->replay;
    int64_t at;
    *out_done = false;
    if (watch && watch->open >= 0)
        watch->inner++;
    if (!watch || watch->open >= 0 || watch->paused || !(watch->scope >> key->piece & 1))
        return ST_OK;
    TRY(find_graph(watch, key, &at));
    if (at < 0)
        return ST_OK;
    if (watch->list[at].graph) {
        *out_done = true;
        if (watch->watch.again)
            watch->watch.again(watch->watch.context, at);
        return queue->dev->backend->graph_launch(queue, watch->list[at].graph);
    }
    if (watch->watch.captured)
        TRY(watch->watch.captured(watch->watch.context, at, true));
    TRY(queue->dev->backend->capture_begin(queue));
    watch->open = at;
    return ST_OK;
}

status graph_replay_end(stream *queue, status st)
{
    replay *watch = queue->replay;
    if (!watch || watch->open < 0)
        return st;
    if (watch->inner > 0) {
        watch->inner--;
        return st;
    }
    entry *tensor = &watch->list[watch->open];
    graph *made = NULL;
    watch->open = -1;
    if (st != ST_OK) { /* report the body's failure, not what becomes of its capture */
        status_note cause = *status_last();
        if (queue->dev->backend->capture_end(queue, &made) == ST_OK && made)
            queue->dev->backend->graph_free(&made);
        status_set(&cause);
        return st;
    }
    st = queue->dev->backend->capture_end(queue, &made);
    if (st != ST_OK)
        return status_context(st, "capturing a piece of a step, which cuda_graph.scope off avoids");
    tensor->graph = made;
    if (watch->watch.captured)
        TRY(watch->watch.captured(watch->watch.context, tensor - watch->list, false));
    return queue->dev->backend->graph_launch(queue, made);
}
