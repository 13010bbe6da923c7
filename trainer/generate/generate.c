/* SPDX-License-Identifier: Apache-2.0 */
/* generate.c: see generate.h.
 *
 *   prompts of some documents --prefill--> logits of their last tokens; keys and values are kept
 *   the token chosen for each --step-----> logits of these tokens; their keys and values are kept
 *                                          too (repeated until every document has ended)
 *
 * Branches of a prefix stay branches: the prefix is computed once and its keys and values are in
 * the cache once, where the steps of all branches read them. A copy for each branch would need
 * as much memory, and as much reading, as separate samples. */
#include "trainer/generate/generate.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/generate/prompt.h"
#include "trainer/model/text/kv_cache.h"
#include "trainer/model/layers/pass_context.h"

/* The most documents answered at once. Together they cost a step about as much as one. */
enum { DOCS = 32 };

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
    int64_t answer;                      /* its number among the caller's documents */
    int64_t first, length;               /* its rows of the cache: the first, and how many */
    int64_t prefix_first, prefix_length; /* those of its prefix */
    int32_t position;                    /* the position of its next token */
    int32_t id;                          /* the word chosen last */
    int32_t at;                          /* where its last token is in the batch, in packed order */
} growing;

int64_t generate_bytes(const model_dims *dims, const mesh *groups, int64_t longest,
                       const backend_vtable *backend)
{
    mesh alone;
    mesh_alone(&alone);
    return kv_cache_bytes(dims, groups ? groups : &alone, longest + DOCS * GENERATE_MAX, backend) +
           DOCS * dims->text.vocab * (int64_t)st_dtype_size(backend->act);
}

/* A step holds one token of each document, so there are no more documents than the model has room
 * for; its rows may be as short as one token. */
static int64_t docs_at_once(const batch_caps *cap)
{
    const int64_t room = cap->tokens < cap->docs ? cap->tokens : cap->docs;
    return room < DOCS ? room : DOCS;
}

status generate_new(const generator_options *options, generator **out)
{
    device *dev = options->stream->dev;
    const int64_t docs = docs_at_once(&options->cap);
    const batch_caps one = {.tokens = docs, .docs = docs};
    const row_share share = row_share_of(options->mesh);
    const int64_t ranks = row_share_ranks(&share);
    const int64_t queries = row_share_tokens(&share, docs) * share.tensor;
    const int64_t tokens = row_share_tokens(&share, options->cap.tokens) * ranks;
    size_t logits = (size_t)(DOCS * options->dims->text.vocab) * st_dtype_size(dev->backend->act);
    status st;
    generator *generation = calloc(1, sizeof *generation);
    if (!generation)
        return FAIL(ST_NO_MEMORY, "generate: out of memory");
    generation->options = *options;
    generation->docs = docs;
    TRY_OR(undo,
           stager_new_shared(options->stream, options->dims, &one, &share, &generation->step));
    TRY_OR(undo,
           kv_cache_new(dev, options->dims, options->mesh, options->longest + DOCS * GENERATE_MAX,
                        tokens, queries, &generation->cache));
    TRY_OR(undo, dev->backend->alloc(dev, logits, &generation->logits));
    TRY_OR(undo,
           dev->backend->alloc(dev, DOCS * sizeof *generation->last, (void **)&generation->last));
    TRY_OR(undo, dev->backend->alloc_host(dev, logits, &generation->host_logits));
    TRY_OR(undo, dev->backend->alloc_host(dev, (size_t)tokens * sizeof *generation->index,
                                          (void **)&generation->index));
    generation->said = calloc((size_t)(ranks * DOCS), sizeof *generation->said);
    if (!generation->said) {
        st = FAIL(ST_NO_MEMORY, "generate: out of memory");
        goto undo;
    }
    *out = generation;
    return ST_OK;
undo:
    generate_free(&generation);
    return st;
}

