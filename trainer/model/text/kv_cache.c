/* SPDX-License-Identifier: Apache-2.0 */
/* kv_cache.c: memory of the cache of keys and values, and the ops that fill and read it. */
#include "trainer/model/text/kv_cache.h"

#include <math.h>

#include "trainer/device/space.h"
#include "trainer/ops/table.h"

static void lay_out(kv_cache *cache, size_t act, space *sp)
{
    cache->k = space_take(sp, cache->layers * cache->rows * cache->width, act);
    cache->v = space_take(sp, cache->layers * cache->rows * cache->width, act);
    cache->row = space_take(sp, cache->tokens, sizeof(int32_t));
    cache->first = space_take(sp, cache->queries, sizeof(int32_t));
    cache->length = space_take(sp, cache->queries, sizeof(int32_t));
    cache->prefix_first = space_take(sp, cache->queries, sizeof(int32_t));
    cache->prefix_length = space_take(sp, cache->queries, sizeof(int32_t));
}

/* The sizes of a cache with room for `rows` tokens on this rank. */
static kv_cache cache_of(const model_dims *dims, const mesh *ranks, int64_t rows)
{
    const stage_part part = stage_part_of(dims, &ranks->layout, ranks->place.pipeline);
    return (kv_cache){.rows = rows,
                      .width =
                          tensor_part(&ranks->layout, dims->text.kv_heads) * dims->text.head_dim,
                      .layers = part.end - part.first,
                      .before = part.first};
}

int64_t kv_cache_bytes(const model_dims *dims, const mesh *ranks, int64_t rows,
                       const backend_vtable *backend)
{
    const kv_cache cache = cache_of(dims, ranks, rows);
    return 2 * cache.layers * cache.rows * cache.width * (int64_t)st_dtype_size(backend->act);
}

status kv_cache_new(device *dev, const model_dims *dims, const mesh *ranks, int64_t rows,
                    int64_t tokens, int64_t queries, kv_cache *out)
{
    size_t act = st_dtype_size(dev->backend->act);
    space sp = {0};
    kv_cache cache = cache_of(dims, ranks, rows);
    cache.tokens = tokens;
    cache.queries = queries;
    lay_out(&cache, act, &sp);
    TRY(dev->backend->alloc(dev, sp.peak, &cache.block));
    sp = (space){.base = cache.block};
    lay_out(&cache, act, &sp);
    *out = cache;
    return ST_OK;
}

void kv_cache_free(kv_cache *cache, device *dev)
{
    if (cache->block)
        dev->backend->release(dev, cache->block);
    *cache = (kv_cache){0};
}

status kv_cache_clear(const kv_cache *cache, stream *queue)
{
    size_t bytes = (size_t)(cache->layers * cache->rows * cache->width) *
                   st_dtype_size(queue->dev->backend->act);
    TRY(queue->dev->backend->zero(queue, cache->k, bytes));
    return queue->dev->backend->zero(queue, cache->v, bytes);
}

static status keep_rows(const pass_context *ctx, const void *x, void *layer)
{
    return op_rows_scatter(ctx->stream, &(rows_scatter_args){.n = ctx->all_tokens,
                                                             .width = ctx->cache->width,
                                                             .y_rows = ctx->cache->rows,
                                                             .index = ctx->cache->row,
                                                             .x = x,
                                                             .y = layer,
                                                             .distinct = true});
}

/* The first element of a layer's rows. */
static int64_t first_of(const kv_cache *cache, int64_t layer)
{
    return (layer - cache->before) * cache->rows * cache->width;
}

status kv_cache_keep(const pass_context *ctx, int64_t layer, const void *k, const void *v)
{
    const kv_cache *cache = ctx->cache;
    int64_t first = first_of(cache, layer);
    TRY(keep_rows(ctx, k, at(cache->k, first, ctx->act)));
    return keep_rows(ctx, v, at(cache->v, first, ctx->act));
}

status kv_cache_attend(const pass_context *ctx, int64_t layer, const void *q, void *o)
{
    const kv_cache *cache = ctx->cache;
    const text_dims *dims = &ctx->dims->text;
    const layout *degrees = &ctx->mesh->layout;
    int64_t first = first_of(cache, layer);
    const attention_cached_args args = {
        .queries = ctx->context_tokens,
        .heads = tensor_part(degrees, dims->heads),
        .kv_heads = tensor_part(degrees, dims->kv_heads),
        .head_dim = dims->head_dim,
        .rows = cache->rows,
        .scale = 1 / sqrt((double)dims->head_dim),
        .first = cache->first,
        .length = cache->length,
        .prefix_first = cache->has_prefixes ? cache->prefix_first : NULL,
        .prefix_length = cache->has_prefixes ? cache->prefix_length : NULL,
        .q = q,
        .k = at(cache->k, first, ctx->act),
        .v = at(cache->v, first, ctx->act),
        .o = o};
    return op_attention_cached(ctx->stream, &args);
}
