/* generate.c: see generate.h.
 *
 *   prompts of some documents --prefill--> logits of their last tokens; keys and values are kept
 *   the word chosen for each  ----step----> logits of these words; their keys and values are kept
 * too (repeated until every document has ended) */
#include "trainer/generate/generate.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/generate/prompt.h"
#include "trainer/model/kv_cache.h"
#include "trainer/model/pass_context.h"

enum {
    DOCS =
        32 /* the most documents answered at once; together they cost a step about as much as one */
};

struct generator {
    generator_options options;
    /* Documents answered at once: DOCS, or as many as the model has room for. */
    int64_t docs;
    stager *step;              /* stages the steps: one token of each document */
    const device_batch *batch; /* the last batch */
    kv_cache cache;
    void *logits, *host_logits; /* [DOCS, V] act */
    int32_t *last;              /* [DOCS] on the device: the tokens whose logits are wanted */
    int32_t *index;             /* on the host: what is sent next */
    int32_t *said;              /* [ranks of the row, DOCS] the words that each rank has chosen */
};

/* A document that is being continued. */
typedef struct growing {
    int64_t answer;        /* its number among the caller's documents */
    int64_t first, length; /* its rows of the cache: the first, and how many */
    int32_t position;      /* the position of its next token */
    int32_t id;            /* the word chosen last */
    int32_t at;            /* where its last token is in the batch, in packed order */
} growing;

int64_t generate_bytes(const model_dims *d, const mesh *m, int64_t longest, const backend_vtable *v)
{
    mesh alone;
    mesh_alone(&alone);
    return kv_cache_bytes(d, m ? m : &alone, longest + DOCS * GENERATE_MAX, v) +
           DOCS * d->text.vocab * (int64_t)st_dtype_size(v->act);
}

/* A step holds one token of each document, so there are no more documents than the model has room
 * for; its rows may be as short as one token. */
static int64_t docs_at_once(const batch_caps *cap)
{
    const int64_t room = cap->tokens < cap->docs ? cap->tokens : cap->docs;
    return room < DOCS ? room : DOCS;
}

status generate_new(const generator_options *o, generator **out)
{
    device *dev = o->stream->dev;
    const int64_t docs = docs_at_once(&o->cap);
    const batch_caps one = {.tokens = docs, .docs = docs};
    const row_share share = row_share_of(o->mesh);
    const int64_t ranks = row_share_ranks(&share);
    const int64_t queries = row_share_tokens(&share, docs) * share.tensor;
    const int64_t tokens = row_share_tokens(&share, o->cap.tokens) * ranks;
    size_t logits = (size_t)(DOCS * o->dims->text.vocab) * st_dtype_size(dev->backend->act);
    status st;
    generator *g = calloc(1, sizeof *g);
    if (!g)
        return FAIL(ST_NO_MEMORY, "generate: out of memory");
    g->options = *o;
    g->docs = docs;
    TRY_OR(undo, stager_new_shared(o->stream, o->dims, &one, &share, &g->step));
    TRY_OR(undo, kv_cache_new(dev, o->dims, o->mesh, o->longest + DOCS * GENERATE_MAX, tokens,
                              queries, &g->cache));
    TRY_OR(undo, dev->backend->alloc(dev, logits, &g->logits));
    TRY_OR(undo, dev->backend->alloc(dev, DOCS * sizeof *g->last, (void **)&g->last));
    TRY_OR(undo, dev->backend->alloc_host(dev, logits, &g->host_logits));
    TRY_OR(undo,
           dev->backend->alloc_host(dev, (size_t)tokens * sizeof *g->index, (void **)&g->index));
    g->said = calloc((size_t)(ranks * DOCS), sizeof *g->said);
    if (!g->said) {
        st = FAIL(ST_NO_MEMORY, "generate: out of memory");
        goto undo;
    }
    *out = g;
    return ST_OK;
undo:
    generate_free(&g);
    return st;
}