void generate_free(generator **gp)
{
    generator *generation = *gp;
    if (!generation)
        return;
    device *dev = generation->options.stream->dev;
    stager_free(&generation->step, generation->options.stream);
    kv_cache_free(&generation->cache, dev);
    dev->backend->release(dev, generation->logits);
    dev->backend->release(dev, generation->last);
    dev->backend->release_host(dev, generation->host_logits);
    dev->backend->release_host(dev, generation->index);
    free(generation->said);
    free(generation);
    *gp = NULL;
}

static status push(token_list *list, int32_t id)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 32;
        int32_t *ids = realloc(list->id, capacity * sizeof *ids);
        if (!ids)
            return FAIL(ST_NO_MEMORY, "generate: out of memory");
        list->id = ids;
        list->capacity = capacity;
    }
    list->id[list->count++] = id;
    return ST_OK;
}

/* Reads a logit in the device's activation type. A bf16 is the upper half of a float. */
static double logit_at(const void *logits, st_dtype dtype, int64_t index)
{
    if (dtype == DT_F64)
        return ((const double *)logits)[index];
    if (dtype == DT_F32)
        return (double)((const float *)logits)[index];
    uint32_t bits = (uint32_t)((const uint16_t *)logits)[index] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* Finds the likeliest word. Placeholder tokens of pictures do not count as words: an untrained
 * model may like them best, and there would be no picture for them. */
static int32_t best_word(const void *logits, st_dtype dtype, int64_t vocab, const model_dims *dims)
{
    int64_t best = -1;
    for (int64_t i = 0; i < vocab; i++) {
        if (i == dims->image_token || i == dims->video_token)
            continue;
        if (best < 0 || logit_at(logits, dtype, i) > logit_at(logits, dtype, best))
            best = i;
    }
    return (int32_t)best;
}

bool generate_can(const generator *generation, const row *packed)
{
    const st_dtype act = generation->options.stream->dev->backend->act;
    return (act == DT_F32 || act == DT_F64 || act == DT_BF16) && !packed->n_video_patches;
}

/* Where a token of the last batch stands among those of this rank or, with `query`, among the
 * queries of this rank's place in the sequence (those of all its tensor ranks). A result outside
 * [0, their number) means that it is another rank's. */
static int64_t place_of(const generator *generation, int64_t token, bool query)
{
    const row_share share = row_share_of(generation->options.mesh);
    const int64_t each = batch_sizes(generation->batch).tokens;
    const int64_t rank = query ? share.context_rank * share.tensor : row_share_rank(&share);
    return (generation->batch->host_place ? generation->batch->host_place[token] : token) -
           rank * each;
}

/* Chooses the next word of the documents whose last tokens this rank has; word[i] becomes -1 for
 * the others. */
static status choose_own(generator *generation, const growing *doc, int64_t count, int32_t *word)
{
    const backend_vtable *backend = generation->options.stream->dev->backend;
    const size_t act = st_dtype_size(backend->act);
    const int64_t vocab = generation->options.dims->text.vocab;
    int64_t own[DOCS], n_own = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = place_of(generation, doc[i].at, false);
        word[i] = -1;
        if (at < 0 || at >= batch_sizes(generation->batch).tokens)
            continue;
        generation->index[n_own] = (int32_t)at;
        own[n_own++] = i;
    }
    if (!model_has_head(generation->options.model))
        return ST_OK;
    TRY(backend->to_device(generation->options.stream, generation->last, generation->index,
                           (size_t)n_own * sizeof *generation->index));
    TRY(model_logits(generation->options.model, generation->options.stream, generation->last, n_own,
                     generation->logits));
    TRY(backend->to_host(generation->options.stream, generation->host_logits, generation->logits,
                         (size_t)(n_own * vocab) * act));
    TRY(backend->wait(generation->options.stream));
    for (int64_t i = 0; i < n_own; i++)
        word[own[i]] = best_word((const char *)generation->host_logits + (size_t)(i * vocab) * act,
                                 backend->act, vocab, generation->options.dims);
    return ST_OK;
}

