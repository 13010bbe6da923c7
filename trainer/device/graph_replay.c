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
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, ", "), i = REPLAY_ATTENTION;
        while (i < REPLAY_PIECES && (strlen(word[i]) != n || strncmp(p, word[i], n) != 0))
            i++;
        if (n > 0 && i == REPLAY_PIECES)
            return FAIL(
                ST_CONFIG,
                "cuda_graph.scope \"%s\": \"%.*s\" is not known; give off, step, or a list of "
                "attn, router, experts, vision",
                text, (int)n, p);
        if (n > 0)
            scope |= 1u << i;
        p += n + (p[n] != 0);
    }
    *out = scope;
    return ST_OK;
}

status graph_replay_new(stream *s, const char *scope)
{
    unsigned pieces;
    TRY(read_scope(scope, &pieces));
    replay *r = calloc(1, sizeof *r);
    if (!r)
        return FAIL(ST_NO_MEMORY, "no memory for captured steps");
    r->scope = s->dev->backend->capture_begin ? pieces : 0;
    r->open = -1;
    s->replay = r;
    return ST_OK;
}

void graph_replay_watched(stream *s, const graph_replay_watch *w)
{
    s->replay->watch = *w;
}

void graph_replay_free(stream *s)
{
    replay *r = s->replay;
    if (!r)
        return;
    for (int64_t i = 0; i < r->count; i++)
        if (r->list[i].graph)
            s->dev->backend->graph_free(&r->list[i].graph);
    free(r->list);
    free(r);
    s->replay = NULL;
}

/* Finds the entry of a key. *out is -1 if the key is new; it is then added to the list. */
static status find_graph(replay *r, const graph_replay_key *key, int64_t *out)
{
    for (int64_t i = 0; i < r->count; i++) {
        if (memcmp(&r->list[i].key, key, sizeof *key) == 0) {
            *out = i;
            return ST_OK;
        }
    }
    if (r->count == r->capacity) {
        int64_t capacity = r->capacity ? 2 * r->capacity : 16;
        entry *list = realloc(r->list, (size_t)capacity * sizeof *list);
        if (!list)
            return FAIL(ST_NO_MEMORY, "no memory for captured steps");
        r->list = list;
        r->capacity = capacity;
    }
    r->list[r->count++] = (entry){.key = *key};
    *out = -1;
    return ST_OK;
}

status graph_replay_begin(stream *s, const graph_replay_key *key, bool *out_done)
{
    replay *r = s->replay;
    int64_t at;
    *out_done = false;
    if (r && r->open >= 0)
        r->inner++;
    if (!r || r->open >= 0 || !(r->scope >> key->piece & 1))
        return ST_OK;
    TRY(find_graph(r, key, &at));
    if (at < 0)
        return ST_OK;
    if (r->list[at].graph) {
        *out_done = true;
        if (r->watch.again)
            r->watch.again(r->watch.context, at);
        return s->dev->backend->graph_launch(s, r->list[at].graph);
    }
    if (r->watch.captured)
        TRY(r->watch.captured(r->watch.context, at, true));
    TRY(s->dev->backend->capture_begin(s));
    r->open = at;
    return ST_OK;
}

status graph_replay_end(stream *s, status st)
{
    replay *r = s->replay;
    if (!r || r->open < 0)
        return st;
    if (r->inner > 0) {
        r->inner--;
        return st;
    }
    entry *e = &r->list[r->open];
    graph *made = NULL;
    r->open = -1;
    if (st != ST_OK) { /* report the body's failure, not what becomes of its capture */
        status_note cause = *status_last();
        if (s->dev->backend->capture_end(s, &made) == ST_OK && made)
            s->dev->backend->graph_free(&made);
        status_set(&cause);
        return st;
    }
    TRY(s->dev->backend->capture_end(s, &made));
    e->graph = made;
    if (r->watch.captured)
        TRY(r->watch.captured(r->watch.context, e - r->list, false));
    return s->dev->backend->graph_launch(s, made);
}