void generate_free(generator **gp)
{
    generator *g = *gp;
    if (!g)
        return;
    device *dev = g->options.stream->dev;
    stager_free(&g->step, g->options.stream);
    kv_cache_free(&g->cache, dev);
    dev->backend->release(dev, g->logits);
    dev->backend->release(dev, g->last);
    dev->backend->release_host(dev, g->host_logits);
    dev->backend->release_host(dev, g->index);
    free(g->said);
    free(g);
    *gp = NULL;
}

static status push(token_list *l, int32_t id)
{
    if (l->count == l->capacity) {
        size_t capacity = l->capacity ? 2 * l->capacity : 32;
        int32_t *ids = realloc(l->id, capacity * sizeof *ids);
        if (!ids)
            return FAIL(ST_NO_MEMORY, "generate: out of memory");
        l->id = ids;
        l->capacity = capacity;
    }
    l->id[l->count++] = id;
    return ST_OK;
}

/* Reads a logit in the device's activation type. A bf16 is the upper half of a float. */
static double logit_at(const void *logits, st_dtype dtype, int64_t i)
{
    if (dtype == DT_F64)
        return ((const double *)logits)[i];
    if (dtype == DT_F32)
        return (double)((const float *)logits)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)logits)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* Finds the likeliest word. Placeholder tokens of pictures do not count as words: an untrained
 * model may like them best, and there would be no picture for them. */
static int32_t best_word(const void *logits, st_dtype dtype, int64_t n, const model_dims *d)
{
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++) {
        if (i == d->image_token || i == d->video_token)
            continue;
        if (best < 0 || logit_at(logits, dtype, i) > logit_at(logits, dtype, best))
            best = i;
    }
    return (int32_t)best;
}

bool generate_can(const generator *g, const row *r)
{
    const st_dtype act = g->options.stream->dev->backend->act;
    return (act == DT_F32 || act == DT_F64 || act == DT_BF16) && !r->n_video_patches;
}

/* Where a token of the last batch stands among those of this rank or, with `query`, among the
 * queries of this rank's place in the sequence (those of all its tensor ranks). A result outside
 * [0, their number) means that it is another rank's. */
static int64_t place_of(const generator *g, int64_t token, bool query)
{
    const row_share share = row_share_of(g->options.mesh);
    const int64_t each = batch_sizes(g->batch).tokens;
    const int64_t rank = query ? share.context_rank * share.tensor : row_share_rank(&share);
    return (g->batch->host_place ? g->batch->host_place[token] : token) - rank * each;
}

/* Chooses the next word of the documents whose last tokens this rank has; word[i] becomes -1 for
 * the others. */
static status choose_own(generator *g, const growing *doc, int64_t n, int32_t *word)
{
    const backend_vtable *v = g->options.stream->dev->backend;
    const size_t act = st_dtype_size(v->act);
    const int64_t vocab = g->options.dims->text.vocab;
    int64_t own[DOCS], n_own = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = place_of(g, doc[i].at, false);
        word[i] = -1;
        if (at < 0 || at >= batch_sizes(g->batch).tokens)
            continue;
        g->index[n_own] = (int32_t)at;
        own[n_own++] = i;
    }
    if (!model_chooses(g->options.model))
        return ST_OK;
    TRY(v->to_device(g->options.stream, g->last, g->index, (size_t)n_own * sizeof *g->index));
    TRY(model_logits(g->options.model, g->options.stream, g->last, n_own, g->logits));
    TRY(v->to_host(g->options.stream, g->host_logits, g->logits, (size_t)(n_own * vocab) * act));
    TRY(v->wait(g->options.stream));
    for (int64_t i = 0; i < n_own; i++)
        word[own[i]] = best_word((const char *)g->host_logits + (size_t)(i * vocab) * act, v->act,
                                 vocab, g->options.dims);
    return ST_OK;
}

/* Gathers the words of all documents from the ranks of a row that have chosen them. Then all ranks
 * take what the first rank of the last pipeline stage has, since ranks that compute the same logits
 * may round them differently. */