/* Gathers the words of all documents from the ranks of a row that have chosen them. Then all ranks
 * take what the first rank of the last pipeline stage has, since ranks that compute the same logits
 * may round them differently. */
static status hear_words(const generator *generation, int64_t count, int32_t *word)
{
    const comm *peers = mesh_comm(generation->options.mesh, MESH_ROW),
               *all = mesh_comm(generation->options.mesh, MESH_WORLD);
    const comm_at at = {"choose words", -1};
    const int64_t stages = generation->options.mesh->layout.pipeline;
    if (all->size == 1)
        return ST_OK;
    TRY(comm_host_all_gather(peers, at, word, generation->said, count * (int64_t)sizeof *word));
    for (int64_t i = 0; i < count; i++)
        for (int j = 0; j < peers->size; j++)
            if (generation->said[j * count + i] >= 0)
                word[i] = generation->said[j * count + i];
    return comm_host_broadcast(all, at, word, count * (int64_t)sizeof *word,
                               (int)((stages - 1) * (all->size / stages)));
}

/* Chooses the next word of each document. Documents that have ended leave the list. */
static status choose_tokens(generator *generation, growing *doc, int64_t *inout_n, int64_t max_new,
                            token_list *out)
{
    const int64_t count = *inout_n;
    int32_t word[DOCS];
    TRY(choose_own(generation, doc, count, word));
    TRY(hear_words(generation, count, word));
    *inout_n = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t id = word[i];
        token_list *answer = &out[doc[i].answer];
        if (dims_is_end(generation->options.dims, id))
            continue;
        TRY(push(answer, id));
        doc[i].id = id;
        if ((int64_t)answer->count < max_new)
            doc[(*inout_n)++] = doc[i];
    }
    return ST_OK;
}

static status send_index(generator *generation, int32_t *to, int64_t queries, int64_t capacity,
                         int32_t pad)
{
    for (int64_t i = queries; i < capacity; i++)
        generation->index[i] = pad;
    TRY(generation->options.stream->dev->backend->to_device(
        generation->options.stream, to, generation->index,
        (size_t)capacity * sizeof *generation->index));
    /* The host's index array is used again after this. */
    return generation->options.stream->dev->backend->wait(generation->options.stream);
}

/* The number of tokens of the last batch on all ranks that share it, padding included. */
static int64_t all_tokens(const generator *generation)
{
    const row_share share = row_share_of(generation->options.mesh);
    return batch_sizes(generation->batch).tokens * row_share_ranks(&share);
}

/* Runs the model with the cache over the batch that was staged last. */
static status run_cached_pass(generator *generation, bool step)
{
    generation->cache.step = step;
    return model_forward_cached(generation->options.model, generation->options.stream,
                                generation->batch, &generation->cache);
}

/* The position after those of a sample. */
static int32_t position_after(const row *packed, int64_t doc)
{
    int32_t next = 0;
    for (int64_t i = 0; i < sample_tokens(packed, doc); i++)
        for (int axis = 0; axis < 3; axis++) {
            const int32_t here =
                packed->position_ids[axis * packed->n_tokens + sample_token(packed, doc, i)];
            next = here >= next ? here + 1 : next;
        }
    return next;
}

/* Assigns rows of the cache to the tokens of a row of prompts, the first of which is token number
 * `token` of the batch, and notes each document's rows. Returns how many documents go on. */
static int64_t place_prompts(generator *generation, const row *packed, int64_t token,
                             int64_t *inout_rows, growing *doc)
{
    int64_t count = 0, before = 0;
    for (int64_t i = 0; i < packed->n_docs; i++) {
        const int64_t begin = packed->cu_seqlens[i], tokens = packed->cu_seqlens[i + 1] - begin;
        const int64_t rows = *inout_rows;
        for (int64_t j = 0; j < tokens; j++)
            generation->index[token + begin + j] = (int32_t)(rows + j);
        *inout_rows += tokens;
        if (row_is_prefix(packed, i)) {
            before = rows;
            continue;
        }
        *inout_rows += GENERATE_MAX;
        growing *next = &doc[count++];
        next->first = rows;
        next->length = tokens;
        next->prefix_length = row_tokens_before(packed, i);
        next->prefix_first = next->prefix_length ? before : 0;
        next->position = position_after(packed, i);
        next->at = (int32_t)(token + begin + tokens - 1);
    }
    return count;
}

