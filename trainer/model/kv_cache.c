/* kv_cache.c: memory of the cache of keys and values, and the ops that fill and read it. */
#include "trainer/model/kv_cache.h"

#include <math.h>

#include "trainer/device/space.h"
#include "trainer/ops/table.h"

static void lay_out(kv_cache *c, size_t act, space *sp)
{
    c->k = space_take(sp, c->layers * c->rows * c->width, act);
    c->v = space_take(sp, c->layers * c->rows * c->width, act);
    c->row = space_take(sp, c->tokens, sizeof(int32_t));
    c->first = space_take(sp, c->queries, sizeof(int32_t));
    c->length = space_take(sp, c->queries, sizeof(int32_t));
}

/* The sizes of a cache with room for `rows` tokens on this rank. */
static kv_cache cache_of(const model_dims *dims, const mesh *m, int64_t rows)
{
    const stage_part part = stage_part_of(dims, &m->layout, m->place.pipeline);
    return (kv_cache){.rows = rows,
                      .width = tensor_part(&m->layout, dims->text.kv_heads) * dims->text.head_dim,
                      .layers = part.end - part.first,
                      .before = part.first};
}

int64_t kv_cache_bytes(const model_dims *dims, const mesh *m, int64_t rows, const backend_vtable *v)
{
    const kv_cache c = cache_of(dims, m, rows);
    return 2 * c.layers * c.rows * c.width * (int64_t)st_dtype_size(v->act);
}

status kv_cache_new(device *dev, const model_dims *dims, const mesh *m, int64_t rows,
                    int64_t tokens, int64_t queries, kv_cache *out)
{
    size_t act = st_dtype_size(dev->backend->act);
    space sp = {0};
    kv_cache c = cache_of(dims, m, rows);
    c.tokens = tokens;
    c.queries = queries;
    lay_out(&c, act, &sp);
    TRY(dev->backend->alloc(dev, sp.peak, &c.block));
    sp = (space){.base = c.block};
    lay_out(&c, act, &sp);
    *out = c;
    return ST_OK;
}

void kv_cache_free(kv_cache *c, device *dev)
{
    if (c->block)
        dev->backend->release(dev, c->block);
    *c = (kv_cache){0};
}

status kv_cache_clear(const kv_cache *c, stream *s)
{
    size_t bytes = (size_t)(c->layers * c->rows * c->width) * st_dtype_size(s->dev->backend->act);
    TRY(s->dev->backend->zero(s, c->k, bytes));
    return s->dev->backend->zero(s, c->v, bytes);
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
static int64_t first_of(const kv_cache *c, int64_t layer)
{
    return (layer - c->before) * c->rows * c->width;
}

status kv_cache_keep(const pass_context *ctx, int64_t layer, const void *k, const void *v)
{
    const kv_cache *c = ctx->cache;
    int64_t first = first_of(c, layer);
    TRY(keep_rows(ctx, k, at(c->k, first, ctx->act)));
    return keep_rows(ctx, v, at(c->v, first, ctx->act));
}

status kv_cache_attend(const pass_context *ctx, int64_t layer, const void *q, void *o)
{
    const kv_cache *c = ctx->cache;
    const text_dims *dims = &ctx->dims->text;
    const layout *l = &ctx->mesh->layout;
    int64_t first = first_of(c, layer);
    return op_attention_cached(ctx->stream,
                               &(attention_cached_args){.queries = ctx->context_tokens,
                                                        .heads = tensor_part(l, dims->heads),
                                                        .kv_heads = tensor_part(l, dims->kv_heads),
                                                        .head_dim = dims->head_dim,
                                                        .rows = c->rows,
                                                        .scale = 1 / sqrt((double)dims->head_dim),
                                                        .first = c->first,
                                                        .length = c->length,
                                                        .q = q,
                                                        .k = at(c->k, first, ctx->act),
                                                        .v = at(c->v, first, ctx->act),
                                                        .o = o});
}