static status hear_words(const generator *g, int64_t n, int32_t *word)
{
    const comm *peers = mesh_comm(g->options.mesh, MESH_ROW),
               *all = mesh_comm(g->options.mesh, MESH_WORLD);
    const comm_at at = {"choose words", -1};
    const int64_t stages = g->options.mesh->layout.pipeline;
    if (all->size == 1)
        return ST_OK;
    TRY(comm_host_all_gather(peers, at, word, g->said, n * (int64_t)sizeof *word));
    for (int64_t i = 0; i < n; i++)
        for (int r = 0; r < peers->size; r++)
            if (g->said[r * n + i] >= 0)
                word[i] = g->said[r * n + i];
    return comm_host_broadcast(all, at, word, n * (int64_t)sizeof *word,
                               (int)((stages - 1) * (all->size / stages)));
}

/* Chooses the next word of each document. Documents that have ended leave the list. */
static status choose_tokens(generator *g, growing *doc, int64_t *inout_n, int64_t max_new,
                            token_list *out)
{
    const int64_t n = *inout_n;
    int32_t word[DOCS];
    TRY(choose_own(g, doc, n, word));
    TRY(hear_words(g, n, word));
    *inout_n = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t id = word[i];
        token_list *answer = &out[doc[i].answer];
        if (id == g->options.dims->eos_token)
            continue;
        TRY(push(answer, id));
        doc[i].id = id;
        if ((int64_t)answer->count < max_new)
            doc[(*inout_n)++] = doc[i];
    }
    return ST_OK;
}

static status send_index(generator *g, int32_t *to, int64_t n, int64_t capacity, int32_t pad)
{
    for (int64_t i = n; i < capacity; i++)
        g->index[i] = pad;
    TRY(g->options.stream->dev->backend->to_device(g->options.stream, to, g->index,
                                                   (size_t)capacity * sizeof *g->index));
    /* The host's index array is used again after this. */
    return g->options.stream->dev->backend->wait(g->options.stream);
}

/* The number of tokens of the last batch on all ranks that share it, padding included. */
static int64_t all_tokens(const generator *g)
{
    const row_share share = row_share_of(g->options.mesh);
    return batch_sizes(g->batch).tokens * row_share_ranks(&share);
}

/* Runs the model with the cache over the batch that was staged last. */
static status run_cached_pass(generator *g, bool step)
{
    g->cache.step = step;
    return model_forward_cached(g->options.model, g->options.stream, g->batch, &g->cache);
}

/* Runs the prompts, which leaves their keys and values in the cache. */
static status prefill(generator *g, const row *prompts, growing *doc, int64_t n)
{
    device_batch *b;
    int64_t rows = 0, t = 0;
    for (int64_t i = 0; i < n; i++) {
        const row *p = &prompts[i];
        doc[i].first = rows;
        doc[i].length = p->n_tokens;
        for (int64_t j = 0; j < 3 * p->n_tokens; j++)
            if (p->position_ids[j] >= doc[i].position)
                doc[i].position = p->position_ids[j] + 1;
        for (int64_t j = 0; j < p->n_tokens; j++)
            g->index[t++] = (int32_t)(rows + j);
        doc[i].at = (int32_t)(t - 1);
        rows += p->n_tokens + GENERATE_MAX;
    }
    TRY(stage_rows(g->options.prompts, g->options.stream, prompts, n, &b));
    g->batch = b;
    TRY(kv_cache_clear(&g->cache, g->options.stream));
    TRY(send_index(g, g->cache.row, t, all_tokens(g), -1));
    return run_cached_pass(g, false);
}

/* Sends, for each query of a step, its document's length or first row in the cache; 0 where there
 * is no query. */
static status send_by_query(generator *g, int32_t *to, const growing *doc, int64_t n, bool lengths)
{
    const row_share share = row_share_of(g->options.mesh);
    const int64_t queries = batch_sizes(g->batch).tokens * share.tensor;
    memset(g->index, 0, (size_t)queries * sizeof *g->index);
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = place_of(g, i, true);
        if (at >= 0 && at < queries)
            g->index[at] = (int32_t)(lengths ? doc[i].length : doc[i].first);
    }
    return send_index(g, to, queries, queries, 0);
}