/* Runs `count` rows of prompts, which leaves their keys and values in the cache. */
static status prefill(generator *generation, const row *prompts, int64_t count, growing *doc)
{
    device_batch *batch;
    int64_t rows = 0, token = 0;
    generation->cache.has_prefixes = false;
    for (int64_t i = 0; i < count; i++) {
        doc += place_prompts(generation, &prompts[i], token, &rows, doc);
        token += prompts[i].n_tokens;
        generation->cache.has_prefixes |= prompts[i].doc_prefix != NULL;
    }
    TRY(stage_rows(generation->options.prompts, generation->options.stream, prompts, count,
                   &batch));
    generation->batch = batch;
    TRY(kv_cache_clear(&generation->cache, generation->options.stream));
    TRY(send_index(generation, generation->cache.row, token, all_tokens(generation), -1));
    return run_cached_pass(generation, false);
}

/* Sends, for each query of a step, a number of its document: the member of `growing` at this
 * offset; 0 where there is no query. */
static status send_by_query(generator *generation, int32_t *to, const growing *doc, int64_t count,
                            size_t member)
{
    const row_share share = row_share_of(generation->options.mesh);
    const int64_t queries = batch_sizes(generation->batch).tokens * share.tensor;
    memset(generation->index, 0, (size_t)queries * sizeof *generation->index);
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = place_of(generation, i, true);
        if (at >= 0 && at < queries)
            generation->index[at] = (int32_t)((const int64_t *)((const char *)&doc[i] + member))[0];
    }
    return send_index(generation, to, queries, queries, 0);
}

/* Sends the rows that each query of a step sees. */
static status send_ranges(generator *generation, const growing *doc, int64_t count)
{
    const kv_cache *cache = &generation->cache;
    TRY(send_by_query(generation, cache->first, doc, count, offsetof(growing, first)));
    TRY(send_by_query(generation, cache->length, doc, count, offsetof(growing, length)));
    if (!cache->has_prefixes)
        return ST_OK;
    TRY(send_by_query(generation, cache->prefix_first, doc, count,
                      offsetof(growing, prefix_first)));
    return send_by_query(generation, cache->prefix_length, doc, count,
                         offsetof(growing, prefix_length));
}

/* Runs one token of each document. `packed` is a row with room for DOCS of them. */
static status step(generator *generation, row *packed, growing *doc, int64_t count)
{
    device_batch *batch;
    packed->n_tokens = packed->n_docs = count;
    for (int64_t i = 0; i < count; i++) {
        packed->input_ids[i] = doc[i].id;
        packed->cu_seqlens[i + 1] = (int32_t)(i + 1);
        for (int axis = 0; axis < 3; axis++)
            packed->position_ids[axis * count + i] = doc[i].position;
        doc[i].position++;
        doc[i].at = (int32_t)i;
        generation->index[i] = (int32_t)(doc[i].first + doc[i].length++);
    }
    TRY(stage_rows(generation->step, generation->options.stream, packed, 1, &batch));
    generation->batch = batch;
    TRY(send_index(generation, generation->cache.row, count, all_tokens(generation), -1));
    TRY(send_ranges(generation, doc, count));
    return run_cached_pass(generation, true);
}

/* What a batch of prompts takes. */
typedef struct taken {
    batch_caps sum;
    int64_t replies, rows; /* rows: of prompts, each a document or a prefix with its branches */
} taken;

/* Adds the prompts of `count` replies, which share a prefix if they are several; false, and nothing
 * added, if they do not fit. */