/* Runs one token of each document. r is a row with room for DOCS of them. */
static status step(generator *g, row *r, growing *doc, int64_t n)
{
    device_batch *b;
    r->n_tokens = r->n_docs = n;
    for (int64_t i = 0; i < n; i++) {
        r->input_ids[i] = doc[i].id;
        r->cu_seqlens[i + 1] = (int32_t)(i + 1);
        for (int axis = 0; axis < 3; axis++)
            r->position_ids[axis * n + i] = doc[i].position;
        doc[i].position++;
        doc[i].at = (int32_t)i;
        g->index[i] = (int32_t)(doc[i].first + doc[i].length++);
    }
    TRY(stage_rows(g->step, g->options.stream, r, 1, &b));
    g->batch = b;
    TRY(send_index(g, g->cache.row, n, all_tokens(g), -1));
    TRY(send_by_query(g, g->cache.first, doc, n, false));
    TRY(send_by_query(g, g->cache.length, doc, n, true));
    return run_cached_pass(g, true);
}

/* Adds a prompt to what a batch has taken of its capacities; false, and nothing added, if it
 * does not fit. */
static bool take_prompt(const generator *g, const row *p, batch_caps *sum, int64_t *inout_rows)
{
    batch_caps next = *sum;
    next.tokens += p->n_tokens;
    next.docs++;
    next.items += p->n_items;
    next.patches += p->n_patches;
    if (next.docs > g->docs || next.tokens > g->options.cap.tokens ||
        next.items > g->options.cap.items ||
        next.items > g->options.cap.frames || /* an image is one frame */
        next.patches > g->options.cap.patches ||
        *inout_rows + p->n_tokens + GENERATE_MAX > g->cache.rows)
        return false;
    *sum = next;
    *inout_rows += p->n_tokens + GENERATE_MAX;
    return true;
}

/* Cuts the prompts of as many of these replies as fit in a batch together, but at least one. */
static status cut_prompts(const generator *g, const row *r, const reply *replies, int64_t n,
                          arena *a, row prompts[DOCS], int64_t *out_n)
{
    batch_caps sum = {0};
    int64_t rows = 0, taken = 0;
    while (taken < n && taken < g->docs) {
        TRY(prompt_of_reply(r, &replies[taken], a, &prompts[taken]));
        if (!take_prompt(g, &prompts[taken], &sum, &rows))
            break;
        taken++;
    }
    if (taken == 0)
        return FAIL(ST_INTERNAL, "generate: a prompt of %lld tokens does not fit in a batch",
                    (long long)prompts[0].n_tokens);
    *out_n = taken;
    return ST_OK;
}

/* Continues the documents of one batch. */
static status answer_batch(generator *g, const row *prompts, int64_t n, int64_t max_new, arena *a,
                           token_list *out)
{
    growing doc[DOCS] = {0};
    row r = {.n_tokens = DOCS, .n_docs = DOCS};
    TRY(row_alloc(&r, a, 0));
    for (int64_t i = 0; i < n; i++)
        doc[i].answer = i;
    TRY(prefill(g, prompts, doc, n));
    TRY(choose_tokens(g, doc, &n, max_new, out));
    while (n > 0) {
        TRY(step(g, &r, doc, n));
        TRY(choose_tokens(g, doc, &n, max_new, out));
    }
    return ST_OK;
}

status generate_answers(generator *g, const row *r, const reply *replies, int64_t n,
                        int64_t max_new, token_list *out)
{
    if (!generate_can(g, r))
        return FAIL(
            ST_BAD_DEVICE,
            "generate: answers need logits of f32, f64 or bf16 (%s gives %s) and rows without "
            "video",
            g->options.stream->dev->backend->name,
            st_dtype_name(g->options.stream->dev->backend->act));
    if (max_new > GENERATE_MAX)
        return FAIL(ST_INTERNAL,
                    "generate: %lld words were asked for, but an answer has room for %d",
                    (long long)max_new, GENERATE_MAX);
    arena a;
    arena_init(&a, 0);
    status st = ST_OK;
    for (int64_t done = 0, taken; done < n && st == ST_OK; done += taken) {
        row prompts[DOCS];
        st = cut_prompts(g, r, replies + done, n - done, &a, prompts, &taken);
        if (st == ST_OK)
            st = answer_batch(g, prompts, taken, max_new, &a, out + done);
        arena_reset(&a);
    }
    arena_done(&a);
    return st;
}