static bool take_prompts(const generator *generation, const row *packed, const reply *replies,
                         int64_t count, taken *batch)
{
    const batch_caps *cap = &generation->options.cap, more = prompt_sizes(packed, replies, count);
    taken next = *batch;
    next.sum.tokens += more.tokens;
    next.sum.docs += more.docs;
    next.sum.items += more.items;
    next.sum.frames += more.frames;
    next.sum.patches += more.patches;
    next.replies += count;
    next.rows++;
    if (next.replies > generation->docs || next.sum.docs > cap->docs ||
        next.sum.tokens > cap->tokens || next.sum.items > cap->items ||
        next.sum.frames > cap->frames || next.sum.patches > cap->patches ||
        next.sum.tokens + next.replies * GENERATE_MAX > generation->cache.rows)
        return false;
    *batch = next;
    return true;
}

/* How many of the first replies, at most `most`, have one prefix in common: 1 if the first has
 * none. */
static int64_t count_branches(const row *packed, const reply *replies, int64_t most)
{
    int64_t same = 1;
    while (same < most && row_tokens_before(packed, replies[0].doc) > 0 &&
           packed->doc_prefix[replies[same].doc] == packed->doc_prefix[replies[0].doc])
        same++;
    return same;
}

/* Cuts the prompts of as many of these replies as fit in a batch together, but at least one. */
static status cut_prompts(const generator *generation, const row *packed, const reply *replies,
                          int64_t count, arena *memory, row prompts[DOCS], taken *out)
{
    const int64_t most = count < generation->docs ? count : generation->docs;
    *out = (taken){0};
    while (out->replies < most) {
        const reply *first = &replies[out->replies];
        row *next = &prompts[out->rows];
        int64_t same = count_branches(packed, first, most - out->replies);
        while (same > 0 && !take_prompts(generation, packed, first, same, out))
            same--;
        if (same == 0)
            break;
        TRY(prompt_of_branches(packed, first, same, memory, next));
    }
    if (out->replies == 0)
        return FAIL(ST_INTERNAL, "generate: a prompt of %lld tokens does not fit in a batch",
                    (long long)prompt_sizes(packed, replies, 1).tokens);
    return ST_OK;
}

/* Continues the documents of one batch. */
static status answer_batch(generator *generation, const row *prompts, const taken *batch,
                           int64_t max_new, arena *memory, token_list *out)
{
    growing doc[DOCS] = {0};
    int64_t count = batch->replies;
    row packed = {.n_tokens = DOCS, .n_docs = DOCS};
    TRY(row_alloc(&packed, memory, 0));
    for (int64_t i = 0; i < count; i++)
        doc[i].answer = i;
    TRY(prefill(generation, prompts, batch->rows, doc));
    TRY(choose_tokens(generation, doc, &count, max_new, out));
    while (count > 0) {
        TRY(step(generation, &packed, doc, count));
        TRY(choose_tokens(generation, doc, &count, max_new, out));
    }
    return ST_OK;
}

status generate_answers(generator *generation, const row *packed, const reply *replies,
                        int64_t count, int64_t max_new, token_list *out)
{
    if (!generate_can(generation, packed))
        return FAIL(
            ST_BAD_DEVICE,
            "generate: answers need logits of f32, f64 or bf16 (%s gives %s) and rows without "
            "video",
            generation->options.stream->dev->backend->name,
            st_dtype_name(generation->options.stream->dev->backend->act));
    if (max_new > GENERATE_MAX)
        return FAIL(ST_INTERNAL,
                    "generate: %lld words were asked for, but an answer has room for %d",
                    (long long)max_new, GENERATE_MAX);
    arena memory;
    arena_init(&memory, 0);
    status st = ST_OK;
    taken batch;
    for (int64_t done = 0; done < count && st == ST_OK; done += batch.replies) {
        row prompts[DOCS];
        st =
            cut_prompts(generation, packed, replies + done, count - done, &memory, prompts, &batch);
        if (st == ST_OK)
            st = answer_batch(generation, prompts, &batch, max_new, &memory, out + done);
        arena_reset(&memory);
    }
    arena_done(&memory);
    return st;
}
